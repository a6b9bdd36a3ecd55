// Schedules, costs, plans, predictions and the options of a run to and from their messages. FromProto trusts nothing:
// every count, size and enumerator is checked, and InvalidArgument begins with the path of the field within the
// message.
#pragma once

#include <absl/status/statusor.h>

#include "geopipe/v1/run.pb.h"
#include "geopipe/v1/schedule.pb.h"
#include "optimizer/model/pipeline_costs.h"
#include "optimizer/model/plan/plan_params.h"
#include "optimizer/model/run_options.h"
#include "optimizer/schedule/schedule_table.h"

namespace geopipe {

v1::BackendKind ToProto(BackendKind kind);
v1::PipelineCosts ToProto(const PipelineCosts& costs);
v1::Schedule ToProto(const Schedule& schedule);
v1::Plan ToProto(const Plan& plan);
v1::Prediction ToProto(const Prediction& prediction);
v1::RunOptions ToProto(const RunOptions& run);

// InvalidArgument when the kind is not set, or of a later version.
absl::StatusOr<BackendKind> FromProto(v1::BackendKind kind);
// A PipelineCosts that passes ValidateCosts.
absl::StatusOr<PipelineCosts> FromProto(const v1::PipelineCosts& message);
// Checks that the shape is valid and every cell is an action; Validate (optimizer/schedule/validate.h) says whether the
// actions make a schedule.
absl::StatusOr<Schedule> FromProto(const v1::Schedule& message);
// One device per rank of the grid, every stage on a pipeline rank and every pipeline rank with a stage, no more delta_n
// than boundaries.
absl::StatusOr<Plan> FromProto(const v1::Plan& message);
absl::StatusOr<Prediction> FromProto(const v1::Prediction& message);
// The default message (all fields unset) is the default RunOptions.
absl::StatusOr<RunOptions> FromProto(const v1::RunOptions& message);

}  // namespace geopipe
