// The execution of one pipeline stage: everything besides the model that decides its FLOPs, bytes and memory.
#pragma once

#include <cstdint>

#include "optimizer/model/job_spec.h"

namespace geopipe {

struct ExecutionConfig {
  int64_t micro_batch_size = 1;
  int64_t sequence_length = 1;
  int64_t tensor = 1;  // tensor-parallel degree t; divides key-value heads, intermediate and vocabulary sizes
  int64_t data = 1;    // data-parallel degree
  bool sequence_parallel = false;  // norm regions split over the tensor-parallel ranks (arXiv 2205.05198)
  int32_t zero_stage = 0;          // arXiv 1910.02054; 0 to 3
  Recompute recompute = Recompute::kNone;
  Precision precision = Precision::kFp32;
  Attention attention = Attention::kBlocked;
  bool offloads_optimizer = false;  // AdamW's states lie in the host's memory
  bool resets_documents = false;    // attention begins anew after each document (DataSpec::documents)
  bool keeps_states = false;        // the last two, in memory that outlives the process (JobSpec::recovery)
  bool own_memory = false;          // the devices have one beside the host's, where messages and such states lie

  int64_t tokens() const { return micro_batch_size * sequence_length; }
  // Number of ranks that divide tensors outside the tensor-parallel regions.
  int64_t norm_region_split() const { return sequence_parallel ? tensor : 1; }

  friend bool operator==(const ExecutionConfig&, const ExecutionConfig&) = default;
};

// Bytes of one element of activations, messages and compute weights.
inline constexpr int64_t kFp32Bytes = 4;
constexpr int64_t ElementBytes(Precision precision) { return precision == Precision::kBf16 ? 2 : 4; }
// Bytes of one element of the gradient accumulators, and of their reductions: fp32, whatever the precision.
inline constexpr int64_t kGradientBytes = kFp32Bytes;

// Bytes of the activation (forward) or its gradient (backward) that crosses a stage boundary, over all tensor-parallel
// ranks together: b * s * hidden elements. A crossing carries it once: each rank sends its 1/t slice.
inline int64_t BoundaryMessageBytes(const ModelSpec& model, const ExecutionConfig& config) {
  return config.tokens() * model.hidden_size * ElementBytes(config.precision);
}

}  // namespace geopipe
