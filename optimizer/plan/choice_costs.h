// Costs of a plan's choices: for each one that the job leaves open, the best plan found with that choice changed, and
// all others as open as before.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "optimizer/plan/report/plan_result.h"
#include "optimizer/plan/space/plan_request.h"

namespace geopipe {

struct ChoiceCost {
  std::string key;                           // of the job: "tensor", "recompute"; "sites"
  std::string taken;                         // by the plan
  std::string instead;                       // "4", "full", "north,west"
  std::optional<int64_t> iteration_ns = {};  // of the best plan with it; nullopt: there is no plan
  double excess = 0;                         // over the plan's own iteration; below 0: it is faster
  // Other differences that come with it, in the job's words: {"pipeline", "4"}, {"data", "32"}.
  std::vector<std::pair<std::string, std::string>> with = {};
  bool by_rule_alone = false;  // time ended before schedules made to measure were tried
  std::string missing = {};    // why there is no plan

  friend bool operator==(const ChoiceCost&, const ChoiceCost&) = default;
};

struct ChoiceCosts {
  std::vector<ChoiceCost> all;         // by choice
  std::vector<std::string> not_tried;  // "tensor 8": before request.should_stop ended it
};

// Tries every other tensor degree, recompute mode, b and s; if there are replicas, the other ZeRO stages, even if the
// job names its own; the next smaller and greater data degrees; half and twice the pipeline ranks; one, two and four
// stages on each; even layers; every other schedule that fits the ranks, and for a job that asks for geopipe no ΔN;
// each of a few sites left out, and the best other order of all of them if every order is tried. Each is planned by
// rule, which finds its degrees and sites; if the request's own plan may have a schedule made to measure, it is planned
// with one there, and at the plan's own degrees. Each choice gets the best of all plans found.
//
// `request` is the one that `result` was planned for; its parallel_for runs the alternatives in parallel. If
// should_stop (asked between and during them) ends it, some have their plan by rule alone, or are in `not_tried`.
// Deterministic unless that ends it. Empty under given costs.
ChoiceCosts CostsOfChoices(const PlanRequest& request, const PlanResult& result);

}  // namespace geopipe
