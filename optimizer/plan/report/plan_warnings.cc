#include "optimizer/plan/report/plan_warnings.h"

#include <fmt/format.h>

#include <algorithm>

#include "optimizer/base/quantities.h"
#include "optimizer/model/memory_model.h"
#include "optimizer/model/plan/plan_costs.h"
#include "optimizer/model/transformer.h"
#include "optimizer/simulator/simulator.h"

namespace geopipe {
namespace {

constexpr int64_t kNotable = 4;  // times the bytes of ZeRO 1

// "parallelism.zero_stage is 3 with 64 micro-batches: ..., which sends 96 GiB per replica and iteration, and ZeRO 1 3
// GiB". Empty: not notable.
std::string BytesSentence(int64_t parameters, Precision precision, int64_t data, int32_t zero_stage,
                          int64_t micro_batches, std::string_view bound) {
  const int64_t bytes = ReplicaBytes(parameters, precision, data, zero_stage, micro_batches);
  const int64_t once_bytes = ReplicaBytes(parameters, precision, data, 1, micro_batches);
  if (zero_stage < 2 || data == 1 || bytes < kNotable * once_bytes) {
    return "";
  }
  return fmt::format(
      "parallelism.zero_stage is {} with {}{} micro-batches: {}, {}{} per replica and iteration where ZeRO 1 sends {}",
      zero_stage, bound, micro_batches,
      zero_stage == 3 ? "every forward and backward gathers the weights anew"
                      : "every backward scatters its gradients anew",
      bound, HumanBytes(bytes), HumanBytes(once_bytes));
}

}  // namespace

int64_t ReplicaBytes(int64_t parameters, Precision precision, int64_t data, int32_t zero_stage, int64_t micro_batches) {
  const int64_t gradients = parameters * kGradientBytes;
  const int64_t weights = parameters * ElementBytes(precision);
  const int64_t whole = zero_stage == 0   ? 2 * gradients
                        : zero_stage == 1 ? gradients + weights
                        : zero_stage == 2 ? micro_batches * gradients + weights
                                          : micro_batches * (gradients + 2 * weights);
  return whole / data * (data - 1);
}

std::optional<std::string> ShardingWarning(const JobSpec& job, const ClusterSpec& cluster, const CostSource& source,
                                           const PlanResult& result) {
  const Plan& plan = result.plan;
  int64_t parameters = 0;
  for (const StagePlan& stage : plan.stages) {
    parameters += plan.grid.tensor * ParameterCountPerRank(job.model, stage.layers, plan.grid.tensor);
  }
  const std::string sentence =
      BytesSentence(parameters, job.precision, plan.grid.data, plan.zero_stage, plan.micro_batches, "");
  if (sentence.empty()) {
    return std::nullopt;
  }
  Plan once = plan;
  once.zero_stage = 1;
  const absl::StatusOr<PipelineCosts> costs = CostsOfPlan(job, cluster, source, once);
  const absl::StatusOr<SimulationResult> simulated =
      costs.ok() ? Simulate(result.schedule, *costs) : absl::StatusOr<SimulationResult>(costs.status());
  if (!simulated.ok()) {
    return sentence;
  }
  return fmt::format("{}; an iteration takes {} and with ZeRO 1 {}; {}", sentence,
                     HumanDuration(result.prediction.iteration_ns), HumanDuration(simulated->iteration_ns),
                     simulated->fits
                         ? "use zero_stage 1, or larger micro-batches"
                         : "ZeRO 1 does not fit: use larger micro-batches, or more tensor or pipeline ranks");
}

std::optional<std::string> ShardingWarning(const JobSpec& job) {
  const int64_t data = job.parallelism.data;
  if (data <= 1 || job.parallelism.zero_stage.value_or(0) < 2) {
    return std::nullopt;
  }
  const int64_t per_micro_batch =
      std::ranges::max(job.search.micro_batch_size) * std::ranges::max(job.search.sequence_length) * data;
  const LayerRange all{.first = 0, .last = job.model.num_hidden_layers - 1, .has_embedding = true, .has_head = true};
  const std::string sentence =
      BytesSentence(ParameterCount(job.model, all), job.precision, data, *job.parallelism.zero_stage,
                    std::max<int64_t>(1, job.training.tokens_per_iteration / per_micro_batch), "at least ");
  return sentence.empty() ? std::nullopt
                          : std::optional(sentence + "; use zero_stage 1 where it fits, or larger micro-batches");
}

}  // namespace geopipe
