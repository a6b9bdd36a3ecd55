#include "optimizer/plan/report/memory_breakdown.h"

#include <algorithm>
#include <cstddef>

#include "optimizer/base/check.h"
#include "optimizer/model/cost_model.h"
#include "optimizer/model/memory_model.h"
#include "optimizer/model/plan/plan_costs.h"
#include "optimizer/model/plan/plan_memory.h"

namespace geopipe {
namespace {

int64_t LogitsBytes(const JobSpec& job, const Plan& plan) {
  const ExecutionConfig config = ConfigOfPlan(job, plan, plan.stages.back().pipeline_rank);
  const std::vector<KeptTensor> head = HeadActivations(job.model, config);
  const auto logits = std::ranges::find(head, "grad_logits", &KeptTensor::name);
  GP_CHECK(logits != head.end());
  return logits->bytes;
}

// Micro-batches that a device's stages hold.
struct Held {
  std::vector<int64_t> in_flight;     // by stage
  std::vector<int64_t> weight_grads;  // by stage: between I and W
  int64_t bytes = 0;
};

void Take(const Action& action, const std::vector<StageMemory>& stages, Held& held) {
  const StageMemory& memory = stages[action.stage];
  int64_t& in_flight = held.in_flight[action.stage];
  int64_t& weight_grads = held.weight_grads[action.stage];
  const int64_t before = in_flight * memory.activation_bytes + weight_grads * memory.weight_grad_bytes;
  in_flight += action.kind == ActionKind::kForward ? 1 : 0;
  in_flight -= action.kind == ActionKind::kBackward || action.kind == ActionKind::kInputGradient ? 1 : 0;
  weight_grads += action.kind == ActionKind::kInputGradient ? 1 : 0;
  weight_grads -= action.kind == ActionKind::kWeightGradient ? 1 : 0;
  held.bytes += in_flight * memory.activation_bytes + weight_grads * memory.weight_grad_bytes - before;
}

// The greatest holding. A device does one action at a time, so their order determines it, as in the simulator.
Held MostHeld(const std::vector<Action>& actions, const std::vector<StageMemory>& stages) {
  Held now{std::vector<int64_t>(stages.size(), 0), std::vector<int64_t>(stages.size(), 0), 0};
  Held most = now;
  for (const Action& action : actions) {
    Take(action, stages, now);
    if (now.bytes > most.bytes) {
      most = now;
    }
  }
  return most;
}

}  // namespace

int64_t MemoryBreakdown::peak_bytes() const {
  return weight_bytes + gradient_bytes + optimizer_bytes + recovery_bytes + workspace_bytes + message_bytes +
         activation_bytes + logits_bytes + weight_grad_bytes;
}

std::vector<MemoryBreakdown> BreakDownMemory(const JobSpec& request, const ClusterSpec& cluster,
                                             const PlanResult& result) {
  std::vector<MemoryBreakdown> ranks;
  if (!result.costs.memory.has_value()) {
    return ranks;
  }
  const Plan& plan = result.plan;
  const JobSpec job = JobOnCluster(JobOfPlan(request, result), cluster);
  const std::vector<StageNeeds> needs = NeedsOfPlan(job, plan);
  const std::vector<int64_t> in_flight_most = InFlightOfSchedule(result.schedule);
  const std::vector<StageFlow> flows = FlowsOf(in_flight_most, plan.comm);
  const std::vector<StageMemory> stages = MemoryOfStages(needs, in_flight_most, plan.comm);
  const int64_t logits_bytes = LogitsBytes(job, plan);
  for (size_t rank = 0; rank < plan.pipeline_ranks.size(); ++rank) {
    const PipelineRankPlan& place = plan.pipeline_ranks[rank];
    const SiteSpec* site = cluster.FindSite(place.site);
    MemoryBreakdown& memory = ranks.emplace_back();
    memory.site = place.site;
    memory.capacity_bytes = place.capacity_bytes;
    memory.reserve_bytes = site == nullptr ? 0 : site->device.reserve_bytes.value_or(0);
    const Held held = MostHeld(result.schedule.devices[rank], stages);
    StageMemory all;
    for (size_t stage = 0; stage < needs.size(); ++stage) {
      if (plan.stages[stage].pipeline_rank != static_cast<int32_t>(rank)) {
        continue;
      }
      const StageMemory& alone = stages[stage];
      all += alone;
      const int64_t in_flight = held.in_flight[stage];
      const int64_t weight_grads = held.weight_grads[stage];
      const int64_t logits = plan.stages[stage].layers.has_head ? logits_bytes : 0;  // kept until W, if there is one
      memory.in_flight += in_flight;
      memory.logits_bytes += (in_flight + weight_grads) * logits;
      memory.activation_bytes += in_flight * (alone.activation_bytes - logits);
      memory.weight_grad_bytes += weight_grads * (alone.weight_grad_bytes - logits);
      memory.more_bytes += alone.activation_bytes + needs[stage].MoreMessageBytes(flows[stage]);
    }
    memory.weight_bytes = all.weight_bytes;
    memory.gradient_bytes = all.gradient_bytes;
    memory.optimizer_bytes = all.optimizer_bytes;
    memory.host_bytes = all.host_bytes;
    memory.recovery_bytes = all.recovery_bytes;
    memory.workspace_bytes = all.workspace_bytes;
    memory.message_bytes = all.transport_bytes;
  }
  return ranks;
}

size_t TightestRank(const std::vector<MemoryBreakdown>& ranks) {
  GP_CHECK(!ranks.empty());
  return static_cast<size_t>(std::ranges::min_element(ranks, {}, &MemoryBreakdown::free_bytes) - ranks.begin());
}

}  // namespace geopipe
