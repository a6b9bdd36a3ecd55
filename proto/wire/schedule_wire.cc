#include "proto/wire/schedule_wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "optimizer/model/job_spec.h"
#include "proto/wire/fields.h"

namespace geopipe {
namespace {

using wire::Assign;
using wire::AssignMessages;
using wire::CheckCount;
using wire::CheckDuration;
using wire::CheckEach;
using wire::CheckFinite;
using wire::CheckName;
using wire::CheckRange;
using wire::CheckText;
using wire::ConvertMessages;
using wire::EnumFromProto;
using wire::EnumName;
using wire::EnumToProto;
using wire::kMaxInt32;
using wire::ToVector;
using wire::Under;

constexpr std::array<EnumName<CommMode, v1::CommMode>, 3> kCommModes{{
    {CommMode::kNonBlocking, v1::COMM_MODE_NON_BLOCKING},
    {CommMode::kBlocking, v1::COMM_MODE_BLOCKING},
    {CommMode::kRendezvous, v1::COMM_MODE_RENDEZVOUS},
}};

constexpr std::array<EnumName<Recompute, v1::Recompute>, 3> kRecomputes{{
    {Recompute::kNone, v1::RECOMPUTE_NONE},
    {Recompute::kSelective, v1::RECOMPUTE_SELECTIVE},
    {Recompute::kFull, v1::RECOMPUTE_FULL},
}};

constexpr int64_t kMaxLayers = int64_t{1} << 24;

absl::Status CheckBytes(std::string_view field, const google::protobuf::RepeatedField<int64_t>& values) {
  return CheckEach(field, values, wire::kMaxStages, 0, wire::kMaxBytes);
}

absl::Status CheckDurations(std::string_view field, const google::protobuf::RepeatedField<int64_t>& values) {
  return CheckEach(field, values, wire::kMaxStages, 0, wire::kMaxDurationNs);
}

absl::Status CheckDevices(const google::protobuf::RepeatedField<int32_t>& devices) {
  return CheckEach("devices", devices, wire::kMaxDevicesPerNode, 0, wire::kMaxDevicesPerNode - 1);
}

// That grid, pipeline ranks, stages and devices are of one size.
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
    GP_RETURN_IF_ERROR(CheckRange(fmt::format("stages[{}].pipeline_rank", i), rank, 0, plan.grid.pipeline - 1));
    runs_stage[rank] = true;
  }
  const auto idle = std::ranges::find(runs_stage, false);
  return idle == runs_stage.end() ? absl::OkStatus()
                                  : absl::InvalidArgumentError(fmt::format(
                                        "pipeline_ranks[{}] has no stage; every pipeline rank runs one at least",
                                        idle - runs_stage.begin()));
}

}  // namespace

v1::ScheduleKind ToProto(ScheduleKind kind) { return static_cast<v1::ScheduleKind>(kind); }
v1::CommMode ToProto(CommMode mode) { return EnumToProto(kCommModes, mode); }
v1::Recompute ToProto(Recompute recompute) { return EnumToProto(kRecomputes, recompute); }

absl::StatusOr<ScheduleKind> FromProto(v1::ScheduleKind kind) {
  for (const ScheduleRow& row : kSchedules) {
    if (ToProto(row.kind) == kind) {
      return row.kind;
    }
  }
  return absl::InvalidArgumentError(
      fmt::format("schedule is {}; this version knows no such value", static_cast<int>(kind)));
}
absl::StatusOr<CommMode> FromProto(v1::CommMode mode) { return EnumFromProto(kCommModes, "comm", mode); }
absl::StatusOr<Recompute> FromProto(v1::Recompute recompute) {
  return EnumFromProto(kRecomputes, "recompute", recompute);
}

v1::PipelineShape ToProto(const PipelineShape& shape) {
  v1::PipelineShape message;
  message.set_devices(shape.devices);
  message.set_chunks(shape.chunks);
  message.set_micro_batches(shape.micro_batches);
  Assign(shape.placement, message.mutable_placement());
  return message;
}

absl::StatusOr<PipelineShape> FromProto(const v1::PipelineShape& message) {
  GP_RETURN_IF_ERROR(CheckCount("placement", message.placement_size(), wire::kMaxStages));
  PipelineShape shape{.devices = message.devices(),
                      .chunks = message.chunks(),
                      .micro_batches = message.micro_batches(),
                      .placement = ToVector(message.placement())};
  GP_RETURN_IF_ERROR(ValidateShape(shape));
  return shape;
}

v1::BoundaryCost ToProto(const BoundaryCost& cost) {
  v1::BoundaryCost message;
  message.set_crosses(cost.crosses);
  message.set_link(cost.link);
  message.set_latency_ns(cost.latency_ns);
  message.set_serialization_ns(cost.serialization_ns);
  message.set_message_bytes(cost.message_bytes);
  message.set_acknowledgement_ns(cost.acknowledgement_ns);
  message.set_overhead_ns(cost.overhead_ns);
  return message;
}

absl::StatusOr<BoundaryCost> FromProto(const v1::BoundaryCost& message) {
  GP_RETURN_IF_ERROR(CheckText("link", message.link(), wire::kMaxNameBytes));
  GP_RETURN_IF_ERROR(CheckDuration("latency_ns", message.latency_ns()));
  GP_RETURN_IF_ERROR(CheckDuration("serialization_ns", message.serialization_ns()));
  GP_RETURN_IF_ERROR(CheckRange("message_bytes", message.message_bytes(), 0, wire::kMaxBytes));
  GP_RETURN_IF_ERROR(CheckDuration("acknowledgement_ns", message.acknowledgement_ns()));
  GP_RETURN_IF_ERROR(CheckDuration("overhead_ns", message.overhead_ns()));
  return BoundaryCost{.crosses = message.crosses(),
                      .link = message.link(),
                      .message_bytes = message.message_bytes(),
                      .latency_ns = message.latency_ns(),
                      .serialization_ns = message.serialization_ns(),
                      .acknowledgement_ns = message.acknowledgement_ns(),
                      .overhead_ns = message.overhead_ns()};
}

v1::MemoryCosts ToProto(const MemoryCosts& costs) {
  v1::MemoryCosts message;
  Assign(costs.capacity_bytes, message.mutable_capacity_bytes());
  Assign(costs.static_bytes, message.mutable_static_bytes());
  Assign(costs.activation_bytes, message.mutable_activation_bytes());
  Assign(costs.wgrad_bytes, message.mutable_wgrad_bytes());
  return message;
}

absl::StatusOr<MemoryCosts> FromProto(const v1::MemoryCosts& message) {
  GP_RETURN_IF_ERROR(CheckBytes("capacity_bytes", message.capacity_bytes()));
  GP_RETURN_IF_ERROR(CheckBytes("static_bytes", message.static_bytes()));
  GP_RETURN_IF_ERROR(CheckBytes("activation_bytes", message.activation_bytes()));
  GP_RETURN_IF_ERROR(CheckBytes("wgrad_bytes", message.wgrad_bytes()));
  return MemoryCosts{.capacity_bytes = ToVector(message.capacity_bytes()),
                     .static_bytes = ToVector(message.static_bytes()),
                     .activation_bytes = ToVector(message.activation_bytes()),
                     .wgrad_bytes = ToVector(message.wgrad_bytes())};
}

v1::PipelineCosts ToProto(const PipelineCosts& costs) {
  v1::PipelineCosts message;
  *message.mutable_shape() = ToProto(costs.shape);
  Assign(costs.forward_ns, message.mutable_forward_ns());
  Assign(costs.input_grad_ns, message.mutable_input_grad_ns());
  Assign(costs.weight_grad_ns, message.mutable_weight_grad_ns());
  AssignMessages(costs.boundaries, message.mutable_boundaries());
  message.set_comm(ToProto(costs.comm));
  if (costs.memory.has_value()) {
    *message.mutable_memory() = ToProto(*costs.memory);
  }
  message.set_epilogue_ns(costs.epilogue_ns);
  return message;
}

absl::StatusOr<PipelineCosts> FromProto(const v1::PipelineCosts& message) {
  PipelineCosts costs;
  GP_ASSIGN_OR_RETURN(costs.shape, Under("shape", FromProto(message.shape())));
  GP_RETURN_IF_ERROR(CheckDurations("forward_ns", message.forward_ns()));
  GP_RETURN_IF_ERROR(CheckDurations("input_grad_ns", message.input_grad_ns()));
  GP_RETURN_IF_ERROR(CheckDurations("weight_grad_ns", message.weight_grad_ns()));
  costs.forward_ns = ToVector(message.forward_ns());
  costs.input_grad_ns = ToVector(message.input_grad_ns());
  costs.weight_grad_ns = ToVector(message.weight_grad_ns());
  GP_ASSIGN_OR_RETURN(costs.boundaries,
                      ConvertMessages<BoundaryCost>("boundaries", message.boundaries(), wire::kMaxStages, &FromProto));
  GP_ASSIGN_OR_RETURN(costs.comm, FromProto(message.comm()));
  if (message.has_memory()) {
    GP_ASSIGN_OR_RETURN(costs.memory, Under("memory", FromProto(message.memory())));
  }
  GP_RETURN_IF_ERROR(CheckDuration("epilogue_ns", message.epilogue_ns()));
  costs.epilogue_ns = message.epilogue_ns();
  GP_RETURN_IF_ERROR(ValidateCosts(costs));
  return costs;
}

v1::Schedule ToProto(const Schedule& schedule) {
  v1::Schedule message;
  *message.mutable_shape() = ToProto(schedule.shape);
  message.set_csv(ToCsv(schedule));
  return message;
}

absl::StatusOr<Schedule> FromProto(const v1::Schedule& message) {
  GP_ASSIGN_OR_RETURN(const PipelineShape shape, Under("shape", FromProto(message.shape())));
  GP_RETURN_IF_ERROR(CheckText("csv", message.csv(), wire::kMaxCsvBytes));
  return ParseCsv(message.csv(), shape);
}

v1::LayerRange ToProto(const LayerRange& range) {
  v1::LayerRange message;
  message.set_first(range.first);
  message.set_last(range.last);
  message.set_has_embedding(range.has_embedding);
  message.set_has_head(range.has_head);
  return message;
}

absl::StatusOr<LayerRange> FromProto(const v1::LayerRange& message) {
  GP_RETURN_IF_ERROR(CheckRange("first", message.first(), 0, kMaxLayers));
  GP_RETURN_IF_ERROR(CheckRange("last", message.last(), message.first() - 1, kMaxLayers));
  return LayerRange{.first = message.first(),
                    .last = message.last(),
                    .has_embedding = message.has_embedding(),
                    .has_head = message.has_head()};
}

v1::ProcessGrid ToProto(const ProcessGrid& grid) {
  v1::ProcessGrid message;
  message.set_pipeline(grid.pipeline);
  message.set_data(grid.data);
  message.set_tensor(grid.tensor);
  return message;
}

absl::StatusOr<ProcessGrid> FromProto(const v1::ProcessGrid& message) {
  GP_RETURN_IF_ERROR(CheckRange("pipeline", message.pipeline(), 1, wire::kMaxRanks));
  GP_RETURN_IF_ERROR(CheckRange("data", message.data(), 1, wire::kMaxRanks / message.pipeline()));
  GP_RETURN_IF_ERROR(CheckRange("tensor", message.tensor(), 1, wire::kMaxRanks / message.pipeline() / message.data()));
  return ProcessGrid{.pipeline = message.pipeline(), .data = message.data(), .tensor = message.tensor()};
}

v1::PipelineRankPlan ToProto(const PipelineRankPlan& rank) {
  v1::PipelineRankPlan message;
  message.set_site(rank.site);
  message.set_peak_bytes(rank.peak_bytes);
  message.set_capacity_bytes(rank.capacity_bytes);
  return message;
}

absl::StatusOr<PipelineRankPlan> FromProto(const v1::PipelineRankPlan& message) {
  GP_RETURN_IF_ERROR(CheckName("site", message.site()));
  GP_RETURN_IF_ERROR(CheckRange("peak_bytes", message.peak_bytes(), 0, wire::kMaxBytes));
  GP_RETURN_IF_ERROR(CheckRange("capacity_bytes", message.capacity_bytes(), 0, wire::kMaxBytes));
  return PipelineRankPlan{
      .site = message.site(), .peak_bytes = message.peak_bytes(), .capacity_bytes = message.capacity_bytes()};
}

v1::StagePlan ToProto(const StagePlan& stage) {
  v1::StagePlan message;
  message.set_pipeline_rank(stage.pipeline_rank);
  *message.mutable_layers() = ToProto(stage.layers);
  return message;
}

absl::StatusOr<StagePlan> FromProto(const v1::StagePlan& message) {
  StagePlan stage{.pipeline_rank = message.pipeline_rank(), .layers = {}};
  GP_RETURN_IF_ERROR(CheckRange("pipeline_rank", message.pipeline_rank(), 0, wire::kMaxRanks - 1));
  GP_ASSIGN_OR_RETURN(stage.layers, Under("layers", FromProto(message.layers())));
  return stage;
}

v1::DevicePlace ToProto(const DevicePlace& place) {
  v1::DevicePlace message;
  message.set_node(place.node);
  message.set_device(place.device);
  return message;
}

absl::StatusOr<DevicePlace> FromProto(const v1::DevicePlace& message) {
  GP_RETURN_IF_ERROR(CheckRange("node", message.node(), 0, kMaxInt32));
  GP_RETURN_IF_ERROR(CheckRange("device", message.device(), 0, wire::kMaxDevicesPerNode - 1));
  return DevicePlace{.node = message.node(), .device = message.device()};
}

v1::IdleDevices ToProto(const IdleDevices& idle) {
  v1::IdleDevices message;
  message.set_site(idle.site);
  message.set_node(idle.node);
  Assign(idle.devices, message.mutable_devices());
  return message;
}

absl::StatusOr<IdleDevices> FromProto(const v1::IdleDevices& message) {
  GP_RETURN_IF_ERROR(CheckName("site", message.site()));
  GP_RETURN_IF_ERROR(CheckRange("node", message.node(), 0, kMaxInt32));
  GP_RETURN_IF_ERROR(CheckDevices(message.devices()));
  return IdleDevices{.site = message.site(), .node = message.node(), .devices = ToVector(message.devices())};
}

v1::Plan ToProto(const Plan& plan) {
  v1::Plan message;
  message.set_schedule(ToProto(plan.schedule));
  message.set_comm(ToProto(plan.comm));
  message.set_micro_batch_size(plan.micro_batch_size);
  message.set_sequence_length(plan.sequence_length);
  Assign(plan.delta_n, message.mutable_delta_n());
  message.set_micro_batches(plan.micro_batches);
  message.set_recompute(ToProto(plan.recompute));
  *message.mutable_grid() = ToProto(plan.grid);
  AssignMessages(plan.pipeline_ranks, message.mutable_pipeline_ranks());
  AssignMessages(plan.stages, message.mutable_stages());
  AssignMessages(plan.devices, message.mutable_devices());
  AssignMessages(plan.idle, message.mutable_idle());
  return message;
}

absl::StatusOr<Plan> FromProto(const v1::Plan& message) {
  Plan plan;
  GP_ASSIGN_OR_RETURN(plan.schedule, FromProto(message.schedule()));
  GP_ASSIGN_OR_RETURN(plan.comm, FromProto(message.comm()));
  GP_ASSIGN_OR_RETURN(plan.recompute, FromProto(message.recompute()));
  GP_RETURN_IF_ERROR(CheckRange("micro_batch_size", message.micro_batch_size(), 1, kMaxInt32));
  GP_RETURN_IF_ERROR(CheckRange("sequence_length", message.sequence_length(), 1, kMaxInt32));
  GP_RETURN_IF_ERROR(CheckRange("micro_batches", message.micro_batches(), 1, kMaxInt32));
  GP_ASSIGN_OR_RETURN(plan.grid, Under("grid", FromProto(message.grid())));
  GP_ASSIGN_OR_RETURN(plan.pipeline_ranks, ConvertMessages<PipelineRankPlan>("pipeline_ranks", message.pipeline_ranks(),
                                                                             wire::kMaxRanks, &FromProto));
  GP_ASSIGN_OR_RETURN(plan.stages,
                      ConvertMessages<StagePlan>("stages", message.stages(), wire::kMaxStages, &FromProto));
  GP_ASSIGN_OR_RETURN(plan.devices,
                      ConvertMessages<DevicePlace>("devices", message.devices(), wire::kMaxRanks, &FromProto));
  GP_ASSIGN_OR_RETURN(plan.idle, ConvertMessages<IdleDevices>("idle", message.idle(), wire::kMaxStages, &FromProto));
  GP_RETURN_IF_ERROR(CheckRanks(plan));
  GP_RETURN_IF_ERROR(CheckEach("delta_n", message.delta_n(), message.stages_size() - 1, 0, kMaxDeltaN));
  plan.delta_n = ToVector(message.delta_n());
  plan.micro_batch_size = message.micro_batch_size();
  plan.sequence_length = message.sequence_length();
  plan.micro_batches = message.micro_batches();
  return plan;
}

v1::Prediction ToProto(const Prediction& prediction) {
  v1::Prediction message;
  message.set_iteration_ns(prediction.iteration_ns);
  message.set_bubble_ratio(prediction.bubble_ratio);
  message.set_lower_bound_ns(prediction.lower_bound_ns);
  message.set_tokens_per_s(prediction.tokens_per_s);
  message.set_wan_bytes_per_iteration(prediction.wan_bytes_per_iteration);
  return message;
}

absl::StatusOr<Prediction> FromProto(const v1::Prediction& message) {
  GP_RETURN_IF_ERROR(CheckDuration("iteration_ns", message.iteration_ns()));
  GP_RETURN_IF_ERROR(CheckFinite("bubble_ratio", message.bubble_ratio(), 0));
  GP_RETURN_IF_ERROR(CheckDuration("lower_bound_ns", message.lower_bound_ns()));
  GP_RETURN_IF_ERROR(CheckFinite("tokens_per_s", message.tokens_per_s(), 0));
  GP_RETURN_IF_ERROR(CheckRange("wan_bytes_per_iteration", message.wan_bytes_per_iteration(), 0, int64_t{1} << 62));
  return Prediction{.iteration_ns = message.iteration_ns(),
                    .bubble_ratio = message.bubble_ratio(),
                    .lower_bound_ns = message.lower_bound_ns(),
                    .tokens_per_s = message.tokens_per_s(),
                    .wan_bytes_per_iteration = message.wan_bytes_per_iteration()};
}

}  // namespace geopipe
