// Matrix products of the cpu backend: oneDNN primitives, made once per shape and kept.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>

#include "runtime/backend/backend.h"

namespace geopipe::cpu {

// fp32. Runs on exactly `threads` OpenMP threads. What oneDNN needs as scratchpad is kept, so a product whose shape is
// known allocates nothing; it is not part of the device's memory, as no library's own is: how much it is depends on the
// processor: a few MiB for each thread.
class MatMulCache {
 public:
  // Internal: oneDNN's own error.
  static absl::StatusOr<std::unique_ptr<MatMulCache>> Create(int threads);

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
