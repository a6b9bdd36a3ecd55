#include "tests/simulation/coordinator_host.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "coordinator/core/run/job_state.h"
#include "runtime/manifest/job_manifest.h"
#include "tests/coordinator/core/federation.h"

namespace geopipe::simulation {
namespace {

constexpr int64_t kTickNs = 200 * kMillisecondNs;
constexpr int64_t kProfileTimeoutNs = 45 * kSecondNs;  // of a round, which takes a second

absl::Status Full() { return absl::ResourceExhaustedError("the disk is full"); }

int64_t LossesOf(const v1::JobDetail& detail) {
  int64_t losses = 0;
  for (const v1::RecoverySummary& recovery : detail.recoveries()) {
    losses += 1 + recovery.workers_size();
  }
  return losses;
}

}  // namespace

// --- Disk ---------------------------------------------------------------------------------------------------------

StoredJob* Disk::Find(std::string_view job) {
  const auto found =
      std::ranges::find_if(jobs, [&](const StoredJob& each) { return each.detail.summary().name() == job; });
  return found == jobs.end() ? nullptr : &*found;
}

void Disk::Record(StoredJob& job, const v1::JobRecord& record) {
  rules_.OnRecord(job, record, jobs, drained);
  job.record = record;
}

void Disk::Outcome(StoredJob& job, v1::JobDetail outcome) {
  rules_.OnOutcome(job.detail.summary().name(), job.detail, outcome);
  outcome.set_manifest(job.detail.manifest());
  *outcome.mutable_run() = job.detail.run();
  *outcome.mutable_transitions() = job.detail.transitions();
  job.detail = std::move(outcome);
}

StoredState Disk::Load() const {
  StoredState loaded{.jobs = jobs, .links = {}, .drained_sites = {drained.begin(), drained.end()}};
  for (StoredJob& job : loaded.jobs) {
    if (IsFinal(job.detail.summary().state())) {
      job.iterations.clear();
      job.partial.clear();
    }
  }
  for (const auto& [pair, link] : links) {
    loaded.links.push_back(link);
  }
  return loaded;
}

void Disk::Append(const JobProgress& progress) {
  rules_.OnWritten(progress.job);
  StoredJob* job = Find(progress.job);
  if (job == nullptr) {
    world_.Break(fmt::format("progress of job {} is stored, which is not", progress.job));
    return;
  }
  if (progress.begins_at.has_value()) {
    std::erase_if(job->iterations, [&](const auto& each) { return each.iteration() >= *progress.begins_at; });
    if (!job->iterations.empty() && job->iterations.back().iteration() + 1 < *progress.begins_at) {
      job->iterations.clear();
    }
    job->next_iteration = *progress.begins_at;
  }
  for (const v1::IterationSummary& summary : progress.finished) {
    if (summary.iteration() != job->next_iteration) {
      world_.Break(fmt::format("job {}: iteration {} is stored and {} is due", progress.job, summary.iteration(),
                               job->next_iteration));
    }
    // A lost worker takes along what it had not reported; nothing else may be wrong. Every rank is busy half of the
    // time.
    const bool may_lack = job->record.epoch().number() > 1 || job->detail.recoveries_size() > 0 ||
                          rules_.MayLack(progress.job, summary.iteration());
    const bool is_wrong = summary.has_loss() && summary.loss() != LossOf(summary.iteration());
    const bool is_whole = summary.has_loss() && std::abs(summary.bubble_ratio() - 0.5) <= 1e-9;
    if (is_wrong || (summary.incomplete() ? !may_lack : !is_whole)) {
      world_.Break(fmt::format("job {}: iteration {} is stored incomplete or wrong: {}", progress.job,
                               summary.iteration(), summary.ShortDebugString()));
    }
    job->next_iteration = summary.iteration() + 1;
    job->iterations.push_back(summary);
  }
  job->partial.insert(job->partial.end(), progress.partial.begin(), progress.partial.end());
  std::erase_if(job->partial, [&](const auto& partial) { return partial.iteration() < job->next_iteration; });
}

// --- Coordinator --------------------------------------------------------------------------------------------------

CoordinatorLife::CoordinatorLife(World& world, Disk& disk, const DataPlane& plane, int64_t unix_offset,
                                 int64_t restarts_per_hour)
    : unix_offset_ns(unix_offset),
      world_(world),
      disk_(disk),
      plane_(plane),
      restarts_per_hour_(restarts_per_hour),
      process_(std::make_shared<Process>()) {
  process_->name = "coordinator";
  process_->on_death = [this] {
    for (const auto& [id, session] : sessions) {
      session.stream->server_closed = nullptr;
      session.close(absl::UnavailableError("the coordinator's process has ended"));
    }
    sessions.clear();
  };
}

void CoordinatorLife::Begin() {
  world_.In(30 * kMillisecondNs, process_, [this] {
    const absl::StatusOr<uint64_t> incarnation = NextIncarnation(UnixNowNs());
    if (!incarnation.ok()) {
      world_.Kill(process_);
      return;
    }
    CoordinatorOptions options;
    options.version = Federation::kVersion;
    options.federation = "simulated";
    options.incarnation = *incarnation;
    options.probing.first_probe = *incarnation;
    options.run.profile_timeout_ns = kProfileTimeoutNs;
    options.run.restarts_per_hour = restarts_per_hour_;
    process_->name = fmt::format("coordinator ({:x})", *incarnation);
    world_.Trace("{} starts", process_->name);
    runner_ = std::make_unique<Runner>(std::make_unique<Coordinator>(std::move(options), disk_.Load()),
                                       RunnerParts{.inbox = inbox_,
                                                   .port = port_,
                                                   .store = *this,
                                                   .agents = *this,
                                                   .calls = *this,
                                                   .planner = *this,
                                                   .clock = *this});
    if (!runner_->Start().ok()) {
      world_.Kill(process_);
      return;
    }
    Tick();
  });
}

void CoordinatorLife::Tick() {
  Take(geopipe::Tick{});
  world_.In(kTickNs, process_, [this] { Tick(); });
}

void CoordinatorLife::Take(Event event) {
  if (runner_ == nullptr) {
    return;
  }
  if (const absl::Status status = runner_->Take(std::move(event)); !status.ok()) {
    world_.Trace("{} ends: {}", process_->name, status.ToString());
    world_.Kill(process_);
  }
}

void CoordinatorLife::Call(std::function<Event(CallId)> make, OnReply reply) {
  world_.In(kMillisecondNs, process_, [this, make = std::move(make), reply = std::move(reply)] {
    if (runner_ == nullptr) {
      return;
    }
    const CallId call = next_call++;
    calls_[call] = reply;
    Take(make(call));
  });
}

absl::StatusOr<uint64_t> CoordinatorLife::NextIncarnation(int64_t now_unix_ns) {
  if (disk_.full) {
    return Full();
  }
  disk_.incarnation = std::max<uint64_t>(disk_.incarnation + (uint64_t{1} << 32),
                                         static_cast<uint64_t>(std::max<int64_t>(0, now_unix_ns)));
  // Agents obey nobody whose number is lower than one that they know. Where the store is older and the clock is behind
  // as well, people have to mend that first.
  if (disk_.incarnation <= disk_.highest_incarnation) {
    disk_.incarnation = disk_.highest_incarnation + (uint64_t{1} << 32);
  }
  disk_.highest_incarnation = disk_.incarnation;
  return disk_.incarnation;
}

absl::Status CoordinatorLife::InsertJob(const v1::JobDetail& detail, const v1::JobRecord& record,
                                        std::string_view forget, int64_t keep_below, std::string_view keep_as) {
  Effect();
  if (disk_.full) {
    return Full();
  }
  StoredJob inserted;
  StoredJob* const old = disk_.Find(detail.summary().name());
  if (old != nullptr && keep_below > 0) {
    inserted.iterations = old->iterations;
    std::erase_if(inserted.iterations, [&](const auto& each) { return each.iteration() >= keep_below; });
    inserted.next_iteration = std::min(old->next_iteration, keep_below);
  }
  disk_.rules().OnReplaced(old, keep_as, disk_.jobs);
  if (!keep_as.empty()) {
    old->detail.mutable_summary()->set_name(std::string(keep_as));
    old->partial.clear();
  }
  std::erase_if(disk_.jobs, [&](const StoredJob& job) {
    return job.detail.summary().name() == detail.summary().name() || job.detail.summary().name() == forget;
  });
  inserted.detail = detail;
  inserted.record = record;
  disk_.jobs.push_back(std::move(inserted));
  const absl::StatusOr<JobSpec> spec = ParseManifest(detail.manifest());
  disk_.rules().OnInsert(detail, spec.ok() ? spec->checkpoint.path : "");
  Effect();
  return absl::OkStatus();
}

absl::Status CoordinatorLife::AddTransition(std::string_view job, int64_t sequence, const v1::JobTransition& transition,
                                            const v1::JobDetail* outcome, const v1::JobRecord* record,
                                            const JobProgress* progress) {
  Effect();
  if (disk_.full) {
    return Full();
  }
  disk_.rules().OnWritten(job);
  StoredJob& stored = *disk_.Find(job);
  v1::JobDetail& detail = stored.detail;
  if (!MayFollow(detail.summary().state(), transition.state()) || sequence != detail.transitions_size()) {
    world_.Break(fmt::format("job {}: {} follows {}", job, JobStateName(transition.state()),
                             JobStateName(detail.summary().state())));
  }
  world_.Trace("job {}: {}: {}", job, JobStateName(transition.state()), transition.cause());
  disk_.rules().OnTransition(stored, transition.state(), transition.cause());
  if (disk_.on_transition) {
    disk_.on_transition(detail.summary().state(), transition.state());
  }
  if (transition.state() == v1::JOB_STATE_RECOVERING && disk_.on_recovering) {
    disk_.on_recovering(std::string(job), transition.cause());
  }
  if (transition.state() == v1::JOB_STATE_FAILED && disk_.on_failed) {
    disk_.on_failed(std::string(job), transition.cause());
  }
  if (outcome != nullptr) {
    disk_.Outcome(stored, *outcome);
  }
  *detail.add_transitions() = transition;
  detail.mutable_summary()->set_state(transition.state());
  detail.mutable_summary()->set_cause(transition.cause());
  if (record != nullptr) {
    disk_.Record(stored, *record);
  }
  if (progress != nullptr) {
    disk_.Append(*progress);
  }
  Effect();
  return absl::OkStatus();
}

absl::Status CoordinatorLife::SetRecord(std::string_view job, const v1::JobRecord& record,
                                        const v1::JobDetail* outcome) {
  Effect();
  if (disk_.full) {
    return Full();
  }
  disk_.rules().OnWritten(job);
  StoredJob& stored = *disk_.Find(job);
  const bool recovers = stored.detail.summary().state() == v1::JOB_STATE_RECOVERING;
  if (recovers && outcome != nullptr && LossesOf(*outcome) > LossesOf(stored.detail) && disk_.on_recovering) {
    disk_.on_recovering(std::string(job), "something else is lost");
  }
  if (outcome != nullptr) {
    disk_.Outcome(stored, *outcome);
  }
  disk_.Record(stored, record);
  Effect();
  return absl::OkStatus();
}

absl::Status CoordinatorLife::AddProgress(const std::vector<JobProgress>& progress,
                                          const std::vector<StoredLink>& links) {
  Effect();
  if (disk_.full || disk_.progress_full) {
    return Full();
  }
  for (const JobProgress& each : progress) {
    disk_.Append(each);
  }
  for (const StoredLink& link : links) {
    disk_.links[{link.from_site, link.to_site}] = link;
  }
  Effect();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<v1::IterationSummary>> CoordinatorLife::LoadIterations(std::string_view job) {
  const StoredJob* stored = disk_.Find(job);
  return stored == nullptr ? std::vector<v1::IterationSummary>() : stored->iterations;
}

absl::StatusOr<std::vector<v1::IterationTimeline>> CoordinatorLife::LoadTimelines(std::string_view /*job*/) {
  return std::vector<v1::IterationTimeline>();
}

absl::Status CoordinatorLife::SetDrained(std::string_view site, bool drained) {
  Effect();
  if (disk_.full) {
    return Full();
  }
  if (drained) {
    disk_.drained.emplace(site);
  } else {
    disk_.drained.erase(std::string(site));
  }
  Effect();
  return absl::OkStatus();
}

// No worker hears of an epoch that is not durable.
void CoordinatorLife::CheckCommand(const v1::RelayedCommand& relayed) {
  const v1::WorkerCommand& command = relayed.command();
  const StoreRules& rules = disk_.rules();
  if ((command.has_prepare() && !rules.has_epoch(command.prepare().run_incarnation(), command.epoch())) ||
      (command.has_commit() && !rules.has_secret(command.epoch(), command.commit().secret()))) {
    world_.Break(fmt::format("job {}: epoch {} is used before it is durable", relayed.worker().job(), command.epoch()));
  }
}

// A probe would disturb what a job has under way. Of the two ends each is ordered to the other's site.
void CoordinatorLife::CheckProbe(const v1::ProbeLink& order) {
  for (const StoredJob& job : disk_.jobs) {
    const JobState state = job.detail.summary().state();
    const bool is_there = std::ranges::any_of(job.record.crew(), [&](const v1::RecordedWorker& worker) {
      return worker.site() == order.to_site() && !worker.stopped();
    });
    if (is_there && state != v1::JOB_STATE_PENDING && !IsFinal(state)) {
      world_.Break(fmt::format("a link of {} is probed, where job {} has workers", order.to_site(),
                               job.detail.summary().name()));
    }
  }
}

void CoordinatorLife::Send(SessionId session, v1::ConnectResponse message) {
  Effect();
  if (message.has_probe_link()) {
    CheckProbe(message.probe_link());
  }
  if (message.has_command()) {
    CheckCommand(message.command());
    if (message.command().command().has_commit() && crash_at_commit.has_value()) {
      process_->crash_in = *std::exchange(crash_at_commit, std::nullopt);
    }
  }
  if (const auto found = sessions.find(session); found != sessions.end()) {
    found->second.send(std::move(message));
  }
}

void CoordinatorLife::Close(SessionId session, const absl::Status& status) {
  Effect();
  if (const auto found = sessions.find(session); found != sessions.end()) {
    found->second.stream->server_closed = nullptr;
    found->second.close(status);
    sessions.erase(found);
  }
}

void CoordinatorLife::Reply(CallId call, absl::StatusOr<ControlReply> reply) {
  Effect();
  if (const auto found = calls_.find(call); found != calls_.end()) {
    const OnReply on_reply = std::move(found->second);
    calls_.erase(found);
    on_reply(reply);
  }
}

void CoordinatorLife::SendToWatcher(CallId call, std::vector<v1::WatchJobResponse> messages) {
  Effect();
  if (on_watch) {
    on_watch(call, messages);
  }
}

void CoordinatorLife::EndWatch(CallId call, const absl::Status& /*status*/) {
  Effect();
  if (on_watch_end) {
    on_watch_end(call);
  }
}

void CoordinatorLife::Start(StartPlanning request) {
  plans_.push_back(std::move(request));
  PlanNext();
}

void CoordinatorLife::Stop(const StopPlanning& request) {
  std::erase_if(plans_, [&](const StartPlanning& each) {
    return each.job == request.job && each.incarnation == request.incarnation;
  });
}

// One plan at a time, as on the planner's thread.
void CoordinatorLife::PlanNext() {
  if (planning_ || plans_.empty()) {
    return;
  }
  planning_ = true;
  const StartPlanning request = std::move(plans_.front());
  plans_.erase(plans_.begin());
  world_.In(0, process_, [this, begun = PlannerBegun{request.job, request.incarnation}] { Take(begun); });
  const int64_t takes_ns = planner_slow ? 20 * kSecondNs : world_.Between(50, 3000) * kMillisecondNs;
  world_.In(takes_ns, process_, [this, request] {
    planning_ = false;
    Take(PlannerDone{request.job, request.incarnation,
                     Federation::PlanFor(request.input, plane_.iteration_ns(request.job)),
                     fmt::format("secret {:x}", world_.Number())});
    PlanNext();
  });
}

}  // namespace geopipe::simulation
