#include "optimizer/plan/report/plan_explanation.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <numeric>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "optimizer/model/plan/plan_memory.h"
#include "optimizer/plan/space/plan_space.h"
#include "optimizer/schedule/schedule_table.h"

namespace geopipe {
namespace {

double Part(int64_t ns, int64_t of_ns) { return of_ns == 0 ? 0 : static_cast<double>(ns) / static_cast<double>(of_ns); }

int64_t WorkNs(const PipelineCosts& costs, int32_t device) {
  int64_t work_ns = 0;
  for (int32_t stage = 0; stage < costs.shape.stages; ++stage) {
    const auto index = static_cast<size_t>(stage);
    work_ns += costs.shape.placement[index] == device ? costs.forward_ns[index] + costs.BackwardNs(stage) : 0;
  }
  return work_ns;
}

void ExplainTime(const DeviceTime& time, int64_t iteration_ns, StageExplanation& stage) {
  int64_t steady_ns = 0;
  IdleTime worst;
  for (const IdleTime& idle : time.idle) {
    if (idle.cause == IdleCause::kWarmUp) {
      stage.warm_up = Part(idle.ns, iteration_ns);
    } else if (idle.cause == IdleCause::kDrain) {
      stage.drain = Part(idle.ns, iteration_ns);
    } else if (idle.cause != IdleCause::kEpilogue) {
      worst = steady_ns == 0 ? idle : worst;  // the longest comes first
      steady_ns += idle.ns;
    }
  }
  stage.steady = Part(steady_ns, iteration_ns);
  if (time.steady_ns == 0) {
    stage.limit = StageLimit::kNoSteady;
    return;
  }
  if (1 - Part(steady_ns, time.steady_ns) >= kBusyEnough) {
    stage.limit = StageLimit::kCompute;
    return;
  }
  stage.limit = worst.cause == IdleCause::kLink   ? StageLimit::kLink
                : worst.cause == IdleCause::kHold ? StageLimit::kHold
                                                  : StageLimit::kStage;
  stage.index = worst.index;
  stage.limit_part = Part(worst.ns, iteration_ns);
}

// Explains a stage's memory. `more_message_bytes`: for one more micro-batch in flight.
void ExplainMemory(const StageMemory& memory, int64_t more_message_bytes, const PipelineRankPlan& place,
                   StageExplanation& stage) {
  stage.peak_bytes = place.peak_bytes;
  stage.capacity_bytes = place.capacity_bytes;
  const std::array<std::pair<std::string_view, int64_t>, 5> parts = {
      {{"model states", memory.model_state_bytes()},
       {"states kept for recovery", memory.recovery_bytes},
       {"workspace", memory.workspace_bytes},
       {"transport buffers", memory.transport_bytes},
       {"activations", std::max<int64_t>(0, place.peak_bytes - memory.static_bytes())}}};
  const auto* const largest =
      std::max_element(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  stage.largest_memory = largest->first;
  stage.largest_memory_bytes = largest->second;
  const int64_t room_bytes = std::max<int64_t>(0, place.capacity_bytes - place.peak_bytes);
  const int64_t more_bytes = memory.activation_bytes + more_message_bytes;
  stage.room_micro_batches = more_bytes == 0 ? 0 : room_bytes / more_bytes;
}

std::vector<BubblePart> BubbleParts(const std::vector<DeviceTime>& times, int64_t iteration_ns) {
  std::map<std::pair<IdleCause, int32_t>, int64_t> total_ns;
  for (const DeviceTime& time : times) {
    for (const IdleTime& idle : time.idle) {
      total_ns[{idle.cause, idle.index}] += idle.ns;
    }
  }
  std::vector<BubblePart> parts;
  parts.reserve(total_ns.size());
  for (const auto& [cause, ns] : total_ns) {
    parts.push_back({cause.first, cause.second, Part(ns, iteration_ns) / static_cast<double>(times.size())});
  }
  std::stable_sort(parts.begin(), parts.end(),
                   [](const BubblePart& a, const BubblePart& b) { return a.ratio > b.ratio; });
  return parts;
}

class Remedies {
 public:
  Remedies(const JobSpec& job, const PlanResult& result) : job_(job), result_(result) {}

  absl::StatusOr<std::vector<Remedy>> Find() {
    GP_RETURN_IF_ERROR(ChangeLinks());
    GP_RETURN_IF_ERROR(ChangeStages());
    if (RowOf(result_.plan.schedule).uses_delta_n) {
      GP_RETURN_IF_ERROR(RaiseDeltaN());
    }
    std::erase_if(remedies_, [](const Remedy& remedy) { return remedy.gain < kWorthwhile; });
    std::stable_sort(remedies_.begin(), remedies_.end(),
                     [](const Remedy& a, const Remedy& b) { return a.gain > b.gain; });
    return std::move(remedies_);
  }

 private:
  absl::Status Try(Remedy remedy, const Schedule& schedule, const PipelineCosts& costs) {
    GP_ASSIGN_OR_RETURN(const SimulationResult simulated, Simulate(schedule, costs));
    remedy.iteration_ns = simulated.iteration_ns;
    remedy.gain = Part(result_.prediction.iteration_ns - simulated.iteration_ns, result_.prediction.iteration_ns);
    remedies_.push_back(remedy);
    return absl::OkStatus();
  }

  static bool SharesLink(const BoundaryCost& a, const BoundaryCost& b) { return !a.link.empty() && a.link == b.link; }

  absl::Status ChangeLinks() {
    PipelineCosts none = result_.costs;
    bool any = false;
    for (size_t boundary = 0; boundary < result_.costs.boundaries.size(); ++boundary) {
      const BoundaryCost& crossing = result_.costs.boundaries[boundary];
      if (!crossing.crosses) {
        continue;
      }
      any = true;
      none.boundaries[boundary].latency_ns = 0;
      none.boundaries[boundary].serialization_ns = 0;
      none.boundaries[boundary].acknowledgement_ns = 0;
      PipelineCosts wider = result_.costs;
      PipelineCosts nearer = result_.costs;
      for (size_t other = 0; other < result_.costs.boundaries.size(); ++other) {
        if (other == boundary || SharesLink(crossing, result_.costs.boundaries[other])) {
          wider.boundaries[other].serialization_ns /= 2;
          nearer.boundaries[other].latency_ns /= 2;
          nearer.boundaries[other].acknowledgement_ns /= 2;
        }
      }
      const auto index = static_cast<int32_t>(boundary);
      GP_RETURN_IF_ERROR(Try({.kind = Remedy::Kind::kBandwidth, .boundary = index}, result_.schedule, wider));
      GP_RETURN_IF_ERROR(Try({.kind = Remedy::Kind::kLatency, .boundary = index}, result_.schedule, nearer));
    }
    return any ? Try({.kind = Remedy::Kind::kNoDelay}, result_.schedule, none) : absl::OkStatus();
  }

  absl::Status ChangeStages() {
    const PipelineCosts& costs = result_.costs;
    int32_t slowest = 0;
    for (int32_t device = 1; device < costs.shape.devices; ++device) {
      slowest = WorkNs(costs, device) > WorkNs(costs, slowest) ? device : slowest;
    }
    PipelineCosts faster = costs;
    PipelineCosts even = costs;
    for (auto* durations : {&faster.forward_ns, &faster.input_grad_ns, &faster.weight_grad_ns}) {
      for (size_t stage = 0; stage < durations->size(); ++stage) {
        (*durations)[stage] -= costs.shape.placement[stage] == slowest ? (*durations)[stage] / 10 : 0;
      }
    }
    for (auto* durations : {&even.forward_ns, &even.input_grad_ns, &even.weight_grad_ns}) {
      const int64_t total_ns = std::accumulate(durations->begin(), durations->end(), int64_t{0});
      const auto stages = static_cast<int64_t>(durations->size());
      durations->assign(durations->size(), stages == 0 ? 0 : (total_ns + stages - 1) / stages);
    }
    GP_RETURN_IF_ERROR(Try({.kind = Remedy::Kind::kFasterStage, .stage = slowest}, result_.schedule, faster));
    return Try({.kind = Remedy::Kind::kEvenStages}, result_.schedule, even);
  }

  absl::Status RaiseDeltaN() {
    const std::vector<int32_t> crossings = result_.plan.Crossings();
    const size_t changes = crossings.size() + (crossings.size() > 1 ? 1 : 0);
    for (size_t change = 0; change < changes; ++change) {
      const bool all = change == crossings.size();
      Plan plan = result_.plan;
      for (size_t i = 0; i < plan.delta_n.size(); ++i) {
        plan.delta_n[i] += all || i == change ? 1 : 0;
      }
      GP_RETURN_IF_ERROR(TryDeltaN(plan, all ? -1 : crossings[change]));
    }
    return absl::OkStatus();
  }

  absl::Status TryDeltaN(const Plan& plan, int32_t boundary) {
    const std::vector<int32_t> boundary_delta_n = BoundaryDeltaN(plan);
    GP_ASSIGN_OR_RETURN(const Schedule schedule, MakeSchedule(plan.schedule, result_.costs.shape, boundary_delta_n,
                                                              ScheduleCostsOf(result_.costs)));
    Remedy remedy{.kind = Remedy::Kind::kDeltaN, .boundary = boundary};
    const auto stages = static_cast<int32_t>(plan.stages.size());
    const std::vector<StageMemory> memory = MemoryOfPlan(job_, plan);
    const std::vector<int64_t> in_flight = InFlightOfPlan(plan);
    for (int32_t stage = stages - 1; stage >= 0; --stage) {
      const int64_t need_bytes = memory[stage].static_bytes() + memory[stage].activation_bytes * in_flight[stage];
      const int64_t lacking_bytes = need_bytes - plan.pipeline_ranks[stage].capacity_bytes;
      if (lacking_bytes > remedy.lacking_bytes) {
        remedy.stage = stage;
        remedy.lacking_bytes = lacking_bytes;
      }
    }
    return Try(remedy, schedule, result_.costs);
  }

  const JobSpec& job_;
  const PlanResult& result_;
  std::vector<Remedy> remedies_;
};

}  // namespace

absl::StatusOr<PlanExplanation> ExplainPlan(const JobSpec& request, const PlanResult& result,
                                            const SimulationResult& simulated) {
  const JobSpec job = JobOfPlan(request, result);
  PlanExplanation explanation;
  const std::vector<DeviceTime> times = FindIdleCauses(simulated, result.costs);
  explanation.bubble = BubbleParts(times, simulated.iteration_ns);
  GP_ASSIGN_OR_RETURN(explanation.remedies, Remedies(job, result).Find());
  const std::vector<StageNeeds> needs = NeedsOfPlan(job, result.plan);
  const std::vector<StageFlow> flows = FlowsOf(InFlightOfSchedule(result.schedule), result.plan.comm);
  for (int32_t rank = 0; rank < result.plan.grid.pipeline; ++rank) {
    StageExplanation& explained = explanation.stages.emplace_back();
    explained.work_ns = WorkNs(result.costs, rank);
    ExplainTime(times[rank], simulated.iteration_ns, explained);
    StageMemory memory;
    int64_t more_message_bytes = 0;
    for (size_t stage = 0; stage < needs.size(); ++stage) {
      if (result.plan.stages[stage].pipeline_rank == rank) {
        memory += needs[stage].At(flows[stage]);
        more_message_bytes += needs[stage].MoreMessageBytes(flows[stage]);
      }
    }
    ExplainMemory(memory, more_message_bytes, result.plan.pipeline_ranks[rank], explained);
    for (const Remedy& remedy : explanation.remedies) {
      if (remedy.kind == Remedy::Kind::kDeltaN && remedy.stage == rank && explained.limit != StageLimit::kMemory) {
        explained.limit = StageLimit::kMemory;
        explained.index = remedy.boundary;
        explained.limit_part = remedy.gain;
      }
    }
  }
  return explanation;
}

}  // namespace geopipe
