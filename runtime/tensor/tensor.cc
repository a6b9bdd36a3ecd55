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
    case DType::kFp64:
      return 8;
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
    case DType::kFp64:
      return "fp64";
  }
  GP_CHECK(false, "dtype {}", static_cast<int>(dtype));
}

Tensor::Tensor(Tensor&& other) noexcept
    : dtype_(other.dtype_),
      shape_(std::exchange(other.shape_, {})),
      elements_(std::exchange(other.elements_, 0)),
      allocator_(std::exchange(other.allocator_, nullptr)),
      address_(std::exchange(other.address_, nullptr)),
      buffer_(std::move(other.buffer_)) {}

Tensor& Tensor::operator=(Tensor&& other) noexcept {
  if (this != &other) {
    dtype_ = other.dtype_;
    shape_ = std::exchange(other.shape_, {});
    elements_ = std::exchange(other.elements_, 0);
    allocator_ = std::exchange(other.allocator_, nullptr);
    address_ = std::exchange(other.address_, nullptr);
    buffer_ = std::move(other.buffer_);
  }
  return *this;
}

namespace {

int64_t ElementsOf(const std::vector<int64_t>& shape) {
  // The limit is far above any memory, and its product with an element's size is still an int64_t.
  constexpr int64_t kMaxElements = std::numeric_limits<int64_t>::max() / 8;
  int64_t elements = 1;
  for (const int64_t extent : shape) {
    GP_CHECK(extent > 0, "a tensor with an extent of {}", extent);
    GP_CHECK(elements <= kMaxElements / extent, "a tensor of more than {} elements", kMaxElements);
    elements *= extent;
  }
  return elements;
}

}  // namespace

absl::StatusOr<Tensor> Tensor::Create(Allocator& allocator, MemoryCategory category, DType dtype,
                                      std::vector<int64_t> shape, Queue first_use) {
  const int64_t elements = ElementsOf(shape);
  Tensor tensor;
  GP_ASSIGN_OR_RETURN(tensor.buffer_, allocator.Allocate(elements * ByteSize(dtype), category, first_use));
  tensor.dtype_ = dtype;
  tensor.shape_ = std::move(shape);
  tensor.elements_ = elements;
  tensor.allocator_ = &allocator;
  tensor.address_ = tensor.buffer_.data();
  return tensor;
}

Tensor Tensor::Part(int64_t first, std::vector<int64_t> shape) const {
  Tensor part;
  part.dtype_ = dtype_;
  part.elements_ = ElementsOf(shape);
  GP_CHECK(first >= 0 && first + part.elements_ <= elements_, "elements {} to {} of {}", first, first + part.elements_,
           elements_);
  part.shape_ = std::move(shape);
  part.allocator_ = allocator_;
  part.address_ = address_ + first * ByteSize(dtype_);
  return part;
}

Tensor Tensor::As(DType dtype, std::vector<int64_t> shape) const {
  Tensor part;
  part.dtype_ = dtype;
  part.elements_ = ElementsOf(shape);
  GP_CHECK(part.bytes() <= bytes(), "{} bytes of {}", part.bytes(), bytes());
  part.shape_ = std::move(shape);
  part.allocator_ = allocator_;
  part.address_ = address_;
  return part;
}

Tensor Tensor::Into(DType dtype, std::vector<int64_t> shape) && {
  Tensor tensor = As(dtype, std::move(shape));
  tensor.buffer_ = std::move(buffer_);
  *this = Tensor();
  return tensor;
}

absl::StatusOr<Tensor> Tensor::Zeros(Allocator& allocator, MemoryCategory category, DType dtype,
                                     std::vector<int64_t> shape) {
  GP_ASSIGN_OR_RETURN(Tensor tensor, Create(allocator, category, dtype, std::move(shape)));
  std::memset(tensor.data(), 0, static_cast<size_t>(tensor.bytes()));
  return tensor;
}

std::byte* Tensor::data() const {
  GP_CHECK(space() == MemorySpace::kHost, "the host reads a tensor in a device's memory");
  return address_;
}

}  // namespace geopipe
