// Predicts the figures of a given plan.
#pragma once

#include <absl/status/statusor.h>

#include "optimizer/model/job_spec.h"
#include "optimizer/model/pipeline_costs.h"
#include "optimizer/model/plan/plan_params.h"
#include "optimizer/schedule/schedule.h"

namespace geopipe {

struct PlanPrediction {
  Prediction prediction;
  PipelineCosts costs;
  Schedule schedule;                // lowered
  std::vector<int64_t> peak_bytes;  // per device of a pipeline rank
  bool fits = true;
};

// Simulates `plan` for `job` under `costs`, which are the plan's (CostsOfPlan). InvalidArgument when the plan's
// micro-batches do not make up tokens_per_iteration, or its delta_n does not have one number per crossing.
// REQUIRES: ValidateCosts(costs).ok(); costs.shape has the stages and micro-batches of the plan.
absl::StatusOr<PlanPrediction> PredictPlan(const JobSpec& job, const Plan& plan, PipelineCosts costs);

// Predicts the same for a given compute-only schedule. Kind and ΔN of the plan are read only to replace the messages
// that `costs` count for them by the schedule's own. REQUIRES also: `compute` is for costs.shape.
absl::StatusOr<PlanPrediction> PredictSchedule(const JobSpec& job, const Plan& plan, PipelineCosts costs,
                                               const Schedule& compute);

// Predicts the same under costs that are given whole (a case file's), memory of messages included.
absl::StatusOr<PlanPrediction> PredictGiven(const Plan& plan, PipelineCosts costs, const Schedule& compute);

}  // namespace geopipe
