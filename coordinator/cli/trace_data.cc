#include "coordinator/cli/trace_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "coordinator/cli/render/format.h"
#include "coordinator/cli/render/timeline.h"
#include "optimizer/base/status_macros.h"
#include "proto/wire/control_wire.h"
#include "proto/wire/schedule_wire.h"

namespace geopipe {
namespace {

std::string StageName(const Plan& plan, int32_t stage) {
  const DevicePlace& place = plan.DevicesOf(plan.stages[stage].pipeline_rank).front();
  return fmt::format("stage {} ({}/{}/{})", stage, plan.SiteOf(stage), place.node, place.device);
}

// "east to west (boundary 0, activations)".
std::string LinkName(const Plan& plan, int32_t boundary, bool upwards) {
  const std::string& below = plan.SiteOf(boundary);
  const std::string& above = plan.SiteOf(boundary + 1);
  return fmt::format("{} to {} (boundary {}, {})", upwards ? below : above, upwards ? above : below, boundary,
                     upwards ? "activations" : "gradients");
}

std::string Name(const Deviation& deviation, const Plan& plan) {
  switch (deviation.kind) {
    case Deviation::Kind::kLink:
      return fmt::format("the link from {}", LinkName(plan, deviation.index, deviation.upwards));
    case Deviation::Kind::kStage:
    case Deviation::Kind::kSender:
    case Deviation::Kind::kReceiver:
      return StageName(plan, deviation.index);
    case Deviation::Kind::kUpdate:
      break;
  }
  return "the weight update between two iterations";
}

// Name in JSON of each kind of deviation, and what it is about.
constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kDeviations{{
    {"stage", "forward and backward of a micro-batch take"},
    {"link", "a message takes"},
    {"sender", "an action waits"},
    {"receiver", "an action waits"},
    {"update", "it takes"},
}};

std::string Change(int64_t predicted_ns, int64_t measured_ns) {
  return predicted_ns == 0 ? "-" : fmt::format("{:+.1f} %", 100.0 * Excess(measured_ns, predicted_ns));
}

}  // namespace

absl::StatusOr<TraceData> TraceDataOf(const v1::GetTraceResponse& response) {
  TraceData data;
  GP_ASSIGN_OR_RETURN(data.plan, FromProto(response.job().plan()));
  GP_ASSIGN_OR_RETURN(data.schedule, FromProto(response.job().schedule()));
  GP_ASSIGN_OR_RETURN(data.costs, FromProto(response.job().costs()));
  for (const v1::IterationTimeline& timeline : response.iterations()) {
    GP_ASSIGN_OR_RETURN(const std::vector<std::vector<ActionTiming>> actions, ActionsOf(timeline, data.plan));
    data.iterations.push_back(
        MakeMeasuredIteration(timeline.iteration(), timeline.duration_ns(), actions, data.costs.shape));
    for (int32_t pipeline = 0; pipeline < data.plan.grid.pipeline; ++pipeline) {
      const int64_t error_ns = timeline.ranks(data.plan.grid.IndexOf({.pipeline = pipeline})).clock_error_ns();
      data.clock_error_ns = std::min(data.clock_error_ns, error_ns) < 0 ? -1 : std::max(data.clock_error_ns, error_ns);
    }
  }
  if (data.iterations.empty()) {
    return absl::InvalidArgumentError("the coordinator sent no timeline");
  }
  return data;
}

absl::StatusOr<std::optional<ComparedRun>> CompareRun(ControlClient& client, const std::string& name, int64_t run) {
  const absl::StatusOr<v1::GetTraceResponse> response = client.GetTrace(name, run);
  if (absl::IsFailedPrecondition(response.status())) {
    return std::nullopt;
  }
  GP_RETURN_IF_ERROR(response.status());
  GP_ASSIGN_OR_RETURN(TraceData data, TraceDataOf(*response));
  GP_ASSIGN_OR_RETURN(PlanComparison comparison, ComparePlan(data.schedule, data.costs, data.iterations));
  return ComparedRun{std::move(data), std::move(comparison)};
}

absl::StatusOr<std::string> TraceJson(const TraceData& data) {
  GP_ASSIGN_OR_RETURN(const SimulationResult predicted, Simulate(data.schedule, data.costs, {.record_timeline = true}));
  std::vector<std::string> names;
  for (int32_t rank = 0; rank < data.plan.grid.pipeline; ++rank) {
    const DevicePlace& place = data.plan.DevicesOf(rank).front();
    names.push_back(fmt::format("pipeline rank {} ({}/{}/{})", rank, data.plan.pipeline_ranks[rank].site, place.node,
                                place.device));
  }
  const MeasuredIteration& measured = data.iterations.back();
  return ToChromeTrace(
      {{fmt::format("measured, iteration {}", measured.iteration), &measured.timeline, &measured.messages, names},
       {"predicted", &predicted.timeline, &predicted.messages, names}},
      data.costs.shape);
}

std::string ComparisonText(const PlanComparison& comparison, const Plan& plan, int32_t columns) {
  Table stages({"STAGE", "FORWARD PREDICTED", "MEASURED", "CHANGE", "BACKWARD PREDICTED", "MEASURED", "CHANGE"});
  for (size_t i = 0; i < comparison.stages.size(); ++i) {
    const StageComparison& stage = comparison.stages[i];
    stages.AddRow({StageName(plan, static_cast<int32_t>(i)), HumanDuration(stage.predicted_forward_ns),
                   HumanDuration(stage.measured_forward_ns),
                   Change(stage.predicted_forward_ns, stage.measured_forward_ns),
                   HumanDuration(stage.predicted_backward_ns), HumanDuration(stage.measured_backward_ns),
                   Change(stage.predicted_backward_ns, stage.measured_backward_ns)});
  }
  std::string text = stages.Render(columns);
  if (!comparison.links.empty()) {
    Table links({"LINK", "CROSSING PREDICTED", "MEASURED", "CHANGE"});
    for (const LinkComparison& link : comparison.links) {
      links.AddRow({LinkName(plan, link.boundary, link.upwards), HumanDuration(link.predicted_ns),
                    HumanDuration(link.measured_ns), Change(link.predicted_ns, link.measured_ns)});
    }
    text += fmt::format("\n{}", links.Render(columns));
  }
  return text;
}

std::string LargestDeviation(const PlanComparison& comparison, const Plan& plan) {
  if (comparison.deviations.empty()) {
    return fmt::format("none: no stage and no link changes the iteration by more than {}",
                       HumanPercent(kNotableEffect));
  }
  const Deviation& deviation = comparison.deviations.front();
  const bool slower = deviation.measured_ns > deviation.predicted_ns;
  const double effect = Ratio(std::abs(deviation.effect_ns), comparison.predicted_iteration_ns);
  std::string how = fmt::format("is {} than predicted", slower ? "slower" : "faster");
  if (deviation.kind == Deviation::Kind::kSender) {
    how = "is held by its sends";
  } else if (deviation.kind == Deviation::Kind::kReceiver) {
    how = "begins late though its inputs are there";
  }
  return fmt::format("{} {}: {} {} instead of {}; this alone makes the iteration {} ({}) {}", Name(deviation, plan),
                     how, kDeviations[static_cast<size_t>(deviation.kind)].second, HumanDuration(deviation.measured_ns),
                     HumanDuration(deviation.predicted_ns), HumanDuration(std::abs(deviation.effect_ns)),
                     HumanPercent(effect), deviation.effect_ns > 0 ? "longer" : "shorter");
}

Json ComparisonJson(const PlanComparison& comparison, const Plan& plan) {
  Json json{{"predicted_iteration_s", Seconds(comparison.predicted_iteration_ns)},
            {"measured_iteration_s", Seconds(comparison.measured_iteration_ns)},
            {"start_error_p95_s", Seconds(comparison.start_error_p95_ns)},
            {"stages", Json::array()},
            {"links", Json::array()},
            {"deviations", Json::array()},
            {"largest_deviation", LargestDeviation(comparison, plan)}};
  for (size_t i = 0; i < comparison.stages.size(); ++i) {
    const StageComparison& stage = comparison.stages[i];
    json["stages"].push_back(
        {{"index", i},
         {"forward_s",
          {{"predicted", Seconds(stage.predicted_forward_ns)}, {"measured", Seconds(stage.measured_forward_ns)}}},
         {"backward_s",
          {{"predicted", Seconds(stage.predicted_backward_ns)}, {"measured", Seconds(stage.measured_backward_ns)}}}});
  }
  for (const LinkComparison& link : comparison.links) {
    const std::string& below = plan.SiteOf(link.boundary);
    const std::string& above = plan.SiteOf(link.boundary + 1);
    json["links"].push_back(
        {{"boundary", link.boundary},
         {"from", link.upwards ? below : above},
         {"to", link.upwards ? above : below},
         {"crossing_s", {{"predicted", Seconds(link.predicted_ns)}, {"measured", Seconds(link.measured_ns)}}}});
  }
  for (const Deviation& deviation : comparison.deviations) {
    json["deviations"].push_back({{"kind", kDeviations[static_cast<size_t>(deviation.kind)].first},
                                  {"index", deviation.index},
                                  {"predicted_s", Seconds(deviation.predicted_ns)},
                                  {"measured_s", Seconds(deviation.measured_ns)},
                                  {"effect_s", static_cast<double>(deviation.effect_ns) * 1e-9}});
  }
  return json;
}

}  // namespace geopipe
