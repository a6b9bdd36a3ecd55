#include "optimizer/plan/evaluation/prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/plan/plan_costs.h"
#include "optimizer/model/plan/plan_memory.h"
#include "optimizer/schedule/lowering.h"
#include "optimizer/schedule/schedule_table.h"
#include "optimizer/simulator/lower_bound.h"
#include "optimizer/simulator/simulator.h"

namespace geopipe {
namespace {

absl::Status CheckPlan(const JobSpec& job, const Plan& plan) {
  if (plan.stages.empty()) {
    return absl::InvalidArgumentError("the plan has no stages");
  }
  const int64_t data = std::max<int64_t>(1, job.parallelism.data);
  const int64_t tokens = plan.micro_batch_size * plan.sequence_length * data * plan.micro_batches;
  if (plan.micro_batches < 1 || tokens != job.training.tokens_per_iteration) {
    return absl::InvalidArgumentError(
        fmt::format("the plan trains {} tokens per iteration ({} micro-batches of {} x {} on {} replicas), but "
                    "training.tokens_per_iteration is {}",
                    tokens, plan.micro_batches, plan.micro_batch_size, plan.sequence_length, data,
                    job.training.tokens_per_iteration));
  }
  const size_t crossings = plan.Crossings().size();
  if (plan.delta_n.size() != crossings) {
    return absl::InvalidArgumentError(
        fmt::format("the plan has {} delta_n for {} crossings", plan.delta_n.size(), crossings));
  }
  return absl::OkStatus();
}

// Counts the messages of each device by the micro-batches that the schedule has in flight on its stages and before
// them. `costs` counts them by the closed form for the plan's kind and ΔN, which a schedule without a rule need not
// keep to: the schedule's own count replaces it. Returns by how much that exceeds the least possible, one micro-batch
// in flight everywhere.
std::vector<int64_t> SizeMessages(const JobSpec& job, const Plan& plan, const Schedule& compute, MemoryCosts& costs) {
  const std::vector<StageNeeds> needs = NeedsOfPlan(job, plan);
  const std::vector<StageMemory> closed_form = MemoryOfStages(needs, InFlightOfPlan(plan), plan.comm);
  const std::vector<StageMemory> counted = MemoryOfStages(needs, InFlightOfSchedule(compute), plan.comm);
  std::vector<int64_t> spare_bytes(costs.static_bytes.size(), 0);
  for (size_t stage = 0; stage < needs.size(); ++stage) {
    const int32_t device = plan.stages[stage].pipeline_rank;
    costs.static_bytes[device] += counted[stage].transport_bytes - closed_form[stage].transport_bytes;
    spare_bytes[device] +=
        counted[stage].transport_bytes - needs[stage].TransportBytes({.before = 1, .here = 1, .comm = plan.comm});
  }
  for (int64_t& bytes : costs.static_bytes) {
    bytes = std::max<int64_t>(0, bytes);
  }
  return spare_bytes;
}

// A bound of every schedule, including those that need the least for their messages.
int64_t BoundWithinMemoryNs(PipelineCosts costs, const std::vector<int64_t>& spare_bytes) {
  for (size_t device = 0; device < spare_bytes.size(); ++device) {
    int64_t& static_bytes = costs.memory->static_bytes[device];
    static_bytes = std::max<int64_t>(0, static_bytes - spare_bytes[device]);
  }
  return MemoryLowerBoundNs(costs).value_or(LowerBoundNs(costs));
}

// Predicts. `spare_bytes`: as SizeMessages says, or empty.
absl::StatusOr<PlanPrediction> Predict(const Plan& plan, int64_t data, PipelineCosts costs, const Schedule& compute,
                                       const std::vector<int64_t>& spare_bytes) {
  PlanPrediction predicted;
  GP_ASSIGN_OR_RETURN(predicted.schedule, Lower(compute));
  GP_ASSIGN_OR_RETURN(SimulationResult simulated, Simulate(predicted.schedule, costs));
  Prediction& prediction = predicted.prediction;
  prediction.iteration_ns = simulated.iteration_ns;
  prediction.bubble_ratio = simulated.bubble_ratio;
  prediction.lower_bound_ns =
      simulated.fits && costs.memory.has_value() ? BoundWithinMemoryNs(costs, spare_bytes) : LowerBoundNs(costs);
  const int64_t tokens = plan.micro_batch_size * plan.sequence_length * data * plan.micro_batches;
  prediction.tokens_per_s =
      simulated.iteration_ns == 0 ? 0 : 1e9 * static_cast<double>(tokens) / static_cast<double>(simulated.iteration_ns);
  prediction.wan_bytes_per_iteration = WanBytesPerIteration(costs, data);
  predicted.peak_bytes = std::move(simulated.peak_bytes);
  predicted.fits = simulated.fits;
  predicted.costs = std::move(costs);
  return predicted;
}

}  // namespace

absl::StatusOr<PlanPrediction> PredictPlan(const JobSpec& job, const Plan& plan, PipelineCosts costs) {
  GP_RETURN_IF_ERROR(CheckPlan(job, plan));
  GP_ASSIGN_OR_RETURN(const Schedule compute,
                      MakeSchedule(plan.schedule, costs.shape, BoundaryDeltaN(plan), ScheduleCostsOf(costs)));
  return PredictSchedule(job, plan, std::move(costs), compute);
}

absl::StatusOr<PlanPrediction> PredictSchedule(const JobSpec& job, const Plan& plan, PipelineCosts costs,
                                               const Schedule& compute) {
  GP_RETURN_IF_ERROR(CheckPlan(job, plan));
  std::vector<int64_t> spare_bytes;
  if (costs.memory.has_value()) {
    spare_bytes = SizeMessages(job, plan, compute, *costs.memory);
  }
  return Predict(plan, std::max<int64_t>(1, job.parallelism.data), std::move(costs), compute, spare_bytes);
}

absl::StatusOr<PlanPrediction> PredictGiven(const Plan& plan, PipelineCosts costs, const Schedule& compute) {
  return Predict(plan, /*data=*/1, std::move(costs), compute, {});
}

}  // namespace geopipe
