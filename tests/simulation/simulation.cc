#include "tests/simulation/simulation.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "coordinator/core/job_state.h"
#include "tests/coordinator/core/federation.h"
#include "tests/simulation/coordinator_host.h"
#include "tests/simulation/data_plane.h"
#include "tests/simulation/ledger.h"
#include "tests/simulation/node.h"
#include "tests/simulation/world.h"

namespace geopipe::simulation {
namespace {

constexpr int64_t kPollNs = 250 * kMillisecondNs;
constexpr int64_t kCalmNs = 75 * kSecondNs;
// Silence that a job may be failed for: less than an orphan's grace.
constexpr int64_t kSilenceNs = 25 * kSecondNs;
// For the iteration under way, or to find that it cannot be finished.
constexpr int64_t kPauseNs = 40 * kSecondNs;
// After a long cut of the data path, for its consequences to be told.
constexpr int64_t kPatienceNs = 60 * kSecondNs;

// What the user has and knows of a job.
struct UserJob {
  JobSpec spec;
  bool applied = false;  // and told so
  bool calling = false;  // an answer is awaited
  int64_t call_ns = 0;   // since then
  int64_t apply_ns = 0;  // when to apply it
  bool paused = false;   // the user has asked for it, and was told so
  bool wants_resume = false;
  int64_t entered_ns = 0;  // its state, as the store has it
  JobState state = v1::JOB_STATE_UNSPECIFIED;
  int64_t unreachable_ns = 0;  // how long some site of it could not be reached in this state
  int64_t pausing_ns = 0;      // how long it has been RUNNING though it is to pause, undisturbed
  bool pause_early = false;    // asked for while some site had been silent for long, and was since
  // Watch.
  CallId watch = 0;
  int64_t watched = 0;  // next iteration
  bool watch_over = false;
};

class Simulation final : public Listener {
 public:
  Simulation(const Options& options, const std::vector<Fault>& faults)
      : options_(options), world_(options.seed, options.trace), faults_(faults) {
    const std::vector<std::string> sites = {"north", "east", "west"};
    const int32_t devices = world_.Chance(0.5) ? 1 : 2;
    for (const std::string& site : sites) {
      nodes_.push_back(std::make_unique<Node>(world_, plane_, ledger_, *this, site, sites, devices));
    }
    // Some iterations take longer than a worker is left alone elsewhere.
    const bool is_long = world_.Chance(0.2);
    plane_.SetIteration("first", 2 * kSecondNs);
    plane_.SetIteration("second", is_long ? 40 * kSecondNs : 3 * kSecondNs);
    jobs_["first"].spec = JobOf("first", sites, 150);
    jobs_["second"].spec =
        JobOf("second", world_.Chance(0.5) ? sites : std::vector<std::string>{"east", "west"}, is_long ? 9 : 90);
    jobs_["first"].apply_ns = 2 * kSecondNs;
    jobs_["second"].apply_ns = world_.Between(3, 60) * kSecondNs;
    disk_.on_failed = [this](const std::string& job, const std::string& cause) { OnFailed(job, cause); };
    reached_ns_.assign(nodes_.size(), world_.now_ns());
    returned_ns_.assign(nodes_.size(), -3600 * kSecondNs);
    hold_agent_ns_.assign(nodes_.size(), 0);
    agent_gone_ns_.assign(nodes_.size(), 0);
    cut_until_ns_.assign(nodes_.size(), -3600 * kSecondNs);
  }

  Outcome Run() {
    for (const Fault& fault : faults_) {
      world_.In(fault.at_ns - world_.now_ns(), [this, fault] { Happen(fault); });
    }
    world_.In(0, [this] { Poll(); });
    world_.In(0, [this] { PollPlane(); });
    const int64_t calm_ns = world_.now_ns() + options_.duration_ns;
    world_.RunUntil(calm_ns);
    Heal();
    world_.RunUntil(calm_ns + kCalmNs);
    if (world_.broken().empty()) {
      CheckEnd();
    }
    Outcome outcome{.broken = world_.broken(),
                    .broken_ns = world_.broken_ns(),
                    .faults = faults_,
                    .simulated_ns = world_.now_ns(),
                    .events = world_.events(),
                    .iterations = ledger_.iterations(),
                    .completed = completed_,
                    .failed = failed_,
                    .epochs = epochs_};
    // Nothing runs any more: what refers to each other is let go.
    for (const std::unique_ptr<Node>& node : nodes_) {
      node->Reboot();
    }
    if (coordinator_ != nullptr) {
      world_.Kill(coordinator_->process());
    }
    return outcome;
  }

  // --- Listener ---
  ProcessPtr listening() const override {
    return coordinator_ != nullptr && coordinator_->process()->alive ? coordinator_->process() : nullptr;
  }
  int64_t started_ns() const override { return coordinator_started_ns_; }
  void Accept(const std::shared_ptr<ControlStream>& stream, v1::ConnectRequest hello,
              std::function<void(v1::ConnectResponse)> send_down, std::function<void(absl::Status)> close) override {
    const std::shared_ptr<CoordinatorLife> life = coordinator_;
    const SessionId session = life->next_session++;
    life->sessions[session] = {stream, std::move(send_down), std::move(close)};
    stream->server_closed = [this, life, session] {
      world_.In(0, life->process(), [life, session] {
        if (life->sessions.erase(session) > 0) {
          life->Take(AgentClosed{session, "closed"});
        }
      });
    };
    life->Take(AgentMessage{session, std::move(hello)});
  }
  void Hear(const ControlStream* stream, v1::ConnectRequest message) override {
    for (const auto& [id, session] : coordinator_->sessions) {
      if (session.stream.get() == stream) {
        coordinator_->Take(AgentMessage{id, std::move(message)});
        return;
      }
    }
  }
  void Closed(const ControlStream* /*stream*/) override {}

 private:
  static JobSpec JobOf(const std::string& name, const std::vector<std::string>& sites, int64_t iterations) {
    JobSpec job = Federation::TinyJob(sites);
    job.name = name;
    job.training.iterations = iterations;
    return job;
  }

  // --- Who starts what has died ---
  void StartCoordinator() {
    coordinator_started_ns_ = world_.now_ns();
    coordinator_ = std::make_shared<CoordinatorLife>(world_, disk_, plane_, unix_offset_ns_);
    coordinator_->on_watch = [this](CallId call, const std::vector<v1::WatchJobResponse>& messages) {
      OnWatch(call, messages);
    };
    coordinator_->on_watch_end = [this](CallId call) {
      for (auto& [name, job] : jobs_) {
        if (job.watch == call) {
          job.watch = 0;
        }
      }
    };
    for (auto& [name, job] : jobs_) {
      job.watch = 0;
      job.calling = false;
    }
    coordinator_->planner_slow = world_.now_ns() < slow_planner_until_ns_;
    coordinator_->Begin();
  }

  void PollPlane() {
    plane_.Poll();
    world_.In(DataPlane::kPollNs, [this] { PollPlane(); });
  }

  void Poll() {
    const int64_t now_ns = world_.now_ns();
    if (listening() == nullptr) {
      if (!coordinator_gone_ns_.has_value()) {
        coordinator_gone_ns_ = now_ns;
      }
      if (now_ns >= hold_coordinator_ns_ && now_ns >= *coordinator_gone_ns_ + kSecondNs / 2) {
        coordinator_gone_ns_.reset();
        StartCoordinator();
      }
    }
    for (size_t i = 0; i < nodes_.size(); ++i) {
      Node& node = *nodes_[i];
      const bool alive = node.agent() != nullptr && node.agent()->process->alive;
      if (!alive && now_ns >= hold_agent_ns_[i]) {
        node.StartAgent();
      }
      if (alive && !node.agent()->process->paused) {
        agent_gone_ns_[i] = now_ns;
      }
      if (node.reachable() && node.agent()->core.link().registered() && listening() != nullptr) {
        if (now_ns - reached_ns_[i] >= kSilenceNs) {
          returned_ns_[i] = now_ns;
        }
        reached_ns_[i] = now_ns;
      }
      CheckOrphans(i);
    }
    FollowJobs();
    world_.In(kPollNs, [this] { Poll(); });
  }

  // How long a worker of the job is left alone without an agent and without a finished iteration.
  int64_t GraceOf(const std::string& job) const { return std::max(30 * kSecondNs, 10 * plane_.iteration_ns(job)); }

  // A worker that no agent speaks to and that finishes nothing is gone after its grace, unless it is paused or has
  // finished.
  void CheckOrphans(size_t i) {
    for (const auto& [pid, worker] : nodes_[i]->workers()) {
      CheckOrphan(*worker, agent_gone_ns_[i], quiet_since_ns_[{i, pid}]);
    }
    for (const std::shared_ptr<Worker>& stray : nodes_[i]->strays()) {
      CheckOrphan(*stray, stray->stray_ns(), quiet_since_ns_[{i, stray->pid()}]);
    }
  }

  void CheckOrphan(Worker& worker, int64_t agent_gone_ns, int64_t& since_ns) {
    const int64_t now_ns = world_.now_ns();
    const v1::WorkerStatus status = worker.status();
    const int64_t grace_ns = 4 * kSecondNs + (status.epoch() == 0 ? 30 * kSecondNs : GraceOf(worker.id().job()));
    const bool rests = worker.stray_ns() == 0 &&
                       (status.phase() == v1::WORKER_PHASE_ENDED || status.phase() == v1::WORKER_PHASE_FINISHED);
    if (now_ns - agent_gone_ns < grace_ns || rests) {
      return;
    }
    const RunTruth* truth = ledger_.Find(worker.trainer().run());
    const int64_t progress_ns = truth == nullptr ? 0 : truth->progress_ns;
    since_ns = since_ns == 0 ? now_ns : since_ns;
    if (worker.process()->alive && worker.begun() && worker.process()->paused_ns == 0 && now_ns - since_ns > grace_ns &&
        now_ns - progress_ns > grace_ns) {
      world_.Break(fmt::format("{} outlives its right to run: no agent and no iteration", worker.process()->name));
    }
  }

  // When the job's latest run has finished an iteration last.
  int64_t ProgressOf(const std::string& name) {
    const StoredJob* stored = disk_.Find(name);
    const RunTruth* truth = stored == nullptr ? nullptr : ledger_.Find(stored->record.run_incarnation());
    return truth == nullptr ? 0 : truth->progress_ns;
  }

  // Iterations that all ranks of the job's latest run have finished.
  int64_t NextOf(const std::string& name) {
    const StoredJob* stored = disk_.Find(name);
    const RunTruth* truth = stored == nullptr ? nullptr : ledger_.Find(stored->record.run_incarnation());
    const UserJob& job = jobs_.at(name);
    int64_t next = truth == nullptr ? 0 : job.spec.training.iterations;
    for (int32_t rank = 0; truth != nullptr && rank < static_cast<int32_t>(job.spec.placement.sites.size()); ++rank) {
      const auto found = truth->next.find(rank);
      next = std::min(next, found == truth->next.end() ? 0 : found->second);
    }
    return next;
  }

  std::vector<size_t> SitesOf(const UserJob& job) const {
    std::vector<size_t> sites;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (std::ranges::find(job.spec.placement.sites, nodes_[i]->site()) != job.spec.placement.sites.end()) {
        sites.push_back(i);
      }
    }
    return sites;
  }

  // --- The user ---
  void FollowJobs() {
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
      const std::vector<size_t> sites = SitesOf(job);
      if (std::ranges::any_of(sites, [&](size_t i) { return reached_ns_[i] != now_ns; })) {
        job.unreachable_ns += kPollNs;
      }
      CheckPause(name, job, stored);
      if (listening() == nullptr || coordinator_->process()->paused) {
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
      } else if (job.wants_resume) {
        Resume(name, job);
      } else if (job.applied && now_ns >= next_look_ns_) {
        Ask(name, job);
      }
      Watch(name, job);
    }
    if (now_ns >= next_look_ns_) {
      next_look_ns_ = now_ns + 5 * kSecondNs;
    }
  }

  void CheckPause(const std::string& name, UserJob& job, const StoredJob* stored) {
    const std::vector<size_t> sites = SitesOf(job);
    const bool pausing = stored != nullptr && job.state == v1::JOB_STATE_RUNNING && stored->record.pause_wanted() &&
                         !disk_.full && !disk_.progress_full && listening() != nullptr && !listening()->paused &&
                         std::ranges::all_of(sites, [&](size_t i) { return reached_ns_[i] == world_.now_ns(); });
    job.pause_early =
        job.pause_early && std::ranges::any_of(sites, [&](size_t i) { return reached_ns_[i] != world_.now_ns(); });
    job.pausing_ns = pausing ? job.pausing_ns + kPollNs : 0;
    if (job.pausing_ns > kPauseNs + plane_.iteration_ns(name)) {
      world_.Break(fmt::format("job {} is to pause and runs on", name));
    }
  }

  void OnState(const std::string& name, UserJob& job, JobState state) {
    completed_ += state == v1::JOB_STATE_COMPLETED ? 1 : 0;
    failed_ += state == v1::JOB_STATE_FAILED ? 1 : 0;
    epochs_ += state == v1::JOB_STATE_DEPLOYING ? 1 : 0;
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
    }
  }

  void Begin(UserJob& job) {
    job.calling = true;
    job.call_ns = world_.now_ns();
  }

  void Apply(const std::string& name, UserJob& job) {
    Begin(job);
    coordinator_->Call(
        [spec = job.spec](CallId call) {
          return ApplyJob{call, spec, {}};
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
            applied.watch_over = false;
            applied.state = v1::JOB_STATE_UNSPECIFIED;
            ledger_.Forget(name);
          }
        });
  }

  void Ask(const std::string& name, UserJob& job) {
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
            detail_[name] = std::get<v1::GetJobResponse>(*reply).job();
          }
        });
  }

  void Pause(const std::string& name, int64_t duration_ns) {
    UserJob& job = jobs_.at(name);
    if (listening() == nullptr || coordinator_->process()->paused || job.calling || !job.applied) {
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
            jobs_.at(name).paused = true;
            const std::vector<size_t> sites = SitesOf(jobs_.at(name));
            jobs_.at(name).pause_early = std::ranges::any_of(
                sites, [&](size_t i) { return world_.now_ns() - reached_ns_[i] >= 10 * kSecondNs; });
            const StoredJob* stored = disk_.Find(name);
            if (stored == nullptr || !stored->record.pause_wanted()) {
              world_.Break(fmt::format("the pause of job {} is acknowledged before it is durable", name));
            }
          }
        });
    world_.In(duration_ns, [this, name] { jobs_.at(name).wants_resume = jobs_.at(name).applied; });
  }

  void Resume(const std::string& name, UserJob& job) {
    Begin(job);
    const std::string secret = fmt::format("secret {:x}", world_.Number());
    coordinator_->Call(
        [name, secret](CallId call) {
          return ResumeJob{call, name, secret};
        },
        [this, name](const absl::StatusOr<ControlReply>& reply) {
          world_.Trace("job {}: asked to go on: {}", name, reply.status().ToString());
          // Refused: it is not paused, or over.
          UserJob& resumed = jobs_.at(name);
          resumed.calling = resumed.wants_resume = resumed.paused = false;
        });
  }

  void Cancel(const std::string& name) {
    UserJob& job = jobs_.at(name);
    if (listening() == nullptr || coordinator_->process()->paused || job.calling || !job.applied) {
      return;
    }
    Begin(job);
    coordinator_->Call(
        [name](CallId call) {
          return CancelJob{call, name, "the user wants it so"};
        },
        [this, name](const absl::StatusOr<ControlReply>& reply) {
          jobs_.at(name).calling = false;
          if (reply.ok() && !IsFinal(disk_.Find(name)->detail.summary().state())) {
            world_.Break(fmt::format("job {} is cancelled before that is durable", name));
          }
        });
  }

  void Watch(const std::string& name, UserJob& job) {
    if (!job.applied || job.watch != 0 || job.watch_over || coordinator_->process()->paused) {
      return;
    }
    const int64_t from = job.watched;
    const CallId call = job.watch = coordinator_->next_call++;
    world_.In(kMillisecondNs, coordinator_->process(), [life = coordinator_, call, name, from] {
      life->Take(WatchStart{call, name, from, 1'000'000});
    });
  }

  void OnWatch(CallId call, const std::vector<v1::WatchJobResponse>& messages) {
    for (auto& [name, job] : jobs_) {
      if (job.watch != call) {
        continue;
      }
      for (const v1::WatchJobResponse& message : messages) {
        if (message.has_iteration() && message.iteration().iteration() != job.watched++) {
          world_.Break(fmt::format("job {}: iteration {} is watched and {} is due", name,
                                   message.iteration().iteration(), job.watched - 1));
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

  // --- Failures ---
  void OnFailed(const std::string& name, const std::string& cause) {
    const UserJob& job = jobs_.at(name);
    const int64_t now_ns = world_.now_ns();
    const std::vector<size_t> sites = SitesOf(job);
    // Patience with peers is less than that of those who wait for the control plane.
    const bool is_cut = std::ranges::any_of(sites, [&](size_t i) { return now_ns < cut_until_ns_[i] + kPatienceNs; });
    if (ledger_.excused(name) || is_cut) {
      return;
    }
    const StoredJob& stored = *disk_.Find(name);
    const bool trains = job.state == v1::JOB_STATE_RUNNING;
    const bool progresses = trains && now_ns - ProgressOf(name) < GraceOf(name) - 5 * kSecondNs;
    // Nobody has to do anything for it but tell.
    const bool rests = stored.detail.summary().state() == v1::JOB_STATE_PAUSED ||
                       (trains && (NextOf(name) == job.spec.training.iterations || job.pause_early));
    const bool silent = std::ranges::any_of(sites, [&](size_t i) {
      return now_ns - reached_ns_[i] >= kSilenceNs || now_ns - returned_ns_[i] < 15 * kSecondNs;
    });
    if (!rests && ((silent && !progresses) || (!trains && job.unreachable_ns >= 15 * kSecondNs))) {
      return;
    }
    world_.Break(fmt::format("job {} fails without a cause: {}", name, cause));
  }

  // Jobs that have workers on the node, or are about to.
  void ExcuseNode(size_t i, const std::string& why) {
    for (const auto& [name, job] : jobs_) {
      if (std::ranges::find(job.spec.placement.sites, nodes_[i]->site()) != job.spec.placement.sites.end()) {
        ledger_.Excuse(name, why);
      }
    }
  }

  // --- Faults ---
  void Crash(const ProcessPtr& process, int64_t effects) {
    if (effects > 0) {
      process->crash_in = effects;
    } else {
      world_.Kill(process);
    }
  }
  void CrashAgent(size_t i, const Fault& fault) {
    hold_agent_ns_[i] = world_.now_ns() + fault.duration_ns;
    if (nodes_[i]->agent() != nullptr) {
      Crash(nodes_[i]->agent()->process, fault.effects);
    }
  }
  void CrashCoordinator(const Fault& fault) {
    hold_coordinator_ns_ = world_.now_ns() + fault.duration_ns;
    if (coordinator_ != nullptr) {
      Crash(coordinator_->process(), fault.effects);
    }
  }
  void PauseFor(const ProcessPtr& process, int64_t duration_ns) {
    world_.Pause(process);
    world_.In(duration_ns, [this, process] { world_.Resume(process); });
  }
  void Disturb(size_t i, int64_t duration_ns, const std::function<void(Path&)>& how) {
    how(nodes_[i]->path());
    world_.In(duration_ns, [this, i] { nodes_[i]->HealPath(); });
  }
  std::shared_ptr<Worker> SomeWorker(uint32_t target) const {
    std::vector<std::shared_ptr<Worker>> alive;
    for (const std::unique_ptr<Node>& node : nodes_) {
      for (const auto& [pid, worker] : node->workers()) {
        if (worker->process()->alive && worker->begun()) {
          alive.push_back(worker);
        }
      }
    }
    return alive.empty() ? nullptr : alive[target % alive.size()];
  }

  void Happen(const Fault& fault) {
    world_.Trace("--- {}", Describe(fault));
    const size_t i = fault.target % nodes_.size();
    Node& node = *nodes_[i];
    const std::string job = fault.target % 2 == 0 ? "first" : "second";
    switch (fault.kind) {
      case FaultKind::kCoordinatorCrash:
        return CrashCoordinator(fault);
      case FaultKind::kCoordinatorCrashAtCommit:
        if (coordinator_ != nullptr) {
          coordinator_->crash_at_commit = fault.effects;
          world_.In(fault.duration_ns, [life = coordinator_] { life->crash_at_commit.reset(); });
        }
        return;
      case FaultKind::kCoordinatorPause:
        if (coordinator_ != nullptr) {
          PauseFor(coordinator_->process(), fault.duration_ns);
        }
        return;
      case FaultKind::kCoordinatorIsolated:
        for (size_t each = 0; each < nodes_.size(); ++each) {
          Disturb(each, fault.duration_ns, [&](Path& path) {
            path.up.swallowed = path.down.swallowed = fault.target % 2 == 0;
            path.up.held = path.down.held = fault.target % 2 != 0;
          });
        }
        return;
      case FaultKind::kAgentCrash:
        return CrashAgent(i, fault);
      case FaultKind::kAgentPause:
        if (node.agent() != nullptr) {
          PauseFor(node.agent()->process, fault.duration_ns);
        }
        return;
      case FaultKind::kKeeperCrash:
        if (node.keeper() != nullptr) {
          Crash(node.keeper()->process, fault.effects);
        }
        return;
      case FaultKind::kKeeperPause:
        if (node.keeper() != nullptr) {
          PauseFor(node.keeper()->process, fault.duration_ns);
        }
        return;
      case FaultKind::kWorkerCrash:
      case FaultKind::kWorkerPause:
      case FaultKind::kWorkerStuck:
        return HurtWorker(fault);
      case FaultKind::kWorkerCrashWhileCut:
        Disturb(i, fault.duration_ns, [](Path& path) { path.up.held = path.down.held = true; });
        return HurtWorker(fault);
      case FaultKind::kNodeReboot:
        ExcuseNode(i, "a node reboots");
        hold_agent_ns_[i] = world_.now_ns() + fault.duration_ns;
        return node.Reboot();
      case FaultKind::kStateFolderLost:
        ExcuseNode(i, "a state folder is lost");
        hold_agent_ns_[i] = world_.now_ns() + fault.duration_ns;
        return node.LoseState();
      case FaultKind::kEverybodyCrashes:
        CrashCoordinator(fault);
        for (size_t each = 0; each < nodes_.size(); ++each) {
          CrashAgent(each, fault);
        }
        return;
      default:
        return HappenToOthers(fault, i, job);
    }
  }

  void HurtWorker(const Fault& fault) {
    const std::shared_ptr<Worker> worker = SomeWorker(fault.target);
    if (worker == nullptr) {
      return;
    }
    if (fault.kind == FaultKind::kWorkerCrash || fault.kind == FaultKind::kWorkerCrashWhileCut) {
      ledger_.Excuse(worker->id().job(), "a worker dies");
      worker->Kill();
    } else if (fault.kind == FaultKind::kWorkerStuck) {
      ledger_.Excuse(worker->id().job(), "a worker is stuck");
      worker->trainer().GetStuck();
    } else {
      if (fault.duration_ns >= 3 * kSecondNs) {
        ledger_.Excuse(worker->id().job(), "a worker is stopped");
      }
      PauseFor(worker->process(), fault.duration_ns);
    }
  }

  void HappenToOthers(const Fault& fault, size_t i, const std::string& job) {
    Node& node = *nodes_[i];
    const auto swallow = [&](bool up, bool down) {
      Disturb(i, fault.duration_ns, [&](Path& path) {
        path.up.swallowed = up;
        path.down.swallowed = down;
      });
    };
    switch (fault.kind) {
      case FaultKind::kPathReset: {
        Disturb(i, fault.duration_ns, [](Path& path) { path.blocked = true; });
        for (const std::weak_ptr<ControlStream>& stream : node.path().streams) {
          if (const std::shared_ptr<ControlStream> broken = stream.lock()) {
            broken->Reset();
          }
        }
        return;
      }
      case FaultKind::kPathHeld:
        return Disturb(i, fault.duration_ns, [](Path& path) { path.up.held = path.down.held = true; });
      case FaultKind::kPathSwallowed:
        return swallow(true, true);
      case FaultKind::kPathSwallowedUp:
        return swallow(true, false);
      case FaultKind::kPathSwallowedDown:
        return swallow(false, true);
      case FaultKind::kPathSlow:
        return Disturb(i, fault.duration_ns,
                       [](Path& path) { path.up.extra_delay_ns = path.down.extra_delay_ns = 2 * kSecondNs; });
      case FaultKind::kDuplicates:
        return Disturb(i, fault.duration_ns, [](Path& path) { path.up.duplicates = path.down.duplicates = 0.3; });
      case FaultKind::kStoreFull:
        disk_.full = true;
        return world_.In(fault.duration_ns, [this] { disk_.full = false; });
      case FaultKind::kProgressStoreFull:
        disk_.progress_full = true;
        return world_.In(fault.duration_ns, [this] { disk_.progress_full = false; });
      case FaultKind::kNodeDiskFull:
        node.disk_full = true;
        return world_.In(fault.duration_ns, [&node] { node.disk_full = false; });
      case FaultKind::kClockJump:
        unix_offset_ns_ = (static_cast<int64_t>(fault.target) - 500) * 60 * kSecondNs;
        if (coordinator_ != nullptr) {
          coordinator_->unix_offset_ns = unix_offset_ns_;
        }
        return;
      case FaultKind::kDataPathCut:
        if (fault.duration_ns > 12 * kSecondNs) {
          cut_until_ns_[i] = world_.now_ns() + fault.duration_ns;
        }
        plane_.Cut(node.site(), true);
        return world_.In(fault.duration_ns, [this, &node] { plane_.Cut(node.site(), false); });
      case FaultKind::kSlowPlanner:
        slow_planner_until_ns_ = world_.now_ns() + fault.duration_ns;
        if (coordinator_ != nullptr) {
          coordinator_->planner_slow = true;
          world_.In(fault.duration_ns, [life = coordinator_] { life->planner_slow = false; });
        }
        return;
      case FaultKind::kUserPauses:
        return Pause(job, fault.duration_ns);
      case FaultKind::kUserCancels:
        return Cancel(job);
      default:
        return;
    }
  }

  void Heal() {
    world_.Trace("--- all faults are over");
    disk_.full = disk_.progress_full = false;
    hold_coordinator_ns_ = slow_planner_until_ns_ = 0;
    if (coordinator_ != nullptr) {
      coordinator_->planner_slow = false;
      coordinator_->process()->crash_in = -1;
      coordinator_->crash_at_commit.reset();
      world_.Resume(coordinator_->process());
    }
    for (size_t i = 0; i < nodes_.size(); ++i) {
      Node& node = *nodes_[i];
      hold_agent_ns_[i] = 0;
      node.disk_full = false;
      node.HealPath();
      plane_.Cut(node.site(), false);
      for (const ProcessPtr& process : {node.agent() == nullptr ? nullptr : node.agent()->process,
                                        node.keeper() == nullptr ? nullptr : node.keeper()->process}) {
        if (process != nullptr) {
          process->crash_in = -1;
          world_.Resume(process);
        }
      }
      for (const auto& [pid, worker] : node.workers()) {
        world_.Resume(worker->process());
      }
    }
    for (auto& [name, job] : jobs_) {
      job.wants_resume = job.wants_resume || job.paused;
    }
  }

  // --- The end ---
  void CheckEnd() {
    for (const auto& [name, job] : jobs_) {
      const StoredJob* stored = disk_.Find(name);
      if (stored == nullptr || job.state == v1::JOB_STATE_UNSPECIFIED || IsFinal(job.state)) {
        continue;
      }
      const int64_t in_state_ns = world_.now_ns() - job.entered_ns;
      const v1::JobDetail& detail = detail_[name];
      if (job.state == v1::JOB_STATE_RUNNING) {
        const int64_t next = NextOf(name);
        const int64_t due_ns = plane_.iteration_ns(name) + 12 * kSecondNs;
        if (world_.now_ns() - ProgressOf(name) > due_ns && in_state_ns > due_ns) {
          world_.Break(fmt::format("job {} is RUNNING and makes no progress", name));
        } else if (stored->next_iteration + 3 < next) {
          world_.Break(
              fmt::format("job {}: {} iterations are done and {} are told", name, next, stored->next_iteration));
        }
      } else if (job.state == v1::JOB_STATE_PENDING) {
        if (in_state_ns > 30 * kSecondNs && detail.summary().cause().empty()) {
          world_.Break(fmt::format("job {} is PENDING and does not say what it waits for", name));
        }
      } else if (in_state_ns > 60 * kSecondNs) {
        world_.Break(fmt::format("job {} stays {}: {}", name, JobStateName(job.state), detail.summary().cause()));
      }
    }
    for (const std::unique_ptr<Node>& node : nodes_) {
      for (const auto& [pid, worker] : node->workers()) {
        CheckWanted(*worker);
      }
    }
  }

  void CheckWanted(const Worker& worker) {
    const StoredJob* stored = disk_.Find(worker.id().job());
    const bool in_crew =
        stored != nullptr && std::ranges::any_of(stored->record.crew(), [&](const v1::RecordedWorker& each) {
          return each.site() == worker.id().site() && each.device() == worker.id().device() &&
                 each.incarnation() == worker.id().incarnation() && !each.stopped();
        });
    const int64_t over_ns = world_.now_ns() - jobs_.at(worker.id().job()).entered_ns;
    if (worker.process()->alive && !in_crew && over_ns > 20 * kSecondNs) {
      world_.Break(fmt::format("{} is no job's any more and runs", worker.process()->name));
    }
  }

  const Options options_;
  World world_;
  const std::vector<Fault> faults_;
  Ledger ledger_{world_};
  DataPlane plane_{world_, ledger_};
  Disk disk_{world_};
  std::vector<std::unique_ptr<Node>> nodes_;
  std::shared_ptr<CoordinatorLife> coordinator_;
  std::map<std::string, UserJob> jobs_;
  std::map<std::string, v1::JobDetail> detail_;  // as the user has seen them last
  std::optional<int64_t> coordinator_gone_ns_;
  int64_t hold_coordinator_ns_ = 0;  // it is not started before
  int64_t coordinator_started_ns_ = 0;
  int64_t slow_planner_until_ns_ = 0;
  int64_t unix_offset_ns_ = 0;
  int64_t next_look_ns_ = 0;
  // By node.
  std::vector<int64_t> reached_ns_;                               // when the coordinator could hear of it last
  std::vector<int64_t> returned_ns_;                              // when it could again after such a silence
  std::vector<int64_t> hold_agent_ns_;                            // its agent is not started before
  std::vector<int64_t> agent_gone_ns_;                            // when its agent was there last
  std::vector<int64_t> cut_until_ns_;                             // its data path, for long
  std::map<std::pair<size_t, int64_t>, int64_t> quiet_since_ns_;  // by node and pid: first seen without an agent
  int64_t completed_ = 0;
  int64_t failed_ = 0;
  int64_t epochs_ = 0;
};

}  // namespace

Outcome Simulate(const Options& options) {
  return Simulate(options, DrawFaults(options.seed, options.faults, options.duration_ns));
}

Outcome Simulate(const Options& options, std::vector<Fault> faults) { return Simulation(options, faults).Run(); }

Outcome Shrink(const Options& options, Outcome outcome) {
  // What happens after the rule was broken does not count.
  std::vector<Fault>& faults = outcome.faults;
  std::erase_if(faults, [&](const Fault& fault) { return fault.at_ns > outcome.broken_ns; });
  const auto try_with = [&](const std::vector<Fault>& fewer) {
    Outcome tried = Simulate(options, fewer);
    if (tried.broken.empty()) {
      return false;
    }
    outcome = std::move(tried);
    return true;
  };
  for (size_t count = 0; count < faults.size(); ++count) {
    if (try_with(std::vector<Fault>(faults.begin(), faults.begin() + static_cast<std::ptrdiff_t>(count)))) {
      break;
    }
  }
  for (size_t i = faults.size(); i-- > 0;) {
    std::vector<Fault> fewer = faults;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
    try_with(fewer);
  }
  return outcome;
}

std::string Report(const Options& options, const Outcome& outcome) {
  std::string text = fmt::format("seed {}: after {:.3f} s: {}\n", options.seed,
                                 static_cast<double>(outcome.broken_ns) * 1e-9, outcome.broken);
  for (const Fault& fault : outcome.faults) {
    text += fmt::format("  {}\n", Describe(fault));
  }
  return text;
}

}  // namespace geopipe::simulation
