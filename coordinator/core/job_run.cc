#include "coordinator/core/job_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "coordinator/core/worker_commands.h"
#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "proto/wire/telemetry_wire.h"
#include "runtime/base/utf8.h"

namespace geopipe {
namespace {

constexpr size_t kMaxReasonBytes = 8192;

}  // namespace

int64_t EndIteration(const JobSpec& job, const RunOptions& run) {
  return run.stop_after_iterations > 0 ? std::min(run.stop_after_iterations, job.training.iterations)
                                       : job.training.iterations;
}

std::string DoneSentence(int64_t iterations) {
  return iterations == 1 ? "its one iteration is done" : fmt::format("all {} iterations are done", iterations);
}

JobRun::JobRun(const JobSpec& job, const RunOptions& run, Allocation allocation, uint64_t incarnation,
               std::string version, const JobRunLimits& limits)
    : job_(job),
      run_(run),
      allocation_(std::move(allocation)),
      incarnation_(incarnation),
      version_(std::move(version)),
      limits_(limits) {
  for (const NodeKey& node : allocation_.nodes()) {
    nodes_.insert(node);
  }
  for (const WorkerKey& worker : allocation_.workers()) {
    workers_[worker] = {};
  }
}

// --- Entering states ----------------------------------------------------------------------------------------------

std::vector<NodeMessage> JobRun::EnterProfiling(int64_t now_ns) {
  state_ = v1::JOB_STATE_PROFILING;
  deadline_ns_ = now_ns + limits_.start_timeout_ns;
  std::vector<NodeMessage> sends;
  for (const NodeKey& node : nodes_) {
    std::vector<int32_t> devices;
    for (const auto& [key, worker] : workers_) {
      if (key.node_key() == node) {
        devices.push_back(key.device);
      }
    }
    sends.push_back({node, StartMessage(job_.name, incarnation_, devices)});
  }
  return sends;
}

void JobRun::EnterPlanning(int64_t now_ns) {
  state_ = v1::JOB_STATE_PLANNING;
  deadline_ns_ = now_ns + job_.search.time_budget_ns + limits_.planning_margin_ns;
}

const AllocatedNode* JobRun::NodeAt(std::string_view site, int32_t node) const {
  const auto found = std::ranges::find(allocation_.sites, site, &AllocatedSite::name);
  return found == allocation_.sites.end() || node < 0 || node >= std::ssize(found->nodes) ? nullptr
                                                                                          : &found->nodes[node];
}

absl::Status JobRun::SetPlan(PlanResult* result, std::string secret, uint64_t epoch) {
  Plan& plan = result->plan;
  std::vector<WorkerKey> workers;
  std::set<WorkerKey> used;
  for (int32_t rank = 0; rank < plan.grid.size(); ++rank) {
    DevicePlace& place = plan.devices[rank];
    const AllocatedNode* node = NodeAt(plan.SiteOfRank(rank), place.node);
    if (node == nullptr || place.device < 0 || place.device >= std::ssize(node->devices)) {
      return absl::InternalError(
          fmt::format("the plan puts rank {} on device {} of node {} of site {}, which the job does not have", rank,
                      place.device, place.node, plan.SiteOfRank(rank)));
    }
    place.device = node->devices[place.device];
    WorkerKey key{plan.SiteOfRank(rank), node->spec.node(), place.device};
    if (!used.insert(key).second) {
      return absl::InternalError(
          fmt::format("the plan puts rank {} on device {}, which is not free", rank, DisplayName(key)));
    }
    workers.push_back(std::move(key));
  }
  for (IdleDevices& idle : plan.idle) {
    const AllocatedNode* node = NodeAt(idle.site, idle.node);
    for (int32_t& device : idle.devices) {
      device = node != nullptr && device < std::ssize(node->devices) ? node->devices[device] : device;
    }
  }
  iterations_ = IterationLog(plan.grid.size(), 0, limits_.max_iterations_kept);
  rollout_ = PlanRollout(epoch, std::move(workers));
  secret_ = std::move(secret);
  predicted_iteration_ns_ = result->prediction.iteration_ns;
  plan_ = plan;
  costs_ = result->costs;
  return absl::OkStatus();
}

std::vector<NodeMessage> JobRun::EnterDeploying(int64_t now_ns, const PlanResult& plan, const LinkTable& links) {
  state_ = v1::JOB_STATE_DEPLOYING;
  deadline_ns_ = now_ns + limits_.prepare_timeout_ns;
  std::vector<NodeMessage> sends = StopIdle();
  std::vector<std::string> sites;
  for (const PipelineRankPlan& rank : plan_.pipeline_ranks) {
    if (sites.empty() || sites.back() != rank.site) {
      sites.push_back(rank.site);
    }
  }
  const v1::PrepareCommand common = PrepareForAll(job_, run_, plan);
  for (int32_t rank = 0; rank < plan_.grid.size(); ++rank) {
    v1::WorkerCommand command;
    command.set_epoch(rollout_.epoch());
    v1::PrepareCommand& prepare = *command.mutable_prepare();
    prepare = common;
    prepare.set_rank(rank);
    const AllocatedNode* node = NodeAt(plan_.SiteOfRank(rank), plan_.devices[rank].node);
    prepare.set_memory_limit_bytes(node->spec.device().memory_bytes());
    for (v1::LinkShape& shape : links.ShapesFor(plan_.SiteOfRank(rank), sites)) {
      *prepare.add_shapes() = std::move(shape);
    }
    sends.push_back(Command(rollout_.workers()[rank], std::move(command)));
  }
  return sends;
}

Reaction JobRun::EnterRunning(int64_t now_ns) {
  state_ = v1::JOB_STATE_RUNNING;
  deadline_ns_ = now_ns + std::max(limits_.progress_timeout_ns, 10 * predicted_iteration_ns_);
  if (!AllFinished()) {
    return {};
  }
  return {.change = Reaction::Change{v1::JOB_STATE_COMPLETED, DoneSentence(EndIteration(job_, run_))}};
}

std::vector<NodeMessage> JobRun::StopAll(const std::string& reason) const {
  std::vector<NodeMessage> sends;
  for (const NodeKey& node : nodes_) {
    sends.push_back({node, StopMessage(job_.name, limits_.stop_grace_ns,
                                       ToUtf8(std::string_view(reason).substr(0, kMaxReasonBytes)))});
  }
  return sends;
}

// Workers that are no rank.
std::vector<NodeMessage> JobRun::StopIdle() {
  nodes_.clear();
  std::map<NodeKey, std::vector<int32_t>> idle;
  for (auto& [key, worker] : workers_) {
    if (rollout_.RankOf(key) >= 0) {
      nodes_.insert(key.node_key());
    } else {
      worker.stopped = true;
      idle[key.node_key()].push_back(key.device);
    }
  }
  std::vector<NodeMessage> sends;
  sends.reserve(idle.size());
  for (const auto& [node, devices] : idle) {
    sends.push_back({node, StopMessage(job_.name, limits_.stop_grace_ns, "the plan has no use for this device", devices,
                                       incarnation_)});
  }
  return sends;
}

// --- Helpers ------------------------------------------------------------------------------------------------------

Reaction JobRun::Diagnose(int64_t now_ns, bool node_silent) const {
  std::optional<std::string> verdict = diagnosis_.Verdict(now_ns, limits_.failure_grace_ns, node_silent);
  return verdict.has_value() ? Reaction{.change = Reaction::Change{v1::JOB_STATE_FAILED, *std::move(verdict)}}
                             : Reaction{};
}

std::string JobRun::DeadlineSentence() const {
  switch (state_) {
    case v1::JOB_STATE_PROFILING: {
      if (measuring_) {
        const ProfileCandidate& asked = rounds_.candidate();
        return fmt::format("no measurement of {} within {} from: {}",
                           asked.skip_compute ? fmt::format("messages of {} bytes", asked.message_bytes)
                                              : fmt::format("micro_batch_size {}, sequence_length {}",
                                                            asked.micro_batch_size, asked.sequence_length),
                           FormatSeconds(limits_.profile_timeout_ns), DisplayNames(rounds_.missing()));
      }
      std::vector<WorkerKey> missing;
      for (const auto& [key, worker] : workers_) {
        if (!worker.attached) {
          missing.push_back(key);
        }
      }
      return fmt::format("workers did not start within {}: {}", FormatSeconds(limits_.start_timeout_ns),
                         DisplayNames(missing));
    }
    case v1::JOB_STATE_PLANNING:
      return fmt::format("the planner gave no plan within search.time_budget {} and {} more",
                         FormatSeconds(job_.search.time_budget_ns), FormatSeconds(limits_.planning_margin_ns));
    case v1::JOB_STATE_DEPLOYING: {
      const bool preparing = rollout_.phase() == PlanRollout::Phase::kPreparing;
      return fmt::format("workers did not {} epoch {} within {}: {}", preparing ? "prepare" : "commit",
                         rollout_.epoch(),
                         FormatSeconds(preparing ? limits_.prepare_timeout_ns : limits_.commit_timeout_ns),
                         DisplayNames(rollout_.Missing()));
    }
    default:
      return fmt::format("iteration {} has not finished within {}", iterations_.next(),
                         FormatSeconds(std::max(limits_.progress_timeout_ns, 10 * predicted_iteration_ns_)));
  }
}

bool JobRun::AllFinished() const {
  return std::ranges::all_of(rollout_.workers(), [&](const WorkerKey& key) { return workers_.at(key).finished; });
}

int64_t JobRun::WorkersOn(const NodeKey& node) const {
  return std::ranges::count_if(
      workers_, [&](const auto& entry) { return entry.first.node_key() == node && !entry.second.stopped; });
}

NodeMessage JobRun::Command(const WorkerKey& worker, v1::WorkerCommand command) const {
  NodeMessage message{worker.node_key(), {}};
  v1::RelayedCommand& relayed = *message.message.mutable_command();
  *relayed.mutable_worker() = MakeWorkerId(worker, job_.name, incarnation_);
  *relayed.mutable_command() = std::move(command);
  return message;
}

}  // namespace geopipe
