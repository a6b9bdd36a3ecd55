#include "runtime/tensor/tensor.h"

#include <cstring>
#include <limits>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"

namespace geopipe {

int64_t ByteSize(DType dtype) {
  switch (dtype) {
    case DType::kFp32:
    case DType::kInt32:
      return 4;
    case DType::kBf16:
    case DType::kFp16:
      return 2;
  }
  GP_CHECK(false, "dtype {}", static_cast<int>(dtype));
}

std::string_view DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kFp32:
      return "fp32";
    case DType::kBf16:
      return "bf16";
    case DType::kFp16:
      return "fp16";
    case DType::kInt32:
      return "int32";
  }
  GP_CHECK(false, "dtype {}", static_cast<int>(dtype));
}

Tensor::Tensor(Tensor&& other) noexcept
    : dtype_(other.dtype_),
      shape_(std::exchange(other.shape_, {})),
      elements_(std::exchange(other.elements_, 0)),
      buffer_(std::move(other.buffer_)) {}

Tensor& Tensor::operator=(Tensor&& other) noexcept {
  if (this != &other) {
    dtype_ = other.dtype_;
    shape_ = std::exchange(other.shape_, {});
    elements_ = std::exchange(other.elements_, 0);
    buffer_ = std::move(other.buffer_);
  }
  return *this;
}

absl::StatusOr<Tensor> Tensor::Create(Allocator& allocator, MemoryCategory category, DType dtype,
                                      std::vector<int64_t> shape) {
  // Far above any memory, and its product with an element's size still is an int64_t.
  constexpr int64_t kMaxElements = std::numeric_limits<int64_t>::max() / 8;
  int64_t elements = 1;
  for (const int64_t extent : shape) {
    GP_CHECK(extent > 0, "a tensor with an extent of {}", extent);
    GP_CHECK(elements <= kMaxElements / extent, "a tensor of more than {} elements", kMaxElements);
    elements *= extent;
  }
  Tensor tensor;
  GP_ASSIGN_OR_RETURN(tensor.buffer_, allocator.Allocate(elements * ByteSize(dtype), category));
  tensor.dtype_ = dtype;
  tensor.shape_ = std::move(shape);
  tensor.elements_ = elements;
  return tensor;
}

absl::StatusOr<Tensor> Tensor::Zeros(Allocator& allocator, MemoryCategory category, DType dtype,
                                     std::vector<int64_t> shape) {
  GP_ASSIGN_OR_RETURN(Tensor tensor, Create(allocator, category, dtype, std::move(shape)));
  std::memset(tensor.data(), 0, static_cast<size_t>(tensor.bytes()));
  return tensor;
}

std::span<float> Tensor::fp32() const {
  GP_CHECK(dtype_ == DType::kFp32, "a tensor of {} read as fp32", DTypeName(dtype_));
  return {reinterpret_cast<float*>(data()), static_cast<size_t>(elements_)};
}

std::span<int32_t> Tensor::int32() const {
  GP_CHECK(dtype_ == DType::kInt32, "a tensor of {} read as int32", DTypeName(dtype_));
  return {reinterpret_cast<int32_t*>(data()), static_cast<size_t>(elements_)};
}

}  // namespace geopipe
