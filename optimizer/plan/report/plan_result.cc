#include "optimizer/plan/report/plan_result.h"

namespace geopipe {

JobSpec JobOfPlan(const JobSpec& job, const PlanResult& result) {
  JobSpec planned = job;
  planned.parallelism.tensor = result.tensor;
  planned.parallelism.data = result.data;
  return planned;
}

}  // namespace geopipe
