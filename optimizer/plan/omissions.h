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

// Least saving that is worth a word: a tenth of the iteration.
inline constexpr int64_t kOmissionPpm = 100'000;

// Finds the omissions without which the iteration of `result`, the request's plan, would be shorter by kOmissionPpm;
// the greatest first. Sentences name the figures that are assumed. Each is tried by rule first, and those that still
// promise enough are planned as the request would be. If should_stop ends that, some may be missing. REQUIRES: no given
// costs.
std::vector<Omission> CostlyOmissions(const PlanRequest& request, const PlanResult& result);

}  // namespace geopipe
