// Finds what a job or its topology leaves unsaid and pays for: figures without which the planner has to leave devices
// unused or share links, and choices that are pinned where `auto` is much faster.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "optimizer/plan/report/plan_result.h"
#include "optimizer/plan/space/plan_request.h"

namespace geopipe {

struct Omission {
  std::string key;           // "network", "parallelism.tensor"
  std::string sentence;      // what is missing, what it does, and what an iteration would take with it
  int64_t iteration_ns = 0;  // with it

  friend bool operator==(const Omission&, const Omission&) = default;
};

// An iteration must get shorter by a tenth for a word to be worth it.
inline constexpr int64_t kOmissionPpm = 100'000;

// Those that make the iteration of `result`, the request's plan, shorter by kOmissionPpm; the greatest first. Figures
// that are assumed stand in the sentence. A first look is by rule; what that leaves in the race is planned as the
// request would be. Where should_stop ends it, some may be missing. REQUIRES: no given costs.
std::vector<Omission> CostlyOmissions(const PlanRequest& request, const PlanResult& result);

}  // namespace geopipe
