// Prepares a coordinator's record of a run's latest iterations for display: the trace file, and the comparison of
// prediction and measurement.
#pragma once

#include <absl/status/statusor.h>

#include <optional>
#include <string>
#include <vector>

#include "coordinator/cli/control_client.h"
#include "coordinator/cli/render/plan_output.h"
#include "geopipe/v1/control_service.pb.h"
#include "optimizer/model/pipeline_costs.h"
#include "optimizer/model/plan/plan_params.h"
#include "optimizer/schedule/schedule.h"
#include "optimizer/simulator/comparison.h"

namespace geopipe {

struct TraceData {
  Plan plan;
  Schedule schedule;  // lowered
  PipelineCosts costs;
  std::vector<MeasuredIteration> iterations;  // ascending, at least one
  int64_t clock_error_ns = 0;                 // greatest of all ranks; -1: the clocks of some are not known
};

// Errors are those of the parts' conversion.
absl::StatusOr<TraceData> TraceDataOf(const v1::GetTraceResponse& response);

// A job's measurements beside the prediction of its plan; nullopt as long as there is no iteration to compare. `run`:
// of the name; 0: the latest.
struct ComparedRun {
  TraceData data;
  PlanComparison comparison;
};
absl::StatusOr<std::optional<ComparedRun>> CompareRun(ControlClient& client, const std::string& name, int64_t run = 0);

// Chrome trace event format: the latest measured iteration, and below it the predicted one. Errors are Simulate's.
absl::StatusOr<std::string> TraceJson(const TraceData& data);

// The stages and links with what was predicted and what was measured.
std::string ComparisonText(const PlanComparison& comparison, const Plan& plan, int32_t columns = kAnyColumns);
// One sentence on the largest deviation: "stage 1 (west/0/0) is slower than predicted: …", or that there is none.
std::string LargestDeviation(const PlanComparison& comparison, const Plan& plan);
// {"iterations","stages":[…],"links":[…],"deviations":[…],"largest_deviation"}.
Json ComparisonJson(const PlanComparison& comparison, const Plan& plan);

}  // namespace geopipe
