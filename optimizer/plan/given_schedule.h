// Plans with a schedule that is given, action by action: its devices are the pipeline ranks, its rows say which stages
// each of them runs, its micro-batches are the iteration's. What is left to the planner is everything else: sites,
// degrees, b and s that make up as many micro-batches, modes, the layers of each stage.
#pragma once

#include <absl/status/statusor.h>

#include <string_view>

#include "optimizer/model/cost_source.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/plan/report/plan_result.h"
#include "optimizer/plan/space/plan_request.h"
#include "optimizer/schedule/schedule.h"

namespace geopipe {

// The job with the pipeline of a schedule of this shape. InvalidArgument names the key of the job that says otherwise
// (search.schedule, parallelism.pipeline, parallelism.stages_per_rank), the number of layers or of tokens that the
// shape does not go with, or the rank of the shape that runs more stages than another.
absl::StatusOr<JobSpec> JobWithSchedule(JobSpec job, const PipelineShape& shape);

// The same for a schedule as text; errors also as ReadScheduleCsv's.
absl::StatusOr<JobSpec> JobWithSchedule(JobSpec job, std::string_view csv);

// The shortest plan with request.schedule, at the sites and degrees that 1f1b goes best with. InvalidArgument: as
// JobWithSchedule, or as MakePlan. FailedPrecondition: 1f1b fits with none, or the schedule with none of them; names
// pipeline rank, bytes and capacity. REQUIRES: request.schedule is valid.
absl::StatusOr<PlanResult> PlanGivenSchedule(const PlanRequest& request, const CostSource& source);

}  // namespace geopipe
