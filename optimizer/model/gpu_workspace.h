// Workspace that the GPU's backend (runtime/gpu) takes of the device's memory: one arithmetic for the backend and for
// the planner, which counts it.
#pragma once

#include <cstdint>

#include "optimizer/model/execution_config.h"
#include "optimizer/model/model_spec.h"

namespace geopipe {

// The workspace of products: what cuBLASLt's kernels that divide long sums want on an H100. It is taken whole at the
// first product.
inline constexpr int64_t kGpuProductWorkspaceBytes = int64_t{32} << 20;

// Heads that attention works on together take at most so much, unless one takes more.
inline constexpr int64_t kMaxGpuAttentionBytes = int64_t{256} << 20;

// The steps in which attention of a shape is computed: a function of the shape and the type alone.
struct GpuAttentionSteps {
  int64_t heads = 0;          // at once, each of other keys and values
  int64_t score_stride = 0;   // between the rows of a matrix of scores, in elements
  int64_t score_bytes = 0;    // of a head's matrix of fp32 scores
  int64_t rounded_bytes = 0;  // of a head's matrix of rounded probabilities; 0: they take the scores' place
  int64_t sums_bytes = 0;     // of fp32 sums of the heads' gradients of keys, likewise of values; 0: none are needed

  // Workspace of a call of Attention, and of AttentionGrad.
  int64_t forward_bytes() const { return heads * (score_bytes + rounded_bytes); }
  int64_t backward_bytes() const { return 2 * (forward_bytes() + sums_bytes); }
};
// `heads` share `kv_heads`, both of one rank; elements take `element_bytes`.
GpuAttentionSteps GpuAttentionStepsOf(int64_t sequence, int64_t heads, int64_t kv_heads, int64_t head_dim,
                                      int64_t element_bytes);

// Rows of fp32 results that wait together to be rounded: as many as fit into 64 MiB, of `columns` each, or one.
int64_t GpuFp32ResultRows(int64_t rows, int64_t columns);

// Partial sums of kernels (runtime/gpu/port/gpu_kernels.h): a norm's gradient of its weight of so many parts, each of a
// norm's width; sums of squares of so many elements each.
inline constexpr int64_t kGpuNormGradParts = 256;
inline constexpr int64_t kGpuSquaresChunk = 65536;

// Workspace of a stage's backend, from the first iteration on. Stages of a device share one: it is as large as the
// largest needs.
int64_t GpuWorkspaceBytes(const ModelSpec& model, const LayerRange& range, const ExecutionConfig& config);

}  // namespace geopipe
