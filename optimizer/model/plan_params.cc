#include "optimizer/model/plan_params.h"

#include "optimizer/base/check.h"

namespace geopipe {

std::vector<int32_t> BoundaryDeltaN(const Plan& plan) {
  std::vector<int32_t> boundary_delta_n;
  size_t crossing = 0;
  for (size_t stage = 1; stage < plan.stages.size(); ++stage) {
    if (plan.stages[stage - 1].site == plan.stages[stage].site) {
      boundary_delta_n.push_back(0);
      continue;
    }
    GP_CHECK(crossing < plan.delta_n.size(), "plan has {} delta_n, fewer than its crossings", plan.delta_n.size());
    boundary_delta_n.push_back(plan.delta_n[crossing++]);
  }
  GP_CHECK(crossing == plan.delta_n.size(), "plan has {} delta_n for {} crossings", plan.delta_n.size(), crossing);
  return boundary_delta_n;
}

}  // namespace geopipe
