#include "optimizer/plan/report/plan_result.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>

namespace geopipe {

namespace {

constexpr std::array<std::string_view, 4> kScopeNames{"same", "best", "single-site", "site-replicas"};

}  // namespace

std::string_view BaselineScopeName(BaselineScope scope) { return kScopeNames[static_cast<size_t>(scope)]; }

absl::StatusOr<BaselineScope> ParseBaselineScope(std::string_view name) {
  const auto found = std::ranges::find(kScopeNames, name);
  if (found == kScopeNames.end()) {
    return absl::InvalidArgumentError(
        fmt::format("\"{}\" is not a scope; use same, best, single-site or site-replicas", name));
  }
  return static_cast<BaselineScope>(found - kScopeNames.begin());
}

JobSpec JobOfPlan(const JobSpec& job, const PlanResult& result) {
  JobSpec planned = job;
  planned.parallelism.tensor = result.plan.grid.tensor;
  planned.parallelism.data = result.plan.grid.data;
  return planned;
}

}  // namespace geopipe
