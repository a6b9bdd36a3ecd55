// A dense row-major tensor that owns its memory, or is a part of one that does.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "optimizer/base/check.h"
#include "runtime/tensor/allocator.h"
#include "runtime/tensor/bfloat16.h"

namespace geopipe {

enum class DType : uint8_t { kFp32, kBf16, kFp16, kInt32, kFp64 };

int64_t ByteSize(DType dtype);
// "fp32", "bf16", "fp16", "int32", "fp64".
std::string_view DTypeName(DType dtype);

// Move-only. The memory is that of its allocator's device. A default-constructed or moved-from tensor is empty: no
// shape, no memory.
class Tensor {
 public:
  Tensor() = default;
  Tensor(Tensor&& other) noexcept;
  Tensor& operator=(Tensor&& other) noexcept;

  // A tensor of uninitialised memory. Errors are the allocator's. REQUIRES: every extent is positive.
  static absl::StatusOr<Tensor> Create(Allocator& allocator, MemoryCategory category, DType dtype,
                                       std::vector<int64_t> shape, Queue first_use = Queue::kCompute);
  // REQUIRES: allocator.space() == kHost.
  static absl::StatusOr<Tensor> Zeros(Allocator& allocator, MemoryCategory category, DType dtype,
                                      std::vector<int64_t> shape);

  // The elements from `first` on as a tensor of their own, in the memory of this one, which must outlive it. REQUIRES:
  // this tensor has these elements.
  Tensor Part(int64_t first, std::vector<int64_t> shape) const;
  // The first bytes as elements of another type, otherwise like Part. REQUIRES: there are enough.
  Tensor As(DType dtype, std::vector<int64_t> shape) const;
  // The same as As, but the memory goes with it, and this tensor is empty then.
  Tensor Into(DType dtype, std::vector<int64_t> shape) &&;

  DType dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t elements() const { return elements_; }
  int64_t bytes() const { return elements_ * ByteSize(dtype_); }
  bool empty() const { return address_ == nullptr; }

  // kHost when empty.
  MemorySpace space() const { return empty() ? MemorySpace::kHost : allocator_->space(); }
  // The allocator of the tensor's memory. REQUIRES: !empty().
  Allocator& allocator() const { return *allocator_; }
  // Address in the tensor's memory space: for kernels and the device's copies. The host does not read it.
  std::byte* address() const { return address_; }

  // The elements, for the host. REQUIRES: space() == kHost; of the spans: dtype() is theirs.
  std::byte* data() const;
  std::span<float> fp32() const { return Elements<float>(DType::kFp32); }
  std::span<BFloat16> bf16() const { return Elements<BFloat16>(DType::kBf16); }
  std::span<int32_t> int32() const { return Elements<int32_t>(DType::kInt32); }
  std::span<double> fp64() const { return Elements<double>(DType::kFp64); }

  // Accounts the memory under another category from now on; a part has no memory of its own to account.
  void SetCategory(MemoryCategory category) { buffer_.SetCategory(category); }
  // Buffer's. REQUIRES: this is no part.
  void NoteUse(Queue queue) {
    GP_CHECK(!buffer_.empty(), "a part has no memory of its own");
    buffer_.NoteUse(queue);
  }

 private:
  template <class T>
  std::span<T> Elements(DType dtype) const {
    GP_CHECK(dtype_ == dtype, "a tensor of {} read as {}", DTypeName(dtype_), DTypeName(dtype));
    return {reinterpret_cast<T*>(data()), static_cast<size_t>(elements_)};
  }

  DType dtype_ = DType::kFp32;
  std::vector<int64_t> shape_;
  int64_t elements_ = 0;
  Allocator* allocator_ = nullptr;
  std::byte* address_ = nullptr;
  Buffer buffer_;  // empty: this is a part
};

}  // namespace geopipe
