#include "coordinator/core/coordinator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "optimizer/base/quantities.h"

namespace geopipe {

Coordinator::Coordinator(CoordinatorOptions options, StoredState stored)
    : options_(std::move(options)),
      stored_(std::move(stored)),
      membership_(options_.version, options_.membership),
      strays_(options_.run.rest_ns),
      jobs_(options_),
      links_(options_.probing, outbox_, membership_, jobs_),
      agents_(options_, outbox_, membership_, jobs_, links_),
      unknown_(options_, outbox_, membership_, jobs_, strays_, agents_),
      watches_(options_, outbox_, jobs_),
      placement_(outbox_, membership_, strays_, jobs_, links_, stored_.drained_sites),
      departures_(membership_, jobs_, placement_),
      ledger_(options_, outbox_, jobs_, links_, agents_),
      requests_(options_, outbox_, jobs_, watches_, placement_),
      next_incarnation_(options_.incarnation) {}

Effects Coordinator::Start(Now now) {
  started_ns_ = last_step_ns_ = now.ns;
  departures_.Start(now);
  links_.Restore(now, std::exchange(stored_.links, {}));
  for (StoredJob& stored : std::exchange(stored_.jobs, {})) {
    const v1::JobSummary& summary = stored.detail.summary();
    if (stored.damaged || (IsKeptName(summary.name()) && !IsFinal(summary.state()))) {
      // Its row stays as it is: a backup may be put in its place.
      const Job& job = jobs_.Add(DamagedJob(stored, now.unix_ns));
      outbox_.Log(LogLevel::kError, job.name(), job.detail.summary().cause());
      continue;
    }
    absl::StatusOr<std::unique_ptr<Job>> restored = RestoreJob(stored);
    const absl::Status unread = restored.status();
    if (!unread.ok()) {
      stored.detail.mutable_summary()->set_state(v1::JOB_STATE_FAILED);  // read as one that is over
      restored = RestoreJob(stored);
      (*restored)->detail.mutable_summary()->set_state(v1::JOB_STATE_PENDING);
    }
    Job& job = jobs_.Add(*std::move(restored));
    if (!unread.ok()) {
      Transition(now, job, v1::JOB_STATE_FAILED,
                 fmt::format("the stored job cannot be read by this version: {}", std::string(unread.message())), true);
    } else if (job.state() == v1::JOB_STATE_PENDING) {
      job.stored.next = stored.next_iteration;
      job.past = IterationLog::Restore(0, options_.run.max_iterations_kept, 0, stored.next_iteration,
                                       std::move(stored.iterations), {});
    } else if (!IsFinal(job.state())) {
      Adopt(now, job, std::move(stored));
    }
  }
  Schedule(now);  // nobody is there yet: jobs that wait say so
  return outbox_.TakeEffects();
}

void Coordinator::Adopt(Now now, Job& job, StoredJob stored) {
  job.stored.next = stored.next_iteration;
  absl::StatusOr<std::unique_ptr<JobRun>> run =
      stored.record.run_incarnation() == 0
          ? absl::DataLossError(
                "it was stored by a version that could not resume jobs after a restart of the coordinator")
          : JobRun::Restore(job.spec, job.options, std::move(stored), options_.version, options_.run, now);
  if (!run.ok()) {
    Transition(
        now, job, v1::JOB_STATE_FAILED,
        fmt::format("the coordinator restarted and cannot resume the job: {}", std::string(run.status().message())),
        true);
    return;
  }
  jobs_.SetRun(job, *std::move(run));
  Listen(now, *job.run);
  if (job.has_trained()) {
    job.home.insert(job.run->life().nodes.begin(), job.run->life().nodes.end());
  }
  next_incarnation_ = std::max(next_incarnation_, job.run->life().last_incarnation());
  job.saving_fails = !job.detail.checkpoint_trouble().empty();
  std::ranges::fill(job.iterations_before, job.iterations().oldest());
  outbox_.Log(LogLevel::kInfo, job.name(), "{}, as before the coordinator restarted; waiting for {}",
              JobStateName(job.state()), Counted(std::ssize(job.run->life().nodes), "agent"));
}

// An event is handled by the part that it concerns, which answers it as well.
template <class Each>
void Coordinator::Handle(Now now, Each& event) {
  const auto handle = [&](auto& part) {
    if constexpr (std::is_void_v<decltype(part.On(now, event))>) {
      part.On(now, event);
    } else {
      outbox_.Reply(event.call, part.On(now, event));
    }
  };
  if constexpr (requires { requests_.On(now, event); }) {
    handle(requests_);
  } else if constexpr (requires { links_.On(now, event); }) {
    handle(links_);
  } else if constexpr (requires { placement_.On(now, event); }) {
    handle(placement_);
  } else if constexpr (requires { unknown_.On(now, event); }) {
    handle(unknown_);
  } else if constexpr (requires { watches_.On(now, event); }) {
    handle(watches_);
  } else {
    handle(*this);
  }
}

Effects Coordinator::Step(Now now, Event event) {
  if (!std::holds_alternative<PersistFailed>(event)) {
    requests_.Confirm();
  }
  Forgive(now);
  const int64_t freed = strays_.freed();
  std::visit([&](auto& each) { Handle(now, each); }, event);
  if (std::holds_alternative<ApplyJob>(event) || std::holds_alternative<DrainSite>(event) ||
      std::holds_alternative<UncordonSite>(event)) {
    return outbox_.TakeEffects();
  }
  if (strays_.freed() > freed) {
    outbox_.AskToSchedule();
  }
  bool scheduled = false;
  for (std::optional<std::string> due = outbox_.TakeSchedule(); due.has_value(); due = outbox_.TakeSchedule()) {
    Schedule(now, *due);
    scheduled = true;
  }
  links_.Probe(now, scheduled);
  for (const std::string& job : outbox_.TakeChanged()) {
    watches_.Feed(job);
  }
  ledger_.Flush(now);
  return outbox_.TakeEffects();
}

void Coordinator::Forgive(Now now) {
  const int64_t pause_ns = now.ns - std::exchange(last_step_ns_, now.ns);
  if (pause_ns < options_.own_pause_ns) {
    return;
  }
  outbox_.Log(LogLevel::kWarning, "", "this process was stopped for {}; deadlines are put off by as much",
              FormatSeconds(pause_ns));
  started_ns_ += pause_ns;
  for (Job* job : jobs_.Running()) {
    job->run->Forgive(pause_ns);
  }
}

void Coordinator::On(Now /*now*/, IterationsLoaded& event) {
  if (Job* job = jobs_.Find(event.job); job != nullptr) {
    jobs_.RestorePast(*job, event);
    watches_.OnLoaded(*job);
  }
}

// --- Time and the planner -----------------------------------------------------------------------------------------

void Coordinator::On(Now now, Tick& /*event*/) {
  agents_.OnTick(now);
  if (membership_.TakeRested(now.ns)) {
    outbox_.AskToSchedule();
  }
  strays_.OnTick(now.ns);
  unknown_.OnTick(now);
  departures_.NoteUnheard(now);
  for (Job* job : jobs_.InOrder()) {
    if (job->run != nullptr) {
      Listen(now, *job->run);
      job->run->News(now.ns).OnTick();
    } else if (IsFinal(job->state())) {
      continue;
    }
    SaveBefore(now, *job, departures_.LookAfter(now, *job));
    Drive(now, *job);
    SayWait(now, *job);
    // A waiting job is scheduled again when its wait for links or its delay is over, and as long as some of its nodes
    // are not heard.
    if (job->state() == v1::JOB_STATE_PENDING &&
        (now.ns >= job->links_by_ns || (job->again_at_ns > 0 && now.ns >= job->again_at_ns) ||
         !job->unheard_ns.empty())) {
      outbox_.AskToSchedule();
    }
  }
  links_.OnTick(now);
}

void Coordinator::On(Now now, PlannerBegun& event) {
  if (Job* job = jobs_.OfRun(event.job, event.incarnation); job != nullptr) {
    job->run->OnPlanningBegun(now.ns);
  }
}

void Coordinator::On(Now now, SecretDrawn& event) {
  if (Job* job = jobs_.OfRun(event.job, event.incarnation); job != nullptr) {
    job->run->TakeSecret(std::move(event.secret));
    Drive(now, *job);
  }
}

void Coordinator::On(Now now, PlannerDone& event) {
  Job* job = jobs_.OfRun(event.job, event.incarnation);
  if (job == nullptr || job->state() != v1::JOB_STATE_PLANNING || job->run->life().plan != nullptr) {
    return;
  }
  absl::Status status = event.result.status();
  if (status.ok()) {
    status = job->run->SetPlan(&*event.result, std::move(event.secret));
  }
  if (status.ok() && !job->run->life().FindsState()) {
    status = absl::FailedPreconditionError(
        "the plan leaves out the nodes that hold the job's checkpoint; name their sites in placement.sites");
  }
  const bool is_reduced = !std::ranges::includes(job->run->life().allocation.nodes(), job->home);
  if (!status.ok() && job->has_trained() && !job->needs_home && is_reduced) {
    job->needs_home = true;
    Move(now, *job, v1::JOB_STATE_PENDING,
         fmt::format("no plan for {}: {}", fmt::join(job->run->life().allocation.site_names(), ", "),
                     std::string(status.message())));
    return;
  }
  if (!status.ok()) {
    job->detail.mutable_summary()->set_cause_code(status.raw_code());
    Move(now, *job, v1::JOB_STATE_FAILED, fmt::format("no plan: {}", std::string(status.message())));
    return;
  }
  SetPlanned(*job, *event.result);
  job->stored.timelines_void = true;
  for (const std::string& warning : event.result->warnings) {
    outbox_.Log(LogLevel::kWarning, job->name(), warning);
  }
  Drive(now, *job);
}

}  // namespace geopipe
