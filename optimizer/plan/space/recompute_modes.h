// Which recompute modes a job allows.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "optimizer/model/job_spec.h"

namespace geopipe {

// The modes the job allows, the cheapest in time first: its own, or with auto none, selective, full.
inline std::vector<Recompute> RecomputeModes(const JobSpec& job) {
  if (job.parallelism.recompute.has_value()) {
    return {*job.parallelism.recompute};
  }
  return {Recompute::kNone, Recompute::kSelective, Recompute::kFull};
}

// "none", "selective", "full".
constexpr std::string_view RecomputeName(Recompute recompute) {
  constexpr std::array<std::string_view, 3> kNames{"none", "selective", "full"};
  return kNames[static_cast<size_t>(recompute)];
}

}  // namespace geopipe
