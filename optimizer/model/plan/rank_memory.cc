#include "optimizer/model/plan/rank_memory.h"

#include <algorithm>

#include "optimizer/model/plan/plan_memory.h"

namespace geopipe {
namespace {

// The most that is kept of micro-batches on one device at once.
int64_t MostKeptBytes(const std::vector<Action>& actions, const std::vector<StageNeeds>& needs) {
  int64_t kept = 0;
  int64_t most = 0;
  for (const Action& action : actions) {
    const StageMemory& memory = needs[action.stage].alone;
    switch (action.kind) {
      case ActionKind::kForward:
        kept += memory.activation_bytes;
        break;
      case ActionKind::kBackward:
        kept -= memory.activation_bytes;
        break;
      case ActionKind::kInputGradient:
        kept += memory.weight_grad_bytes - memory.activation_bytes;
        break;
      case ActionKind::kWeightGradient:
        kept -= memory.weight_grad_bytes;
        break;
      default:
        break;
    }
    most = std::max(most, kept);
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
    PassMemory passes;
    for (size_t stage = 0; stage < stages.size(); ++stage) {
      if (plan.stages[stage].pipeline_rank == rank) {
        all += stages[stage];
        const PassMemory own = MemoryOfPasses(job.model, plan.stages[stage].layers, config);
        passes.workspace_bytes = std::max(passes.workspace_bytes, own.workspace_bytes);
        passes.activation_bytes = std::max(passes.activation_bytes, own.activation_bytes);
      }
    }
    const int64_t kept_bytes = MostKeptBytes(schedule.devices[rank], needs);
    ranks.push_back({.weights = all.weight_bytes,
                     .gradients = all.gradient_bytes,
                     .optimizer = all.optimizer_bytes,
                     .activations = kept_bytes + passes.activation_bytes,
                     .workspace = all.workspace_bytes - all.shared_workspace_bytes + passes.workspace_bytes,
                     .transport = all.transport_bytes,
                     .recovery = all.recovery_bytes,
                     .peak = all.static_bytes() + kept_bytes});
  }
  return ranks;
}

}  // namespace geopipe
