// Schedules, costs, plans and predictions to and from their messages. FromProto takes nothing on trust: every count,
// size and enumerator is checked, and InvalidArgument begins with the path of the field within the message.
#pragma once

#include <absl/status/statusor.h>

#include "geopipe/v1/schedule.pb.h"
#include "optimizer/model/pipeline_costs.h"
#include "optimizer/model/plan_params.h"
#include "optimizer/schedule/schedule_table.h"

namespace geopipe {

v1::ScheduleKind ToProto(ScheduleKind kind);
v1::CommMode ToProto(CommMode mode);
v1::Recompute ToProto(Recompute recompute);
v1::PipelineShape ToProto(const PipelineShape& shape);
v1::BoundaryCost ToProto(const BoundaryCost& cost);
v1::MemoryCosts ToProto(const MemoryCosts& costs);
v1::PipelineCosts ToProto(const PipelineCosts& costs);
v1::Schedule ToProto(const Schedule& schedule);
v1::LayerRange ToProto(const LayerRange& range);
v1::ProcessGrid ToProto(const ProcessGrid& grid);
v1::PipelineRankPlan ToProto(const PipelineRankPlan& rank);
v1::StagePlan ToProto(const StagePlan& stage);
v1::DevicePlace ToProto(const DevicePlace& place);
v1::IdleDevices ToProto(const IdleDevices& idle);
v1::Plan ToProto(const Plan& plan);
v1::Prediction ToProto(const Prediction& prediction);

absl::StatusOr<ScheduleKind> FromProto(v1::ScheduleKind kind);
absl::StatusOr<CommMode> FromProto(v1::CommMode mode);
absl::StatusOr<Recompute> FromProto(v1::Recompute recompute);
absl::StatusOr<PipelineShape> FromProto(const v1::PipelineShape& message);
absl::StatusOr<BoundaryCost> FromProto(const v1::BoundaryCost& message);
absl::StatusOr<MemoryCosts> FromProto(const v1::MemoryCosts& message);
// A PipelineCosts that passes ValidateCosts.
absl::StatusOr<PipelineCosts> FromProto(const v1::PipelineCosts& message);
// The shape is valid and every cell is an action; whether the actions make a schedule is for Validate
// (optimizer/schedule/validate.h) to say.
absl::StatusOr<Schedule> FromProto(const v1::Schedule& message);
absl::StatusOr<LayerRange> FromProto(const v1::LayerRange& message);
absl::StatusOr<ProcessGrid> FromProto(const v1::ProcessGrid& message);
absl::StatusOr<PipelineRankPlan> FromProto(const v1::PipelineRankPlan& message);
absl::StatusOr<StagePlan> FromProto(const v1::StagePlan& message);
absl::StatusOr<DevicePlace> FromProto(const v1::DevicePlace& message);
absl::StatusOr<IdleDevices> FromProto(const v1::IdleDevices& message);
// One device per rank of the grid, every stage on a pipeline rank and every pipeline rank with a stage, no more delta_n
// than boundaries.
absl::StatusOr<Plan> FromProto(const v1::Plan& message);
absl::StatusOr<Prediction> FromProto(const v1::Prediction& message);

}  // namespace geopipe
