#include "optimizer/plan/report/plan_result.h"

#include <fmt/format.h>

#include <algorithm>

namespace geopipe {

std::string_view BaselineScopeName(BaselineScope scope) {
  switch (scope) {
    case BaselineScope::kSame:
      return "same";
    case BaselineScope::kBest:
      return "best";
    case BaselineScope::kSingleSite:
      break;
  }
  return "single-site";
}

absl::StatusOr<BaselineScope> ParseBaselineScope(std::string_view name) {
  for (const BaselineScope scope : {BaselineScope::kSame, BaselineScope::kBest, BaselineScope::kSingleSite}) {
    if (name == BaselineScopeName(scope)) {
      return scope;
    }
  }
  return absl::InvalidArgumentError(fmt::format("\"{}\" is no scope; use same, best or single-site", name));
}

JobSpec JobOfPlan(const JobSpec& job, const PlanResult& result) {
  JobSpec planned = job;
  planned.parallelism.tensor = result.plan.grid.tensor;
  planned.parallelism.data = result.plan.grid.data;
  return planned;
}

}  // namespace geopipe
