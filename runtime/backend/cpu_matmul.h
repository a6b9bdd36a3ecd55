// Matrix products of the cpu backend: oneDNN primitives, made once per shape and kept.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>

#include "runtime/backend/backend.h"

namespace geopipe::cpu {

// fp32. Runs on exactly `threads` OpenMP threads. What oneDNN needs as scratchpad comes from `allocator` (workspace)
// and is kept; a product whose shape is known allocates nothing.
class MatMulCache {
 public:
  // Internal: oneDNN's own error. `allocator` must outlive the cache.
  static absl::StatusOr<std::unique_ptr<MatMulCache>> Create(int threads, Allocator& allocator);

  MatMulCache(const MatMulCache&) = delete;
  MatMulCache& operator=(const MatMulCache&) = delete;
  ~MatMulCache();

  // See Backend::MatMul. Internal: oneDNN's own error.
  absl::Status Run(Product product, const ConstMatrixView& a, const ConstMatrixView& b, const MatrixView& c,
                   bool accumulate);

 private:
  struct State;

  explicit MatMulCache(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace geopipe::cpu
