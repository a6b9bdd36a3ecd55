// A dense row-major tensor that owns its memory.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/tensor/allocator.h"

namespace geopipe {

enum class DType : uint8_t { kFp32, kBf16, kFp16, kInt32 };

int64_t ByteSize(DType dtype);
// "fp32", "bf16", "fp16", "int32".
std::string_view DTypeName(DType dtype);

// Move-only. A default-constructed or moved-from tensor is empty: no shape, no memory.
class Tensor {
 public:
  Tensor() = default;
  Tensor(Tensor&& other) noexcept;
  Tensor& operator=(Tensor&& other) noexcept;

  // Uninitialised memory. Errors are the allocator's. REQUIRES: every extent is positive.
  static absl::StatusOr<Tensor> Create(Allocator& allocator, MemoryCategory category, DType dtype,
                                       std::vector<int64_t> shape);
  static absl::StatusOr<Tensor> Zeros(Allocator& allocator, MemoryCategory category, DType dtype,
                                      std::vector<int64_t> shape);

  DType dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t elements() const { return elements_; }
  int64_t bytes() const { return elements_ * ByteSize(dtype_); }
  bool empty() const { return buffer_.empty(); }

  std::byte* data() const { return buffer_.data(); }
  // REQUIRES: dtype() == kFp32 (kInt32).
  std::span<float> fp32() const;
  std::span<int32_t> int32() const;

  // Accounts the memory under another category from now on.
  void SetCategory(MemoryCategory category) { buffer_.SetCategory(category); }

 private:
  DType dtype_ = DType::kFp32;
  std::vector<int64_t> shape_;
  int64_t elements_ = 0;
  Buffer buffer_;
};

}  // namespace geopipe
