// The choices a job leaves open: recompute modes, and b and s that divide its tokens.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "optimizer/model/job_spec.h"

namespace geopipe {

// The modes the job allows, the cheapest in time first: its own, or with auto none, selective (which blocked attention
// has no use for), full.
inline std::vector<Recompute> RecomputeModes(const JobSpec& job) {
  if (job.parallelism.recompute.has_value()) {
    return {*job.parallelism.recompute};
  }
  if (job.attention == Attention::kBlocked) {
    return {Recompute::kNone, Recompute::kFull};
  }
  return {Recompute::kNone, Recompute::kSelective, Recompute::kFull};
}

// Micro-batches of an iteration at this b and s; 0 when these do not divide its tokens, or make too many.
inline int32_t MicroBatchesOf(const JobSpec& job, int64_t micro_batch_size, int64_t sequence_length) {
  const int64_t product = micro_batch_size * sequence_length * std::max<int64_t>(1, job.parallelism.data);
  const int64_t count = job.training.tokens_per_iteration / product;
  return count * product == job.training.tokens_per_iteration && count <= kMaxMicroBatches ? static_cast<int32_t>(count)
                                                                                           : 0;
}

// "none", "selective", "full".
constexpr std::string_view RecomputeName(Recompute recompute) {
  constexpr std::array<std::string_view, 3> kNames{"none", "selective", "full"};
  return kNames[static_cast<size_t>(recompute)];
}

}  // namespace geopipe
