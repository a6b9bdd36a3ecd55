// Causal attention of a GPU from products and a softmax of whole matrices of scores: right for every shape, and the
// measure of what replaces it. It works on a sample's heads of some keys and values at a time, one query head of each.
#pragma once

#include <absl/status/status.h>

#include <cstdint>

#include "runtime/backend/backend.h"
#include "runtime/gpu/gpu_device.h"
#include "runtime/gpu/gpu_products.h"

namespace geopipe {

// Heads that are worked on together take at most so much workspace, unless one takes more.
inline constexpr int64_t kMaxAttentionWorkspaceBytes = int64_t{256} << 20;

// The steps in which attention of a shape is computed: a function of the shape and the type alone.
struct AttentionSteps {
  int64_t heads = 0;          // at once, each of other keys and values
  int64_t score_stride = 0;   // between the rows of a matrix of scores, in elements
  int64_t score_bytes = 0;    // of a head's matrix of fp32 scores
  int64_t rounded_bytes = 0;  // of a head's matrix of rounded probabilities; 0: they take the scores' place
  int64_t sums_bytes = 0;     // of fp32 sums of the heads' gradients of keys, likewise of values; 0: none are needed

  // Workspace of a call of Attention, and of AttentionGrad.
  int64_t forward_bytes() const { return heads * (score_bytes + rounded_bytes); }
  int64_t backward_bytes() const { return 2 * (forward_bytes() + sums_bytes); }
};
AttentionSteps StepsOf(const AttentionShape& shape, DType dtype);

// Enqueues them on the compute queue. One thread.
class GpuAttention {
 public:
  // All outlive it.
  GpuAttention(GpuDevice& device, GpuProducts& products, GpuWorkspace& workspace)
      : device_(device), products_(products), workspace_(workspace) {}

  // The calls are Backend's.
  void RunDry(bool on) { dry_ = on; }
  absl::Status Forward(const AttentionShape& shape, const ConstMatrixView& query, const ConstMatrixView& key,
                       const ConstMatrixView& value, const MatrixView& out, VectorView<float> statistics);
  absl::Status Backward(const AttentionShape& shape, const ConstMatrixView& query, const ConstMatrixView& key,
                        const ConstMatrixView& value, VectorView<const float> statistics,
                        const ConstMatrixView& grad_out, const MatrixView& grad_query, const MatrixView& grad_key,
                        const MatrixView& grad_value);

 private:
  GpuDevice& device_;
  GpuProducts& products_;
  GpuWorkspace& workspace_;
  bool dry_ = false;
};

}  // namespace geopipe
