#include "optimizer/model/plan/rank_memory.h"

#include <algorithm>

#include "optimizer/model/plan/plan_memory.h"

namespace geopipe {
namespace {

// Activations of one device at most: what is kept of micro-batches, and what an action that runs has of its own.
struct Activations {
  int64_t kept_bytes = 0;  // between actions
  int64_t bytes = 0;
};

Activations MostActivations(const std::vector<Action>& actions, const std::vector<StageNeeds>& needs,
                            const std::vector<PassMemory>& passes) {
  int64_t kept = 0;
  Activations most;
  for (const Action& action : actions) {
    const StageMemory& memory = needs[action.stage].alone;
    int64_t meanwhile = 0;
    switch (action.kind) {
      case ActionKind::kForward:
        kept += memory.activation_bytes;
        break;
      case ActionKind::kBackward:
        meanwhile = kept + passes[action.stage].backward_bytes;
        kept -= memory.activation_bytes;
        break;
      case ActionKind::kInputGradient:
        meanwhile = kept + passes[action.stage].input_grad_bytes;
        kept += memory.weight_grad_bytes - memory.activation_bytes;
        break;
      case ActionKind::kWeightGradient:
        kept -= memory.weight_grad_bytes;
        break;
      default:
        break;
    }
    most.kept_bytes = std::max(most.kept_bytes, kept);
    most.bytes = std::max({most.bytes, meanwhile, kept});
  }
  return most;
}

}  // namespace

std::vector<RankMemory> MemoryOfRanks(const JobSpec& job, const Plan& plan, const Schedule& schedule) {
  const std::vector<StageNeeds> needs = NeedsOfPlan(job, plan);
  const std::vector<StageMemory> stages = MemoryOfStages(needs, InFlightOfSchedule(schedule), plan.comm);
  std::vector<RankMemory> ranks;
  for (int32_t rank = 0; rank < plan.grid.pipeline; ++rank) {
    const ExecutionConfig config = ConfigOfPlan(job, plan, rank);
    StageMemory all;
    std::vector<PassMemory> passes(stages.size());
    int64_t workspace_bytes = 0;
    for (size_t stage = 0; stage < stages.size(); ++stage) {
      if (plan.stages[stage].pipeline_rank == rank) {
        all += stages[stage];
        passes[stage] = MemoryOfPasses(job.model, plan.stages[stage].layers, config);
        workspace_bytes = std::max(workspace_bytes, passes[stage].workspace_bytes);
      }
    }
    const Activations activations = MostActivations(schedule.devices[rank], needs, passes);
    ranks.push_back({.weights = all.weight_bytes,
                     .gradients = all.gradient_bytes,
                     .optimizer = all.optimizer_bytes,
                     .activations = activations.bytes,
                     .workspace = all.workspace_bytes - all.shared_workspace_bytes + workspace_bytes,
                     .transport = all.transport_bytes,
                     .recovery = all.recovery_bytes,
                     .peak = all.static_bytes() + activations.kept_bytes,
                     .host = all.host_bytes});
  }
  return ranks;
}

}  // namespace geopipe
