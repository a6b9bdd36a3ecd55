#include "coordinator/core/planning.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "optimizer/model/capabilities.h"
#include "optimizer/plan/given_costs.h"
#include "optimizer/plan/given_schedule.h"
#include "optimizer/plan/planner.h"
#include "optimizer/schedule/csv.h"
#include "runtime/manifest/job_manifest.h"

namespace geopipe {
namespace {

// Bandwidth through shared memory per direction, for devices whose agent declares no intra_node_bandwidth: the host's
// processors, and GPUs, whose collective operations go through the host's memory. It is that of all-reduces of 64 KiB
// to 64 MiB among four ranks on two processors (collective_bench).
constexpr double kHostBandwidthBytesPerS = 2e9;
// Copying speed within the host's memory, where the agent declares no host_bandwidth: that of memcpy of 16 MiB and more
// on four ranks at once (collective_bench).
constexpr double kHostCopyBytesPerS = 5e9;

// Makes the device what the backend makes of it: the host's processors, whatever its kind, a GPU, or what its agent
// declares.
void SetComputing(BackendKind backend, DeviceSpec& device) {
  if (backend == BackendKind::kModelled) {
    return;
  }
  if (device.intra_node_bandwidth_bytes_per_s <= 0) {
    device.intra_node_bandwidth_bytes_per_s = kHostBandwidthBytesPerS;
  }
  if (backend == BackendKind::kCuda) {
    FillDeviceDefaults(device);
    return;
  }
  device.on_processors = true;
  device.attention.reset();
  device.roofline = Roofline::kBlock;
  device.reserve_bytes = 0;
  if (device.host_bandwidth_bytes_per_s <= 0) {
    device.host_bandwidth_bytes_per_s = kHostCopyBytesPerS;
  }
}

// Explicit costs are of one device per pipeline rank.
absl::Status CheckOneRankPerStage(const ParallelismSpec& parallelism) {
  for (const auto& [key, degree] : {std::pair("tensor", parallelism.tensor), std::pair("data", parallelism.data)}) {
    if (degree > 1) {
      return absl::InvalidArgumentError(fmt::format(
          "parallelism.{} is {}; explicit costs are of one device for each stage: leave it out, or have a topology say "
          "what the devices cost",
          key, degree));
    }
  }
  return absl::OkStatus();
}

}  // namespace

void NameSites(const GroupedNodes& groups, Plan& plan) {
  const auto node_at = [&](const std::string& group, int32_t& node) {
    if (const auto found = groups.find(group); found != groups.end()) {
      node = found->second[static_cast<size_t>(node)];
    }
  };
  for (int32_t rank = 0; rank < plan.grid.size(); ++rank) {
    node_at(plan.SiteOfRank(rank), plan.devices[static_cast<size_t>(rank)].node);
  }
  for (IdleDevices& idle : plan.idle) {
    node_at(idle.site, idle.node);
    idle.site = SiteOfGroup(idle.site);
  }
  for (PipelineRankPlan& rank : plan.pipeline_ranks) {
    rank.site = SiteOfGroup(rank.site);
  }
}

absl::Status CheckRunnable(const JobSpec& job, const RunOptions& run) {
  GP_RETURN_IF_ERROR(ValidateJob(job));
  GP_RETURN_IF_ERROR(CheckRun(job));
  GP_RETURN_IF_ERROR(CheckCapabilities(job, run.backend));
  if (run.resume && job.checkpoint.path.empty()) {
    return absl::InvalidArgumentError(
        "the job has no checkpoint.path to go on from; give it one, or apply it without --resume");
  }
  if (run.stop_after_iterations < 0) {
    return absl::InvalidArgumentError(
        fmt::format("iterations is {}; it must be positive, or 0 for all of the job's", run.stop_after_iterations));
  }
  if (!run.schedule_csv.empty() && (run.schedule.has_value() || !run.delta_n.empty())) {
    return absl::InvalidArgumentError(
        "a schedule is given action by action, and its name or ΔN too; leave one of them out");
  }
  if (run.schedule == ScheduleKind::kCsv) {
    return absl::InvalidArgumentError("schedule csv has no actions; give the file with --schedule-csv");
  }
  if (!run.schedule_csv.empty()) {
    GP_RETURN_IF_ERROR(JobWithSchedule(job, run.schedule_csv).status());
  }
  if (run.slowdown.has_value() && !run.pace && CapabilitiesOf(run.backend).computes) {
    return absl::InvalidArgumentError("a slower stage can be rehearsed in paced and modelled runs only; add --pace");
  }
  if (!run.explicit_costs.has_value()) {
    return absl::OkStatus();
  }
  GP_RETURN_IF_ERROR(CheckOneRankPerStage(job.parallelism));
  return CheckGivenCosts(job, *run.explicit_costs, run.delta_n, CapabilitiesOf(run.backend).computes);
}

absl::StatusOr<PlanResult> PlanJob(const PlanningInput& input, std::function<bool()> should_stop,
                                   ParallelFor parallel_for) {
  PlanRequest request{.job = input.job,
                      .cluster = input.cluster,
                      .profile = input.profile,
                      .costs = input.run.explicit_costs,
                      .method = SearchMethod::kGenetic,
                      .comm = input.run.comm,
                      .schedule = std::nullopt,
                      .fixed_delta_n = input.run.delta_n,
                      .site_ranks = {},
                      .rank_recompute = {},
                      .should_stop = std::move(should_stop),
                      .parallel_for = std::move(parallel_for),
                      .progress = {}};
  if (!input.run.schedule_csv.empty()) {
    GP_ASSIGN_OR_RETURN(GivenSchedule given, ReadScheduleCsv(input.run.schedule_csv));
    request.schedule = std::move(given.schedule);
  }
  if (input.run.schedule.has_value()) {
    request.job.search.schedule = *input.run.schedule;
  }
  if (request.costs.has_value()) {
    if (request.job.search.schedule == ScheduleKind::kAuto && !input.run.schedule.has_value() &&
        !request.schedule.has_value()) {
      request.job.search.schedule = ScheduleKind::kGeoPipe;
    }
    if (!CapabilitiesOf(input.run.backend).computes) {
      request.job.training.grad_clip.reset();  // the costs say all, and no norm is exchanged
    }
  }
  for (SiteSpec& site : request.cluster.sites) {
    SetComputing(input.run.backend, site.device);
  }
  if (CapabilitiesOf(input.run.backend).computes && request.profile.has_value()) {
    request.profile->tensor = 1;  // workers measure whole layers
  }
  const bool is_paced_by_figures = input.run.pace && !input.run.explicit_costs.has_value() &&
                                   input.profile.has_value() && input.profile->entries.empty();
  if (input.run.backend == BackendKind::kCpu && !is_paced_by_figures) {
    // The planner does not choose degrees from processors' figures (docs/plans.md): a profile is taken while every
    // device computes, and nobody has measured what a collective takes among ranks that share a host.
    request.job.parallelism.tensor = std::max<int64_t>(1, request.job.parallelism.tensor);
    request.job.parallelism.data = std::max<int64_t>(1, request.job.parallelism.data);
  }
  // A few measured micro-batches do not justify another split at every start.
  request.job.parallelism.layers = LayerSplit::kEven;
  request.cluster_bound = false;  // nobody looks at it
  GP_ASSIGN_OR_RETURN(PlanResult result, MakePlan(request));
  NameSites(input.groups, result.plan);
  return result;
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
