// How a run reacts to what its workers and their agents report.
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "coordinator/core/job_run.h"
#include "coordinator/core/link_traffic.h"
#include "coordinator/core/worker_commands.h"
#include "optimizer/base/quantities.h"
#include "proto/wire/telemetry_wire.h"

namespace geopipe {
namespace {

Reaction MoveTo(JobState state, std::string cause) { return {.change = Reaction::Change{state, std::move(cause)}}; }
Reaction FailWith(std::string cause) { return MoveTo(v1::JOB_STATE_FAILED, std::move(cause)); }
Reaction FailWith(const absl::Status& status) { return FailWith(std::string(status.message())); }

}  // namespace

Reaction JobRun::OnReport(int64_t now_ns, const WorkerKey& key, const v1::WorkerReport& report) {
  const auto found = workers_.find(key);
  if (found == workers_.end() || found->second.stopped) {
    return {};
  }
  Worker& worker = found->second;
  switch (report.report_case()) {
    case v1::WorkerReport::kHello:
      return OnHello(now_ns, worker, key, report.hello());
    case v1::WorkerReport::kProfile:
      return OnProfile(now_ns, key, report.profile());
    case v1::WorkerReport::kPrepared:
      return OnPrepared(now_ns, key, report);
    case v1::WorkerReport::kCommitted:
      return OnCommitted(key, report);
    case v1::WorkerReport::kFailure:
      worker.failed = true;
      diagnosis_.Add(now_ns, EvidenceOf(key, report.failure()));
      return Diagnose(now_ns, false);
    case v1::WorkerReport::kIteration:
      return report.epoch() == rollout_.epoch() ? OnIteration(now_ns, key, report.iteration()) : Reaction{};
    case v1::WorkerReport::kFinished:
      return report.epoch() == rollout_.epoch() ? OnFinished(worker, key, report.finished()) : Reaction{};
    case v1::WorkerReport::kHeartbeat:
    case v1::WorkerReport::kEnded:
    case v1::WorkerReport::REPORT_NOT_SET:
      break;
  }
  return {};
}

Reaction JobRun::OnHello(int64_t now_ns, Worker& worker, const WorkerKey& key, const v1::WorkerHello& hello) {
  if (hello.version() != version_) {
    return FailWith(fmt::format("worker {} is version {} and the coordinator is version {}; install the same on both",
                                DisplayName(key), hello.version(), version_));
  }
  worker.attached = true;
  const bool all = std::ranges::all_of(workers_, [](const auto& entry) { return entry.second.attached; });
  if (state_ != v1::JOB_STATE_PROFILING || measuring_ || !all) {
    return {};
  }
  std::vector<ProfileCandidate> candidates = ProfileCandidates(job_, run_, workers_.size());
  if (candidates.empty()) {
    return MoveTo(v1::JOB_STATE_PLANNING, "the worker is up and its costs are given: there is nothing to measure");
  }
  measuring_ = true;
  rounds_ = ProfileRounds(std::move(candidates), allocation_.workers());
  return {.sends = ProfileRound(now_ns)};
}

std::vector<NodeMessage> JobRun::ProfileRound(int64_t now_ns) {
  deadline_ns_ = now_ns + limits_.profile_timeout_ns;
  v1::WorkerCommand command;
  *command.mutable_profile() = ProfileMessage(job_, rounds_.round(), rounds_.candidate());
  std::vector<NodeMessage> sends;
  for (const AllocatedSite& site : allocation_.sites) {
    for (const AllocatedNode& node : site.nodes) {
      command.mutable_profile()->set_memory_limit_bytes(node.spec.device().memory_bytes());
      for (const int32_t device : node.devices) {
        sends.push_back(Command({site.name, node.spec.node(), device}, command));
      }
    }
  }
  return sends;
}

Reaction JobRun::OnProfile(int64_t now_ns, const WorkerKey& key, const v1::ProfileReport& report) {
  if (state_ != v1::JOB_STATE_PROFILING || !measuring_) {
    return {};
  }
  const absl::StatusOr<Measurement> measurement = MeasurementOf(report);
  if (!measurement.ok()) {
    return FailWith(
        fmt::format("worker {} measured nonsense: {}", DisplayName(key), std::string(measurement.status().message())));
  }
  const absl::StatusOr<bool> round_done = rounds_.OnReport(key, report.round(), *measurement);
  if (!round_done.ok()) {
    return FailWith(round_done.status());
  }
  if (!*round_done) {
    return {};
  }
  if (!rounds_.done()) {
    return {.sends = ProfileRound(now_ns)};
  }
  return MoveTo(v1::JOB_STATE_PLANNING,
                rounds_.profile().entries.empty()
                    ? fmt::format("all {} workers are up and have measured their transport", workers_.size())
                    : fmt::format("{} measured at {}", Counted(std::ssize(workers_), "device"),
                                  Counted(rounds_.rounds(), "batch shape")));
}

Reaction JobRun::OnPrepared(int64_t now_ns, const WorkerKey& key, const v1::WorkerReport& report) {
  if (state_ != v1::JOB_STATE_DEPLOYING) {
    return {};
  }
  const absl::StatusOr<bool> all = rollout_.OnPrepared(key, report.epoch(), report.prepared());
  if (!all.ok()) {
    return FailWith(all.status());
  }
  return *all ? Reaction{.sends = CommitAll(now_ns)} : Reaction{};
}

std::vector<NodeMessage> JobRun::CommitAll(int64_t now_ns) {
  deadline_ns_ = now_ns + limits_.commit_timeout_ns;
  v1::WorkerCommand command;
  command.set_epoch(rollout_.epoch());
  v1::CommitCommand& commit = *command.mutable_commit();
  commit.set_start_iteration(0);
  commit.set_end_iteration(EndIteration(job_, run_));
  commit.set_secret(secret_);
  // Twice a second at most, and of all ranks the same iterations.
  commit.set_actions_every(1 + limits_.actions_interval_ns / std::max<int64_t>(1, predicted_iteration_ns_));
  for (v1::Peer& peer : rollout_.Peers()) {
    *commit.add_peers() = std::move(peer);
  }
  std::vector<NodeMessage> sends;
  for (const WorkerKey& worker : rollout_.workers()) {
    sends.push_back(Command(worker, command));
  }
  return sends;
}

Reaction JobRun::OnCommitted(const WorkerKey& key, const v1::WorkerReport& report) {
  if (state_ != v1::JOB_STATE_DEPLOYING) {
    return {};
  }
  const absl::StatusOr<bool> all = rollout_.OnCommitted(key, report.epoch(), report.committed());
  if (!all.ok()) {
    return FailWith(all.status());
  }
  if (!*all) {
    return {};
  }
  return MoveTo(v1::JOB_STATE_RUNNING,
                fmt::format("all {} ranks have committed epoch {}", rollout_.workers().size(), rollout_.epoch()));
}

// A rank that has committed begins at once, so its first reports may overtake the last CommittedReport.
Reaction JobRun::OnIteration(int64_t now_ns, const WorkerKey& key, const v1::IterationReport& report) {
  if (rollout_.phase() == PlanRollout::Phase::kPreparing || rollout_.RankOf(key) != report.rank() ||
      report.iteration() >= EndIteration(job_, run_)) {
    return {};
  }
  const absl::StatusOr<int64_t> finished = iterations_.OnReport(report);
  if (!finished.ok()) {
    return FailWith(finished.status());
  }
  if (*finished > 0 && state_ == v1::JOB_STATE_RUNNING) {
    deadline_ns_ = now_ns + std::max(limits_.progress_timeout_ns, 10 * predicted_iteration_ns_);
  }
  Reaction reaction{.iterations_finished = *finished};
  if (*finished > 0) {
    reaction.traffic = NewTraffic();
  }
  return reaction;
}

std::vector<TrafficObservation> JobRun::NewTraffic() {
  const std::deque<v1::IterationTimeline>& timelines = iterations_.timelines();
  if (timelines.empty() || timelines.back().iteration() <= observed_iteration_) {
    return {};
  }
  observed_iteration_ = timelines.back().iteration();
  return ObserveTraffic(timelines.back(), plan_, costs_);
}

Reaction JobRun::OnFinished(Worker& worker, const WorkerKey& key, const v1::FinishedReport& report) {
  if (rollout_.phase() == PlanRollout::Phase::kPreparing || rollout_.RankOf(key) != report.rank()) {
    return {};
  }
  const int64_t end = EndIteration(job_, run_);
  if (report.iterations() != end) {
    return FailWith(fmt::format("worker {} (rank {}) stopped after {} of {} iterations", DisplayName(key),
                                report.rank(), report.iterations(), end));
  }
  worker.finished = true;
  if (state_ != v1::JOB_STATE_RUNNING || !AllFinished()) {
    return {};
  }
  return MoveTo(v1::JOB_STATE_COMPLETED, DoneSentence(end));
}

Reaction JobRun::OnExit(int64_t now_ns, const WorkerKey& key, const v1::WorkerExit& exit) {
  const auto found = workers_.find(key);
  if (found == workers_.end() || found->second.stopped) {
    return {};
  }
  const bool orderly = found->second.finished && exit.signal() == 0 && exit.exit_code() == 0;
  if (orderly) {
    return {};
  }
  // A worker that has told why stops by itself afterwards: that exit is no news.
  if (exit.signal() != 0 || !found->second.failed) {
    diagnosis_.Add(now_ns, EvidenceOf(key, exit));
  }
  return Diagnose(now_ns, false);
}

Reaction JobRun::OnNodeReturned(int64_t now_ns, const NodeKey& node, const std::set<int32_t>& alive) {
  std::vector<int32_t> lost;
  for (const auto& [key, worker] : workers_) {
    if (key.node_key() != node || worker.stopped || worker.finished || alive.contains(key.device)) {
      continue;
    }
    if (worker.attached) {
      diagnosis_.Add(now_ns, {.worth = FailureEvidence::Worth::kUnexplained,
                              .sentence = fmt::format("worker {} (site {}) is gone: its agent came back without it",
                                                      DisplayName(key), key.site)});
    } else {
      lost.push_back(key.device);  // the order to start it was lost with the stream
    }
  }
  Reaction reaction = Diagnose(now_ns, false);
  if (!reaction.change.has_value() && !lost.empty()) {
    reaction.sends.push_back({node, StartMessage(job_.name, incarnation_, lost)});
  }
  return reaction;
}

Reaction JobRun::OnNodeFailed(int64_t now_ns, const NodeKey& node, int64_t silent_ns) {
  if (!nodes_.contains(node)) {
    return {};
  }
  std::vector<WorkerKey> workers;
  for (const auto& [key, worker] : workers_) {
    if (key.node_key() == node && !worker.stopped) {
      workers.push_back(key);
    }
  }
  diagnosis_.Add(
      now_ns, {.worth = FailureEvidence::Worth::kRoot,
               .sentence = fmt::format("agent {} (site {}) has not been heard from for {}; its workers: {}",
                                       DisplayName(node), node.site, FormatSeconds(silent_ns), DisplayNames(workers))});
  return Diagnose(now_ns, false);
}

Reaction JobRun::OnTick(int64_t now_ns, bool node_silent) {
  if (diagnosis_.pending()) {
    return Diagnose(now_ns, node_silent);
  }
  return now_ns >= deadline_ns_ ? FailWith(DeadlineSentence()) : Reaction{};
}

}  // namespace geopipe
