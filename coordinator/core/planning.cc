#include "coordinator/core/planning.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "coordinator/core/explicit_plan.h"
#include "optimizer/base/status_macros.h"
#include "proto/manifest/job_manifest.h"

namespace geopipe {
namespace {

// What the training engine of this version executes. A modelled run computes nothing and so takes any tensor degree.
absl::Status CheckEngine(const JobSpec& job, const RunOptions& run) {
  const ParallelismSpec& parallelism = job.parallelism;
  if (parallelism.data > 1) {
    return absl::InvalidArgumentError(
        fmt::format("parallelism.data is {}; this version trains with 1", parallelism.data));
  }
  if (run.backend == BackendKind::kModelled) {
    return absl::OkStatus();
  }
  if (job.precision != Precision::kFp32) {
    return absl::InvalidArgumentError(
        fmt::format("precision is bf16; the {} backend of this version trains in fp32", BackendKindName(run.backend)));
  }
  if (parallelism.tensor > 1) {
    return absl::InvalidArgumentError(
        fmt::format("parallelism.tensor is {}; the {} backend of this version trains with 1 (the modelled backend "
                    "rehearses any)",
                    parallelism.tensor, BackendKindName(run.backend)));
  }
  if (parallelism.recompute.value_or(Recompute::kNone) != Recompute::kNone) {
    return absl::InvalidArgumentError(fmt::format(
        "parallelism.recompute is on; the {} backend of this version trains with none", BackendKindName(run.backend)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckRunnable(const JobSpec& job, const RunOptions& run) {
  GP_RETURN_IF_ERROR(ValidateJob(job));
  GP_RETURN_IF_ERROR(CheckRun(job));
  GP_RETURN_IF_ERROR(CheckEngine(job, run));
  if (run.stop_after_iterations < 0) {
    return absl::InvalidArgumentError(
        fmt::format("iterations is {}; it must be positive, or 0 for all of the job's", run.stop_after_iterations));
  }
  if (run.drill.has_value() && !run.pace && run.backend != BackendKind::kModelled) {
    return absl::InvalidArgumentError("a slower stage can be rehearsed in paced and modelled runs only; add --pace");
  }
  return run.explicit_costs.has_value() ? CheckExplicitCosts(job, run) : absl::OkStatus();
}

absl::StatusOr<PlanResult> PlanJob(const PlanningInput& input, std::function<bool()> should_stop,
                                   ParallelFor parallel_for) {
  if (input.run.explicit_costs.has_value()) {
    return MakeExplicitPlan(input.job, input.run, input.cluster, input.profile.has_value() ? &*input.profile : nullptr);
  }
  PlanRequest request{.job = input.job,
                      .cluster = input.cluster,
                      .profile = input.profile,
                      .method = SearchMethod::kGenetic,
                      .comm = input.run.comm,
                      .fixed_delta_n = input.run.delta_n,
                      .should_stop = std::move(should_stop),
                      .parallel_for = std::move(parallel_for)};
  if (input.run.schedule.has_value()) {
    request.job.search.schedule = std::string(ScheduleKindName(*input.run.schedule));
  }
  if (input.run.backend != BackendKind::kModelled) {
    // `auto` is what the engine runs.
    request.job.parallelism.tensor = 1;
    request.job.parallelism.recompute = Recompute::kNone;
  }
  request.job.parallelism.tensor = std::max<int64_t>(1, request.job.parallelism.tensor);
  // A few measured micro-batches are no ground for another split at every start.
  request.job.parallelism.layers = LayerSplit::kEven;
  request.job.parallelism.data = 1;
  return MakePlan(request);
}

std::string SearchSummary(const PlanResult& result, const RunOptions& run) {
  const SearchReport& search = result.search;
  if (run.explicit_costs.has_value()) {
    return fmt::format("explicit costs, {} evaluations", search.evaluations);
  }
  return fmt::format("{}, {} evaluations of {}, seed {}{}",
                     search.method == SearchMethod::kGenetic ? "genetic" : "exhaustive", search.evaluations,
                     search.space_size, search.seed, search.stopped_early ? ", stopped: time" : "");
}

}  // namespace geopipe
