#include "optimizer/plan/report/plan_result.h"

namespace geopipe {

JobSpec JobOfPlan(const JobSpec& job, const PlanResult& result) {
  JobSpec planned = job;
  planned.parallelism.tensor = result.plan.grid.tensor;
  planned.parallelism.data = result.plan.grid.data;
  return planned;
}

}  // namespace geopipe
