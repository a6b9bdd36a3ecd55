#include "proto/wire/schedule_wire.h"

#include <algorithm>
#include <utility>

#include "optimizer/model/job_spec.h"
#include "optimizer/schedule/csv.h"
#include "proto/wire/archive.h"

namespace geopipe {
namespace wire {

template <>
inline constexpr int kFirstOnWire<ScheduleKind> = 0;

static_assert(static_cast<int>(CommMode::kRendezvous) + 1 == v1::COMM_MODE_RENDEZVOUS);
static_assert(static_cast<int>(Recompute::kFull) + 1 == v1::RECOMPUTE_FULL);
static_assert(static_cast<int>(BackendKind::kModelled) + 1 == v1::BACKEND_KIND_MODELLED);

}  // namespace wire

namespace {

using wire::Bytes;
using wire::Duration;
using wire::Finite;
using wire::kMaxInt32;
using wire::Many;
using wire::Range;

constexpr int64_t kMaxLayers = int64_t{1} << 24;

// Checks that grid, pipeline ranks, stages and devices are of one size.
absl::Status CheckRanks(const Plan& plan) {
  const auto count = [](std::string_view field, size_t entries, int32_t ranks) {
    return std::cmp_equal(entries, ranks) ? absl::OkStatus()
                                          : absl::InvalidArgumentError(fmt::format(
                                                "{} has {} entries; the grid makes it {}", field, entries, ranks));
  };
  GP_RETURN_IF_ERROR(count("pipeline_ranks", plan.pipeline_ranks.size(), plan.grid.pipeline));
  GP_RETURN_IF_ERROR(count("devices", plan.devices.size(), plan.grid.size()));
  std::vector<bool> runs_stage(plan.pipeline_ranks.size());
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const int32_t rank = plan.stages[i].pipeline_rank;
    GP_RETURN_IF_ERROR(wire::CheckRange(fmt::format("stages[{}].pipeline_rank", i), rank, 0, plan.grid.pipeline - 1));
    runs_stage[rank] = true;
  }
  const auto idle = std::ranges::find(runs_stage, false);
  if (idle != runs_stage.end()) {
    return absl::InvalidArgumentError(fmt::format(
        "pipeline_ranks[{}] has no stage; every pipeline rank runs one at least", idle - runs_stage.begin()));
  }
  return wire::CheckCount("delta_n", std::ssize(plan.delta_n), std::ssize(plan.stages) - 1);
}

}  // namespace

v1::BackendKind ToProto(BackendKind kind) { return static_cast<v1::BackendKind>(static_cast<int>(kind) + 1); }

absl::StatusOr<BackendKind> FromProto(v1::BackendKind kind) {
  if (kind == v1::BACKEND_KIND_UNSPECIFIED || !v1::BackendKind_IsValid(kind)) {
    return absl::InvalidArgumentError(
        fmt::format("backend is {}; this version knows no such value", static_cast<int>(kind)));
  }
  return static_cast<BackendKind>(static_cast<int>(kind) - 1);
}

template <class Archive>
void Fields(Archive& archive, typename Archive::template Of<PipelineShape>& shape) {
  archive("devices", shape.devices);
  archive("stages", shape.stages);
  archive("micro_batches", shape.micro_batches);
  archive("placement", shape.placement, Many(wire::kMaxStages));
  archive.Check([&] { return ValidateShape(shape); });
}

template <class Archive>
void Fields(Archive& archive, typename Archive::template Of<BoundaryCost>& cost) {
  archive("crosses", cost.crosses);
  archive("link", cost.link, wire::Text(wire::kMaxNameBytes));
  archive("latency_ns", cost.latency_ns, Duration());
  archive("serialization_ns", cost.serialization_ns, Duration());
  archive("message_bytes", cost.message_bytes, Bytes());
  archive("acknowledgement_ns", cost.acknowledgement_ns, Duration());
  archive("overhead_ns", cost.overhead_ns, Duration());
}

template <class Archive>
void Fields(Archive& archive, typename Archive::template Of<MemoryCosts>& costs) {
  archive("capacity_bytes", costs.capacity_bytes, Many(wire::kMaxStages, Bytes()));
  archive("static_bytes", costs.static_bytes, Many(wire::kMaxStages, Bytes()));
  archive("activation_bytes", costs.activation_bytes, Many(wire::kMaxStages, Bytes()));
  archive("wgrad_bytes", costs.wgrad_bytes, Many(wire::kMaxStages, Bytes()));
}

template <class Archive>
void Fields(Archive& archive, typename Archive::template Of<PipelineCosts>& costs) {
  archive("shape", costs.shape);
  archive("forward_ns", costs.forward_ns, Many(wire::kMaxStages, Duration()));
  archive("input_grad_ns", costs.input_grad_ns, Many(wire::kMaxStages, Duration()));
  archive("weight_grad_ns", costs.weight_grad_ns, Many(wire::kMaxStages, Duration()));
  archive("boundaries", costs.boundaries, Many(wire::kMaxStages));
  archive("comm", costs.comm);
  archive("memory", costs.memory);
  archive("epilogue_ns", costs.epilogue_ns, Duration());
  archive.Check([&] { return ValidateCosts(costs); });
}

template <class Archive>
void Fields(Archive& archive, typename Archive::template Of<LayerRange>& range) {
  archive("first", range.first, Range(0, kMaxLayers));
  archive("last", range.last, Range(range.first - 1, kMaxLayers));
  archive("has_embedding", range.has_embedding);
  archive("has_head", range.has_head);
}

template <class Archive>
void Fields(Archive& archive, typename Archive::template Of<ProcessGrid>& grid) {
  archive("pipeline", grid.pipeline, Range(1, wire::kMaxRanks));
  archive("data", grid.data, Range(1, wire::kMaxRanks / std::max(1, grid.pipeline)));
  archive("tensor", grid.tensor, Range(1, wire::kMaxRanks / std::max(1, grid.pipeline) / std::max(1, grid.data)));
}

template <class Archive>
void Fields(Archive& archive, typename Archive::template Of<PipelineRankPlan>& rank) {
  archive("site", rank.site, wire::CheckName);
  archive("peak_bytes", rank.peak_bytes, Bytes());
  archive("capacity_bytes", rank.capacity_bytes, Bytes());
  archive("recompute", rank.recompute);
}

template <class Archive>
void Fields(Archive& archive, typename Archive::template Of<StagePlan>& stage) {
  archive("pipeline_rank", stage.pipeline_rank, Range(0, wire::kMaxRanks - 1));
  archive("layers", stage.layers);
}

template <class Archive>
void Fields(Archive& archive, typename Archive::template Of<DevicePlace>& place) {
  archive("node", place.node, Range(0, kMaxInt32));
  archive("device", place.device, Range(0, wire::kMaxDevicesPerNode - 1));
}

template <class Archive>
void Fields(Archive& archive, typename Archive::template Of<IdleDevices>& idle) {
  archive("site", idle.site, wire::CheckName);
  archive("node", idle.node, Range(0, kMaxInt32));
  archive("devices", idle.devices, Many(wire::kMaxDevicesPerNode, Range(0, wire::kMaxDevicesPerNode - 1)));
}

template <class Archive>
void Fields(Archive& archive, typename Archive::template Of<Plan>& plan) {
  archive("schedule", plan.schedule);
  archive("comm", plan.comm);
  archive("micro_batch_size", plan.micro_batch_size, Range(1, kMaxInt32));
  archive("sequence_length", plan.sequence_length, Range(1, kMaxInt32));
  archive("delta_n", plan.delta_n, Many(wire::kMaxStages, Range(0, kMaxDeltaN)));
  archive("micro_batches", plan.micro_batches, Range(1, kMaxInt32));
  archive("zero_stage", plan.zero_stage, Range(0, 3));
  archive("grid", plan.grid);
  archive("pipeline_ranks", plan.pipeline_ranks, Many(wire::kMaxRanks));
  archive("stages", plan.stages, Many(wire::kMaxStages));
  archive("devices", plan.devices, Many(wire::kMaxRanks));
  archive("idle", plan.idle, Many(wire::kMaxStages));
  archive.Check([&] { return CheckRanks(plan); });
}

template <class Archive>
void Fields(Archive& archive, typename Archive::template Of<Prediction>& prediction) {
  archive("iteration_ns", prediction.iteration_ns, Duration());
  archive("bubble_ratio", prediction.bubble_ratio, Finite(0));
  archive("lower_bound_ns", prediction.lower_bound_ns, Duration());
  archive("tokens_per_s", prediction.tokens_per_s, Finite(0));
  archive("wan_bytes_per_iteration", prediction.wan_bytes_per_iteration, Range(0, int64_t{1} << 62));
}

template <class Archive>
void Fields(Archive& archive, typename Archive::template Of<StageSlowdown>& slowdown) {
  constexpr double kMinFactor = 1e-3;
  archive("stage", slowdown.stage, Range(0, wire::kMaxStages - 1));
  archive("factor", slowdown.factor, Finite(kMinFactor));
}

template <class Archive>
void Fields(Archive& archive, typename Archive::template Of<RunOptions>& run) {
  archive("schedule", run.schedule);
  archive.Optional("comm", run.comm);
  archive("delta_n", run.delta_n, Many(wire::kMaxStages, Range(0, kMaxDeltaN)));
  archive.Optional("backend", run.backend);
  archive("pace", run.pace);
  archive("explicit_costs", run.explicit_costs);
  archive("stop_after_iterations", run.stop_after_iterations, Range(0, wire::kMaxInt64));
  archive("slowdown", run.slowdown);
  archive("resume", run.resume);
  archive("schedule_csv", run.schedule_csv, wire::Text(wire::kMaxCsvBytes));
}

v1::PipelineCosts ToProto(const PipelineCosts& costs) { return wire::Write<v1::PipelineCosts>(costs); }
v1::Plan ToProto(const Plan& plan) { return wire::Write<v1::Plan>(plan); }
v1::Prediction ToProto(const Prediction& prediction) { return wire::Write<v1::Prediction>(prediction); }
v1::RunOptions ToProto(const RunOptions& run) { return wire::Write<v1::RunOptions>(run); }

absl::StatusOr<PipelineCosts> FromProto(const v1::PipelineCosts& message) { return wire::Read<PipelineCosts>(message); }
absl::StatusOr<Plan> FromProto(const v1::Plan& message) { return wire::Read<Plan>(message); }
absl::StatusOr<Prediction> FromProto(const v1::Prediction& message) { return wire::Read<Prediction>(message); }
absl::StatusOr<RunOptions> FromProto(const v1::RunOptions& message) { return wire::Read<RunOptions>(message); }

v1::Schedule ToProto(const Schedule& schedule) {
  v1::Schedule message;
  *message.mutable_shape() = wire::Write<v1::PipelineShape>(schedule.shape);
  message.set_csv(ToCsv(schedule));
  return message;
}

absl::StatusOr<Schedule> FromProto(const v1::Schedule& message) {
  GP_ASSIGN_OR_RETURN(const PipelineShape shape, wire::Under("shape", wire::Read<PipelineShape>(message.shape())));
  GP_RETURN_IF_ERROR(wire::CheckText("csv", message.csv(), wire::kMaxCsvBytes));
  return ParseCsv(message.csv(), shape);
}

}  // namespace geopipe
