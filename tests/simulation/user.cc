#include "tests/simulation/user.h"

#include <algorithm>
#include <utility>

#include "coordinator/core/run/job_state.h"
#include "runtime/manifest/job_manifest.h"

namespace geopipe::simulation {
namespace {

// Time for the iteration under way to end, or to be found impossible to finish.
constexpr int64_t kPauseNs = 40 * kSecondNs;
// Time for reports to count as lost.
constexpr int64_t kForgottenNs = 150 * kSecondNs;
// Silence that the coordinator takes note of.
constexpr int64_t kNoticedNs = 2 * kSecondNs;

}  // namespace

void User::Want(JobSpec spec, int64_t apply_ns) {
  UserJob& job = jobs_[spec.name];
  job.spec = std::move(spec);
  job.apply_ns = apply_ns;
}

void User::Meet(const std::shared_ptr<CoordinatorLife>& coordinator) {
  coordinator_ = coordinator;
  met_ns_ = world_.now_ns();
  coordinator->on_watch = [this](CallId call, const std::vector<v1::WatchJobResponse>& messages) {
    OnWatch(call, messages);
  };
  coordinator->on_watch_end = [this](CallId call) { OnWatchEnd(call); };
  for (auto& [name, job] : jobs_) {
    job.watch = 0;
    job.calling = false;
  }
}

void User::Follow() {
  const int64_t now_ns = world_.now_ns();
  for (auto& [name, job] : jobs_) {
    const StoredJob* stored = disk_.Find(name);
    const JobState state = stored == nullptr ? v1::JOB_STATE_UNSPECIFIED : stored->detail.summary().state();
    if (job.applied && stored == nullptr) {
      world_.Break(fmt::format("job {} was acknowledged and is not in the store", name));
      return;
    }
    if (state != job.state) {
      OnState(name, job, state);
    }
    if (const int steps = stored == nullptr ? 0 : stored->detail.transitions_size();
        std::exchange(job.transitions, steps) != steps) {
      job.moved_ns = now_ns;
    }
    if (!reach_.hears(job.spec.placement.sites)) {
      job.unreachable_ns += kPollNs;
    } else if (CanCall()) {
      ledger_.NoteHeard(name, kPollNs);
    }
    CheckPause(name, job, stored);
    CheckAbandonment(name, job);
    if (!CanCall()) {
      continue;
    }
    if (job.calling && now_ns - job.call_ns > 5 * kSecondNs) {
      job.calling = false;  // the user tries again
    }
    if (job.calling) {
      continue;
    }
    if ((stored == nullptr || (IsFinal(state) && !job.applied)) && now_ns >= job.apply_ns) {
      Apply(name, job);
    } else if (const v1::ResumeFrom from = Choice(job, stored); from != v1::RESUME_FROM_UNSPECIFIED) {
      Resume(name, job, from);
    } else if (job.wants_resume) {
      Resume(name, job, v1::RESUME_FROM_UNSPECIFIED);
    } else if (stored != nullptr && now_ns >= next_look_ns_) {  // perhaps the answer to its submission was lost
      Ask(name, job);
    }
    Watch(name, job);
  }
  if (CanCall()) {
    Uncordon();
  }
  if (now_ns >= next_look_ns_) {
    next_look_ns_ = now_ns + 5 * kSecondNs;
  }
}

void User::Pause(const std::string& name, int64_t duration_ns) {
  UserJob& job = jobs_.at(name);
  if (!CanCall() || job.calling || !job.applied) {
    return;
  }
  Begin(job);
  coordinator_->Call(
      [name](CallId call) {
        return PauseJob{call, name};
      },
      [this, name](const absl::StatusOr<ControlReply>& reply) {
        jobs_.at(name).calling = false;
        world_.Trace("job {}: asked to pause: {}", name, reply.status().ToString());
        if (reply.ok()) {
          UserJob& paused = jobs_.at(name);
          paused.paused = true;
          const StoredJob* stored = disk_.Find(name);
          if (stored == nullptr || !stored->record.pause_wanted()) {
            world_.Break(fmt::format("the pause of job {} is acknowledged before it is durable", name));
            return;
          }
          // An end that was ordered for an earlier pause comes about all the same.
          const std::pair epoch{stored->record.run_incarnation(), stored->record.epoch().number()};
          const bool first = std::exchange(paused.paused_epoch, epoch) != epoch;
          paused.pause_early = first && std::ranges::any_of(paused.spec.placement.sites, [&](const std::string& site) {
                                 return reach_.silent_ns(site) >= 10 * kSecondNs;
                               });
        }
      });
  world_.In(duration_ns, [this, name] { jobs_.at(name).wants_resume = jobs_.at(name).applied; });
}

void User::Cancel(const std::string& name) {
  UserJob& job = jobs_.at(name);
  if (!CanCall() || job.calling || !job.applied) {
    return;
  }
  Begin(job);
  const bool checkpoint = !job.spec.checkpoint.path.empty() && world_.Chance(0.5);
  coordinator_->Call(
      [this, name, checkpoint](CallId call) {
        ledger_.OnChosen(name);
        return CancelJob{call, name, "the user wants it so", checkpoint};
      },
      [this, name, checkpoint](const absl::StatusOr<ControlReply>& reply) {
        jobs_.at(name).calling = false;
        world_.Trace("job {}: asked to end{}: {}", name, checkpoint ? " with a checkpoint" : "",
                     reply.status().ToString());
        const StoredJob* stored = disk_.Find(name);
        if (reply.ok() && !IsFinal(stored->detail.summary().state()) &&
            (!checkpoint || stored->record.closing().empty())) {
          world_.Break(fmt::format("job {} is cancelled before that is durable", name));
        }
        jobs_.at(name).paused = jobs_.at(name).paused || (reply.ok() && checkpoint);  // it may stay so
      });
}

void User::Checkpoint(const std::string& name) {
  if (CanCall() && jobs_.at(name).applied) {
    coordinator_->Call(
        [name](CallId call) {
          return CheckpointJob{call, name};
        },
        [](const absl::StatusOr<ControlReply>& /*reply*/) {});
  }
}

void User::Drain(const std::string& site, int64_t duration_ns) {
  if (!CanCall()) {
    return;
  }
  drained_[site] = world_.now_ns() + duration_ns;
  coordinator_->Call(
      [site](CallId call) {
        return DrainSite{call, site};
      },
      [this, site](const absl::StatusOr<ControlReply>& reply) {
        world_.Trace("site {}: asked to drain it: {}", site, reply.status().ToString());
        if (reply.ok() && !disk_.drained.contains(site)) {
          world_.Break(fmt::format("site {} is drained before that is durable", site));
        }
      });
}

void User::UncordonAll() {
  for (auto& [site, until_ns] : drained_) {
    until_ns = 0;
  }
}

// Asks again and again until the site is in use.
void User::Uncordon() {
  constexpr int64_t kAgainNs = 2 * kSecondNs;
  for (auto& [site, until_ns] : drained_) {
    if (world_.now_ns() < until_ns) {
      continue;
    }
    until_ns = world_.now_ns() + kAgainNs;
    coordinator_->Call(
        [site](CallId call) {
          return UncordonSite{call, site};
        },
        [this, site](const absl::StatusOr<ControlReply>& reply) {
          world_.Trace("site {}: asked to use it again: {}", site, reply.status().ToString());
          if (reply.ok() && disk_.drained.contains(site)) {
            world_.Break(fmt::format("site {} is in use again before that is durable", site));
          }
          if (reply.ok()) {
            drained_.erase(site);
          }
        });
  }
}

void User::OnOlderStore() {
  for (auto& [name, job] : jobs_) {
    const StoredJob* stored = disk_.Find(name);
    if (stored == nullptr && ledger_.ApplicationOf(name) == 0) {
      continue;  // it is still to be applied
    }
    job.watch = 0;
    job.watched = stored == nullptr ? 0 : stored->next_iteration;
    job.joined = job.watch_over = job.calling = job.wants_resume = false;
    job.choose_ns = world_.now_ns() + world_.Between(5, 20) * kSecondNs;
    job.applied = stored != nullptr && !IsFinal(stored->detail.summary().state());
    job.paused = job.paused && job.applied && stored->record.pause_wanted();
    if (stored != nullptr) {
      job.spec.checkpoint.path = ParseManifest(stored->detail.manifest())->checkpoint.path;
    }
    if (!job.applied) {
      job.apply_ns = world_.now_ns() + world_.Between(8, 20) * kSecondNs;
      job.resumes = stored == nullptr && !job.spec.checkpoint.path.empty() && world_.Chance(0.5);
      ++job.runs;
      if (!job.spec.checkpoint.path.empty() && !job.resumes) {
        job.spec.checkpoint.path = fmt::format("/checkpoints/{}-{}", name, job.runs);
      }
    }
  }
  for (const std::string& site : disk_.drained) {
    drained_.try_emplace(site, world_.now_ns());
  }
}

// The user has put an older store back: looks at the jobs that wait, and lets those go on that need not.
v1::ResumeFrom User::Choice(const UserJob& job, const StoredJob* stored) {
  if (job.choose_ns < 0 || world_.now_ns() < job.choose_ns || stored == nullptr) {
    return v1::RESUME_FROM_UNSPECIFIED;
  }
  const v1::JobSummary& seen = job.detail.summary();
  if (job.state == v1::JOB_STATE_PENDING && seen.state() == v1::JOB_STATE_PENDING &&
      seen.cause().find("this job store is older than their run") != std::string::npos) {
    return v1::RESUME_FROM_STORE;
  }
  if (job.state != v1::JOB_STATE_PAUSED || job.paused) {
    return v1::RESUME_FROM_UNSPECIFIED;
  }
  return stored->record.outrun() && world_.Chance(0.5) ? v1::RESUME_FROM_STORE : v1::RESUME_FROM_NEWEST;
}

void User::ResumeAll() {
  for (auto& [name, job] : jobs_) {
    job.wants_resume = job.wants_resume || job.paused;
  }
}

void User::CheckEnd() const {
  for (const auto& [name, job] : jobs_) {
    const StoredJob* stored = disk_.Find(name);
    if (stored == nullptr || job.state == v1::JOB_STATE_UNSPECIFIED || IsFinal(job.state)) {
      continue;
    }
    const int64_t in_state_ns = world_.now_ns() - job.entered_ns;
    const std::string& cause = job.detail.summary().cause();
    if (job.state == v1::JOB_STATE_RUNNING) {
      const int64_t next = NextOf(name);
      // The last state is written, and copied, and tried again after ten seconds where that failed.
      const int64_t due_ns = plane_.iteration_ns(name) + (next == job.spec.training.iterations ? 45 : 12) * kSecondNs;
      // A worker that is stuck with its part of the last state is waited for.
      const bool is_saving = next == job.spec.training.iterations && ledger_.excused(name, "a worker is stuck");
      // Reports that an older store has forgotten are waited for, and anew by each life of the coordinator.
      const bool rests = next == job.spec.training.iterations || stored->record.epoch().ending();
      const bool waits = rests && ledger_.FindForgotten(name) != nullptr && world_.now_ns() - met_ns_ < kForgottenNs;
      if (world_.now_ns() - ProgressOf(name) > due_ns && in_state_ns > due_ns && !is_saving && !waits) {
        world_.Break(fmt::format("job {} is RUNNING and makes no progress", name));
      } else if (std::max(stored->next_iteration, ledger_.Find(name)->first) + 3 < next && !waits) {
        world_.Break(fmt::format("job {}: {} iterations are done and {} are told", name, next, stored->next_iteration));
      }
    } else if (job.state == v1::JOB_STATE_PENDING) {
      if (in_state_ns > 30 * kSecondNs && cause.empty()) {
        world_.Break(fmt::format("job {} is PENDING and does not say what it waits for", name));
      }
    } else if (job.state == v1::JOB_STATE_REPLANNING && ledger_.excused(name, "a worker is stuck")) {
      continue;
    } else if (job.state == v1::JOB_STATE_RECOVERING && cause.starts_with("no agent knows the fate of") &&
               in_state_ns < 20 * plane_.iteration_ns(name) + 120 * kSecondNs) {
      continue;  // the process must have ended, and a coordinator that was restarted begins to wait anew
    } else if (job.state == v1::JOB_STATE_RECOVERING && ledger_.excused(name, "a worker is stuck") &&
               in_state_ns < (stored->detail.summary().losses() > 2 ? 180 : 75) * kSecondNs) {
      // One that is stuck before it is prepared is not told from one that reads before timeouts.start. Losses one after
      // the other delay what follows, each by a minute at most.
      continue;
    } else if (world_.now_ns() - job.moved_ns > 60 * kSecondNs) {  // it may be back in a state that it left meanwhile
      world_.Break(fmt::format("job {} stays {}: {}", name, JobStateName(job.state), cause));
    }
  }
}

int64_t User::ProgressOf(const std::string& name) const {
  const JobTruth* truth = ledger_.Find(name);
  return truth == nullptr ? 0 : truth->progress_ns;
}

int64_t User::NextOf(const std::string& name) const {
  const StoredJob* stored = disk_.Find(name);
  const RunTruth* truth = stored == nullptr ? nullptr : ledger_.Find(stored->record.run_incarnation());
  const UserJob& job = jobs_.at(name);
  int64_t next = truth == nullptr ? 0 : job.spec.training.iterations;
  for (int32_t rank = 0; truth != nullptr && rank < std::max(1, truth->ranks); ++rank) {
    const auto found = truth->next.find(rank);
    next = std::min(next, found == truth->next.end() ? 0 : found->second);
  }
  return next;
}

bool User::CanCall() const {
  return coordinator_ != nullptr && coordinator_->process()->alive && !coordinator_->process()->paused;
}

void User::OnState(const std::string& name, UserJob& job, JobState state) {
  completed_ += state == v1::JOB_STATE_COMPLETED ? 1 : 0;
  failed_ += state == v1::JOB_STATE_FAILED ? 1 : 0;
  deployed_ += state == v1::JOB_STATE_DEPLOYING ? 1 : 0;
  job.state = state;
  job.entered_ns = world_.now_ns();
  job.unreachable_ns = 0;
  if (state == v1::JOB_STATE_COMPLETED && disk_.Find(name)->next_iteration != job.spec.training.iterations) {
    world_.Break(fmt::format("job {} is COMPLETED and {} iterations of {} are stored", name,
                             disk_.Find(name)->next_iteration, job.spec.training.iterations));
  }
  if (IsFinal(state)) {  // the user looks at it for a while, and runs it again
    job.applied = job.paused = job.wants_resume = false;
    job.apply_ns = world_.now_ns() + world_.Between(8, 20) * kSecondNs;
    const v1::JobDetail& detail = disk_.Find(name)->detail;
    const bool has_more = detail.checkpoints_size() > 0 &&
                          detail.checkpoints().rbegin()->identity().iteration() < job.spec.training.iterations;
    job.resumes = has_more && world_.Chance(0.6);
    ++job.runs;
    if (!job.spec.checkpoint.path.empty() && !job.resumes) {
      job.spec.checkpoint.path = fmt::format("/checkpoints/{}-{}", name, job.runs);
    }
  }
}

void User::CheckPause(const std::string& name, UserJob& job, const StoredJob* stored) {
  const bool hears = reach_.hears(job.spec.placement.sites);
  const bool pausing = stored != nullptr && job.state == v1::JOB_STATE_RUNNING && stored->record.pause_wanted() &&
                       !disk_.full && !disk_.progress_full && CanCall() && hears;
  job.pause_early = job.pause_early && std::ranges::any_of(job.spec.placement.sites, [&](const std::string& site) {
                      return reach_.silent_ns(site) >= kNoticedNs;
                    });
  // Reports that an older store has forgotten are waited for.
  const Forgotten* forgotten = ledger_.FindForgotten(name);
  const bool waits = forgotten != nullptr && forgotten->heard_ns < kForgottenNs;
  job.pausing_ns = pausing && !waits ? job.pausing_ns + kPollNs : 0;
  if (job.pausing_ns > kPauseNs + plane_.iteration_ns(name)) {
    world_.Break(fmt::format("job {} is to pause and runs on", name));
  }
}

// A worker that cannot even abandon its iteration is replaced while the others wait for it.
void User::CheckAbandonment(const std::string& name, UserJob& job) {
  const bool abandons = job.state == v1::JOB_STATE_RECOVERING && !disk_.full && CanCall() &&
                        reach_.hears(job.spec.placement.sites) && plane_.AbandonsInVain(name);
  job.abandoning_ns = abandons ? job.abandoning_ns + kPollNs : 0;
  if (job.abandoning_ns > 10 * kSecondNs) {
    world_.Break(fmt::format("job {} is RECOVERING, and a worker that is stuck was not replaced within 10 s", name));
  }
}

void User::Begin(UserJob& job) {
  job.calling = true;
  job.call_ns = world_.now_ns();
}

void User::Apply(const std::string& name, UserJob& job) {
  Begin(job);
  coordinator_->Call(
      [spec = job.spec, resumes = job.resumes](CallId call) {
        RunOptions options;
        options.resume = resumes;
        return ApplyJob{call, spec, options, /*replace=*/!resumes};
      },
      [this, name](const absl::StatusOr<ControlReply>& reply) {
        UserJob& applied = jobs_.at(name);
        applied.calling = false;
        if (reply.ok() || absl::IsAlreadyExists(reply.status())) {
          if (disk_.Find(name) == nullptr) {
            world_.Break(fmt::format("job {} is acknowledged before it is durable", name));
          }
          applied.applied = true;
          applied.watched = 0;
          applied.joined = false;
          applied.watch_over = false;
          applied.state = v1::JOB_STATE_UNSPECIFIED;
          ledger_.Forget(name);
        }
      });
}

void User::Ask(const std::string& name, UserJob& job) {
  Begin(job);
  coordinator_->Call(
      [name](CallId call) {
        return GetJob{call, name};
      },
      [this, name](const absl::StatusOr<ControlReply>& reply) {
        jobs_.at(name).calling = false;
        if (absl::IsNotFound(reply.status()) && jobs_.at(name).applied) {
          world_.Break(fmt::format("job {} was acknowledged and is not known any more", name));
        }
        if (reply.ok()) {
          jobs_.at(name).detail = std::get<v1::GetJobResponse>(*reply).job();
        }
      });
}

void User::Resume(const std::string& name, UserJob& job, v1::ResumeFrom from) {
  Begin(job);
  if (from != v1::RESUME_FROM_UNSPECIFIED) {
    job.choose_ns = world_.now_ns() + world_.Between(5, 20) * kSecondNs;
  }
  const std::string secret = fmt::format("secret {:x}", world_.Number());
  coordinator_->Call(
      [this, name, secret, from](CallId call) {
        if (from != v1::RESUME_FROM_UNSPECIFIED) {
          ledger_.OnChosen(name);
        }
        if (const StoredJob* stored = disk_.Find(name); from == v1::RESUME_FROM_STORE && stored != nullptr) {
          const bool has_run = stored->detail.summary().state() != v1::JOB_STATE_PENDING;
          ledger_.OnGivenUp(name, has_run ? stored->record.run_incarnation() : 0,
                            has_run ? stored->record.epoch().number() : stored->detail.summary().epoch());
        }
        return ResumeJob{{{call}, name}, secret, from};
      },
      [this, name, from](const absl::StatusOr<ControlReply>& reply) {
        world_.Trace("job {}: asked to go on{}: {}", name,
                     from == v1::RESUME_FROM_STORE    ? " from what the store knows"
                     : from == v1::RESUME_FROM_NEWEST ? " from the newest state"
                                                      : "",
                     reply.status().ToString());
        // Refused: it is not paused, or over.
        UserJob& resumed = jobs_.at(name);
        resumed.calling = resumed.wants_resume = resumed.paused = false;
        resumed.pause_early = resumed.pause_early && !reply.ok();
      });
}

void User::Watch(const std::string& name, UserJob& job) {
  if (!job.applied || job.watch != 0 || job.watch_over) {
    return;
  }
  const int64_t from = job.watched;
  const CallId call = job.watch = coordinator_->next_call++;
  world_.In(kMillisecondNs, coordinator_->process(), [life = coordinator_, call, name, from] {
    life->Take(WatchStart{call, name, from, 1'000'000});
  });
}

void User::OnWatch(CallId call, const std::vector<v1::WatchJobResponse>& messages) {
  for (auto& [name, job] : jobs_) {
    if (job.watch != call) {
      continue;
    }
    for (const v1::WatchJobResponse& message : messages) {
      // A job that an older store does not know is resumed without what it has told before.
      if (message.has_iteration() && job.choose_ns >= 0 && job.watched == 0) {
        job.watched = message.iteration().iteration();
      }
      // The run before may have ended before the reports of its last iterations came, or an older store has forgotten
      // them: one gap up to its checkpoint.
      if (message.has_iteration() && (job.resumes || job.choose_ns >= 0) && !job.joined &&
          message.iteration().iteration() > job.watched) {
        job.watched = message.iteration().iteration();
        job.joined = true;
      }
      if (message.has_iteration() && message.iteration().iteration() != job.watched++) {
        world_.Break(fmt::format("job {}: iteration {} is watched and {} is due", name, message.iteration().iteration(),
                                 job.watched - 1));
      }
      if (message.has_transition() && IsFinal(message.transition().state())) {
        job.watch_over = true;
        if (message.transition().state() == v1::JOB_STATE_COMPLETED && job.watched != job.spec.training.iterations) {
          world_.Break(fmt::format("job {}: its watch ends after {} iterations", name, job.watched));
        }
      }
    }
  }
}

void User::OnWatchEnd(CallId call) {
  for (auto& [name, job] : jobs_) {
    if (job.watch == call) {
      job.watch = 0;
    }
  }
}

}  // namespace geopipe::simulation
