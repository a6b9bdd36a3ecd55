#include "optimizer/model/plan/rank_memory.h"

#include <algorithm>
#include <iterator>

#include "optimizer/model/plan/plan_memory.h"

namespace geopipe {
namespace {

// Most activations of one device.
struct Activations {
  int64_t kept_bytes = 0;  // of micro-batches between actions
  int64_t bytes = 0;       // with those of a running action itself
};

// Counts, for each micro-batch, the bytes that `stages` say it keeps.
Activations MostActivations(const std::vector<Action>& actions, const std::vector<StageMemory>& stages,
                            const std::vector<PassMemory>& passes) {
  int64_t kept = 0;
  Activations most;
  for (const Action& action : actions) {
    const StageMemory& memory = stages[action.stage];
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

// Most bytes of transport alone, whatever the activations meanwhile. When an iteration ends, a message with another
// rank's norm terms is being read, and the other end's tied gradient.
std::vector<int64_t> MostTransport(const JobSpec& job, const Plan& plan, const std::vector<StageNeeds>& needs,
                                   const std::vector<StageFlow>& flows) {
  const NormTermSizes sizes(job.model);
  std::vector<int64_t> terms(static_cast<size_t>(plan.grid.pipeline), 0);
  std::vector<int64_t> bytes(terms.size(), 0);
  for (size_t stage = 0; stage < needs.size(); ++stage) {
    const StageNeeds& need = needs[stage];
    const int32_t rank = plan.stages[stage].pipeline_rank;
    terms[rank] += job.training.grad_clip.has_value() && !need.own_memory ? sizes.Of(plan.stages[stage].layers) : 0;
    bytes[rank] += need.exchange_bytes + need.MostBoundaryMessages(flows[stage]) * need.message_bytes +
                   (need.own_memory ? 0 : need.tied_bytes);
  }
  for (size_t rank = 0; rank < terms.size(); ++rank) {
    int64_t of_another = 0;
    for (size_t other = 0; other < terms.size(); ++other) {
      of_another = other == rank ? of_another : std::max(of_another, terms[other]);
    }
    bytes[rank] += of_another;
  }
  return bytes;
}

}  // namespace

std::vector<RankMemory> MemoryOfRanks(const JobSpec& job, const Plan& plan, const Schedule& schedule) {
  const std::vector<StageNeeds> needs = NeedsOfPlan(job, plan);
  const std::vector<int64_t> in_flight = InFlightOfSchedule(schedule);
  const std::vector<StageMemory> stages = MemoryOfStages(needs, in_flight, plan.comm);
  std::vector<StageMemory> alone;
  std::ranges::transform(needs, std::back_inserter(alone), &StageNeeds::alone);
  const std::vector<int64_t> transport = MostTransport(job, plan, needs, FlowsOf(in_flight, plan.comm));
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
    const Activations activations = MostActivations(schedule.devices[rank], alone, passes);
    ranks.push_back({.weights = all.weight_bytes,
                     .gradients = all.gradient_bytes,
                     .optimizer = all.optimizer_bytes,
                     .activations = activations.bytes,
                     .workspace = all.workspace_bytes - all.shared_workspace_bytes + workspace_bytes,
                     .transport = transport[rank],
                     .recovery = all.recovery_bytes,
                     .peak = all.static_bytes() + MostActivations(schedule.devices[rank], stages, passes).kept_bytes,
                     .host = all.host_bytes});
  }
  return ranks;
}

}  // namespace geopipe
