#include "optimizer/simulator/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "optimizer/base/status_macros.h"

namespace geopipe {
namespace {

// The lower of the middle two; 0 without values.
int64_t Median(std::vector<int64_t> values) {
  if (values.empty()) {
    return 0;
  }
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Durations of each kind of action of each stage.
using Durations = std::map<std::pair<int32_t, ActionKind>, std::vector<int64_t>>;

Durations DurationsOf(std::span<const MeasuredIteration> measured) {
  Durations durations;
  for (const MeasuredIteration& iteration : measured) {
    for (const std::vector<ActionTiming>& device : iteration.timeline) {
      for (const auto& [action, start_ns, end_ns] : device) {
        durations[{action.stage, action.kind}].push_back(end_ns - start_ns);
      }
    }
  }
  return durations;
}

int64_t MedianOf(const Durations& durations, int32_t stage, ActionKind kind) {
  const auto found = durations.find({stage, kind});
  return found == durations.end() ? 0 : Median(found->second);
}

// Crossing times by boundary and direction.
using Crossings = std::map<std::pair<int32_t, bool>, std::vector<int64_t>>;

void AddCrossings(const std::vector<MessageTiming>& messages, Crossings& crossings) {
  for (const MessageTiming& message : messages) {
    const bool upwards = message.send.kind == ActionKind::kSendForward;
    const int32_t boundary = upwards ? message.send.stage : message.send.stage - 1;
    crossings[{boundary, upwards}].push_back(message.arrive_ns - message.ready_ns);
  }
}

class Comparison {
 public:
  Comparison(const Schedule& schedule, const PipelineCosts& costs, std::span<const MeasuredIteration> measured)
      : schedule_(schedule), costs_(costs), measured_(measured) {}

  absl::StatusOr<PlanComparison> Run() {
    for (const MeasuredIteration& iteration : measured_) {
      if (std::ssize(iteration.timeline) != costs_.shape.devices ||
          std::ranges::any_of(iteration.timeline, [](const auto& device) { return device.empty(); })) {
        return absl::InvalidArgumentError(
            fmt::format("iteration {} was not measured on all {} devices", iteration.iteration, costs_.shape.devices));
      }
    }
    if (measured_.empty()) {
      return absl::InvalidArgumentError("no iteration was measured");
    }
    GP_ASSIGN_OR_RETURN(const SimulationResult predicted, Simulate(schedule_, costs_, {.record_timeline = true}));
    result_.predicted_iteration_ns = predicted.iteration_ns;
    std::vector<int64_t> durations_ns;
    for (const MeasuredIteration& iteration : measured_) {
      durations_ns.push_back(iteration.duration_ns);
    }
    result_.measured_iteration_ns = Median(std::move(durations_ns));
    CompareStarts(predicted);
    GP_RETURN_IF_ERROR(CompareStages());
    GP_RETURN_IF_ERROR(CompareLinks(predicted));
    GP_RETURN_IF_ERROR(CompareDelays());
    CompareUpdate();
    const double notable = kNotableEffect * static_cast<double>(result_.predicted_iteration_ns);
    std::erase_if(result_.deviations, [&](const Deviation& deviation) {
      return static_cast<double>(std::abs(deviation.effect_ns)) < notable;
    });
    std::ranges::stable_sort(result_.deviations, std::greater<>(),
                             [](const Deviation& deviation) { return std::abs(deviation.effect_ns); });
    return std::move(result_);
  }

 private:
  absl::Status AddDeviation(Deviation deviation, const PipelineCosts& changed) {
    GP_ASSIGN_OR_RETURN(const SimulationResult simulated, Simulate(schedule_, changed));
    deviation.effect_ns = simulated.iteration_ns - result_.predicted_iteration_ns;
    result_.deviations.push_back(deviation);
    return absl::OkStatus();
  }

  // Devices run their actions in the schedule's order, so the n-th measured action is the n-th predicted one.
  void CompareStarts(const SimulationResult& predicted) {
    std::vector<int64_t> ranks_ns;
    const int64_t warm_up = WarmUpIterations(measured_.back().iteration + 1);
    for (const MeasuredIteration& iteration : measured_) {
      if (iteration.iteration < warm_up) {
        continue;
      }
      std::vector<int64_t> errors_ns;
      for (size_t device = 0; device < iteration.timeline.size(); ++device) {
        const size_t actions = std::min(iteration.timeline[device].size(), predicted.timeline[device].size());
        for (size_t i = 0; i < actions; ++i) {
          errors_ns.push_back(
              std::abs(iteration.timeline[device][i].start_ns - predicted.timeline[device][i].start_ns));
        }
      }
      if (!errors_ns.empty()) {
        const auto rank = errors_ns.begin() + static_cast<std::ptrdiff_t>((errors_ns.size() - 1) * 95 / 100);
        std::nth_element(errors_ns.begin(), rank, errors_ns.end());
        ranks_ns.push_back(*rank);
      }
    }
    result_.start_error_p95_ns = Median(std::move(ranks_ns));
  }

  absl::Status CompareStages() {
    const Durations durations = DurationsOf(measured_);
    for (int32_t stage = 0; stage < costs_.shape.stages; ++stage) {
      const int64_t full_ns = MedianOf(durations, stage, ActionKind::kBackward);
      const int64_t input_ns = MedianOf(durations, stage, ActionKind::kInputGradient);
      const int64_t weight_ns = MedianOf(durations, stage, ActionKind::kWeightGradient);
      const StageComparison compared{.predicted_forward_ns = costs_.forward_ns[stage],
                                     .measured_forward_ns = MedianOf(durations, stage, ActionKind::kForward),
                                     .predicted_backward_ns = costs_.BackwardNs(stage),
                                     .measured_backward_ns = full_ns + input_ns + weight_ns};
      PipelineCosts changed = costs_;
      changed.forward_ns[stage] = compared.measured_forward_ns;
      changed.input_grad_ns[stage] = full_ns + input_ns;
      if (!changed.weight_grad_ns.empty()) {
        changed.weight_grad_ns[stage] = weight_ns;
      }
      GP_RETURN_IF_ERROR(AddDeviation({.kind = Deviation::Kind::kStage,
                                       .index = stage,
                                       .predicted_ns = compared.predicted_forward_ns + compared.predicted_backward_ns,
                                       .measured_ns = compared.measured_forward_ns + compared.measured_backward_ns},
                                      changed));
      result_.stages.push_back(compared);
    }
    return absl::OkStatus();
  }

  absl::Status CompareLinks(const SimulationResult& predicted) {
    Crossings expected;
    AddCrossings(predicted.messages, expected);
    Crossings taken;
    for (const MeasuredIteration& iteration : measured_) {
      AddCrossings(iteration.messages, taken);
    }
    for (auto& [key, times_ns] : expected) {
      const auto found = taken.find(key);
      if (found == taken.end()) {
        continue;
      }
      const LinkComparison link{.boundary = key.first,
                                .upwards = key.second,
                                .predicted_ns = Median(std::move(times_ns)),
                                .measured_ns = Median(std::move(found->second))};
      GP_RETURN_IF_ERROR(AddDeviation({.kind = Deviation::Kind::kLink,
                                       .index = link.boundary,
                                       .upwards = link.upwards,
                                       .predicted_ns = link.predicted_ns,
                                       .measured_ns = link.measured_ns},
                                      WithLink(link)));
      result_.links.push_back(link);
    }
    return absl::OkStatus();
  }

  // The costs with the crossing's latency changed by the difference that its messages showed; all boundaries of a
  // shared link alike.
  PipelineCosts WithLink(const LinkComparison& link) const {
    PipelineCosts changed = costs_;
    const BoundaryCost& compared = costs_.boundaries[link.boundary];
    for (BoundaryCost& boundary : changed.boundaries) {
      const bool same =
          &boundary == &changed.boundaries[link.boundary] || (!compared.link.empty() && boundary.link == compared.link);
      if (same) {
        const int64_t more_ns = link.measured_ns - link.predicted_ns;
        boundary.latency_ns = std::max<int64_t>(0, boundary.latency_ns + more_ns);
        boundary.acknowledgement_ns =
            boundary.acknowledgement_ns == 0 ? 0 : std::max<int64_t>(0, boundary.acknowledgement_ns + more_ns);
      }
    }
    return changed;
  }

  // Adds the mean delay of a stage's actions in the median iteration to each of them. The plan has no such delays; a
  // blocking sender's hold counts as its link's.
  absl::Status CompareDelays() {
    for (int32_t stage = 0; stage < costs_.shape.stages; ++stage) {
      if (costs_.comm != CommMode::kBlocking) {
        GP_RETURN_IF_ERROR(AddDelay(Deviation::Kind::kSender, stage, MeanDelay(stage, &ActionDelay::sends_ns)));
      }
      GP_RETURN_IF_ERROR(AddDelay(Deviation::Kind::kReceiver, stage, MeanDelay(stage, &ActionDelay::late_ns)));
    }
    return absl::OkStatus();
  }

  int64_t MeanDelay(int32_t stage, int64_t ActionDelay::*part) const {
    std::vector<int64_t> means_ns;
    for (const MeasuredIteration& iteration : measured_) {
      int64_t sum_ns = 0;
      int64_t count = 0;
      for (const ActionDelay& delay : iteration.delays) {
        if (delay.action.stage == stage) {
          sum_ns += delay.*part;
          ++count;
        }
      }
      means_ns.push_back(count == 0 ? 0 : sum_ns / count);
    }
    return Median(std::move(means_ns));
  }

  absl::Status AddDelay(Deviation::Kind kind, int32_t stage, int64_t delay_ns) {
    PipelineCosts changed = costs_;
    changed.forward_ns[stage] += delay_ns;
    changed.input_grad_ns[stage] += delay_ns;
    return AddDeviation({.kind = kind, .index = stage, .predicted_ns = 0, .measured_ns = delay_ns}, changed);
  }

  // Compares the time between the end of device 0's last action and its next iteration.
  void CompareUpdate() {
    std::vector<int64_t> gaps_ns;
    for (const MeasuredIteration& iteration : measured_) {
      gaps_ns.push_back(iteration.duration_ns - iteration.timeline.front().back().end_ns);
    }
    const int64_t gap_ns = Median(std::move(gaps_ns));
    result_.deviations.push_back({.kind = Deviation::Kind::kUpdate,
                                  .predicted_ns = costs_.epilogue_ns,
                                  .measured_ns = gap_ns,
                                  .effect_ns = gap_ns - costs_.epilogue_ns});
  }

  const Schedule& schedule_;
  const PipelineCosts& costs_;
  const std::span<const MeasuredIteration> measured_;
  PlanComparison result_;
};

}  // namespace

absl::StatusOr<PlanComparison> ComparePlan(const Schedule& schedule, const PipelineCosts& costs,
                                           std::span<const MeasuredIteration> measured) {
  return Comparison(schedule, costs, measured).Run();
}

}  // namespace geopipe
