#include "tests/simulation/simulation.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "tests/coordinator/core/federation.h"
#include "tests/simulation/coordinator_host.h"
#include "tests/simulation/data_plane.h"
#include "tests/simulation/ledger.h"
#include "tests/simulation/loss_rules.h"
#include "tests/simulation/node.h"
#include "tests/simulation/older_store.h"
#include "tests/simulation/reach.h"
#include "tests/simulation/site_rules.h"
#include "tests/simulation/user.h"
#include "tests/simulation/world.h"

namespace geopipe::simulation {
namespace {

constexpr int64_t kCalmNs = 75 * kSecondNs;
constexpr int64_t kKeeperPatienceNs = 6 * kSecondNs;  // of an agent

class Simulation final : public Listener {
 public:
  Simulation(const Options& options, const std::vector<Fault>& faults)
      : options_(options), world_(options.seed, options.trace), faults_(faults) {
    for (const std::string& site : sites_) {
      nodes_.push_back(std::make_unique<Node>(world_, plane_, ledger_, *this, site, sites_, devices_));
      rules_.AddDisk(site, nodes_.back()->checkpoints());
    }
    // Some iterations take longer than a worker is left alone elsewhere.
    const bool is_long = world_.Chance(0.2);
    for (const std::string job : {"first", "second"}) {
      if (world_.Chance(0.6)) {
        plane_.SetKeeps(job);
      }
    }
    plane_.SetIteration("first", 2 * kSecondNs);
    plane_.SetIteration("second", is_long ? 40 * kSecondNs : 3 * kSecondNs);
    JobSpec first = JobOf("first", sites_, 150, false);
    user_.Want(Replicated(std::move(first)), 2 * kSecondNs);
    JobSpec second = JobOf("second", world_.Chance(0.5) ? sites_ : std::vector<std::string>{"east", "west"},
                           is_long ? 9 : 90, is_long);
    second = Replicated(std::move(second));
    user_.Want(std::move(second), world_.Between(3, 60) * kSecondNs);
    disk_.on_failed = [this](const std::string& job, const std::string& cause) {
      losses_.OnFailed(job, cause);
      ledger_.OnFailed(job, disk_.Find(job)->record.run_incarnation());
    };
    disk_.on_recovering = [this](const std::string& job, const std::string& cause) {
      losses_.OnRecovering(job, cause);
    };
    disk_.on_transition = [this](JobState from, JobState to) {
      for (const Fault& fault : faults_) {
        if (fault.at_ns <= world_.now_ns() && world_.now_ns() < fault.at_ns + fault.duration_ns + Coverage::kAfterNs) {
          coverage_.Add(from, to, fault.kind);
        }
      }
    };
    ledger_.hears = [this](const std::string& site) { return reach_.silent_ns(site) < kSecondNs; };
    hold_agent_ns_.assign(nodes_.size(), 0);
    agent_gone_ns_.assign(nodes_.size(), 0);
  }

  Outcome Run() {
    for (const Fault& fault : faults_) {
      if (fault.kind == FaultKind::kStoreOlder) {
        world_.In(std::max<int64_t>(0, fault.at_ns - fault.duration_ns - world_.now_ns()),
                  [this, fault] { older_store_.Copy(fault.at_ns); });
      }
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
    if (loses_at_end_ || drains_at_end_) {
      TakeSite(world_.Number() % nodes_.size());
    }
    Outcome outcome{.broken = world_.broken(),
                    .broken_ns = world_.broken_ns(),
                    .faults = faults_,
                    .simulated_ns = world_.now_ns(),
                    .events = world_.events(),
                    .iterations = ledger_.iterations(),
                    .completed = user_.completed(),
                    .failed = user_.failed(),
                    .epochs = user_.deployed(),
                    .coverage = std::move(coverage_)};
    // The run is over: breaks the cycles of references.
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
  // False for seeds that were named when less was drawn.
  bool KnowsAll() const { return options_.kinds == static_cast<int>(FaultKind::kCount); }
  // Some jobs have two replicas, each on one device of each node.
  JobSpec Replicated(JobSpec job) {
    if (KnowsAll() && devices_ == 2 && world_.Chance(0.3)) {
      job.parallelism.data = 2;
      site_rules_.SetCrowded();
    }
    return job;
  }

  JobSpec JobOf(const std::string& name, const std::vector<std::string>& sites, int64_t iterations, bool is_long) {
    JobSpec job = Federation::TinyJob(sites);
    job.name = name;
    job.training.iterations = iterations;
    job.evaluation.every = 4;
    job.evaluation.data.paths = {"/validation"};
    job.grace_ns = world_.Between(10, 20) * kSecondNs;
    job.on_site_loss = world_.Chance(0.75) ? OnSiteLoss::kReplan : OnSiteLoss::kWait;
    if (world_.Chance(0.6)) {
      job.checkpoint = {.path = fmt::format("/checkpoints/{}-0", name),
                        .every = is_long ? 1 : world_.Between(2, 6),
                        .keep = world_.Between(1, 3),
                        .replicate = world_.Chance(0.7) ? 1 : 0};
    }
    return job;
  }

  // --- Who starts what has died ---
  void StartCoordinator() {
    coordinator_started_ns_ = world_.now_ns();
    coordinator_ = std::make_shared<CoordinatorLife>(world_, disk_, plane_, unix_offset_ns_, restarts_);
    user_.Meet(coordinator_);
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
        reach_.Hear(node.site());
      }
      CheckOrphans(i);
    }
    user_.Follow();
    world_.In(User::kPollNs, [this] { Poll(); });
  }

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
    const int64_t grace_ns = 4 * kSecondNs + (status.epoch() == 0 ? 30 * kSecondNs : plane_.GraceOf(worker.id().job()));
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

  // Jobs that have workers on the node, or are about to.
  void ExcuseNode(size_t i, const std::string& why) {
    for (const auto& [name, job] : user_.jobs()) {
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
  static std::vector<std::shared_ptr<Worker>> WorkersOf(const Node& node) {
    std::vector<std::shared_ptr<Worker>> alive;
    for (const auto& [pid, worker] : node.workers()) {
      if (worker->process()->alive && worker->begun()) {
        alive.push_back(worker);
      }
    }
    return alive;
  }
  std::shared_ptr<Worker> SomeWorker(uint32_t target) const {
    std::vector<std::shared_ptr<Worker>> alive;
    for (const std::unique_ptr<Node>& node : nodes_) {
      std::ranges::copy(WorkersOf(*node), std::back_inserter(alive));
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
          world_.In(kKeeperPatienceNs, [this, &node, keeper = node.keeper()->process] { EndStopped(node, keeper); });
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
        node.LoseState();
        return EndAbandoned();
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

  // The node's agent kills a keeper that does not answer.
  void EndStopped(const Node& node, const ProcessPtr& keeper) {
    const bool is_seen = node.agent() != nullptr && node.agent()->process->alive && !node.agent()->process->paused;
    if (keeper->alive && keeper->paused && is_seen) {
      world_.Kill(keeper);
    }
  }

  // Ends runs of which no agent knows any rank any more: all their workers are dead, containers were replaced
  // (strays.h).
  void EndAbandoned() {
    std::set<uint64_t> known;
    for (const std::unique_ptr<Node>& node : nodes_) {
      for (const auto& [pid, worker] : node->workers()) {
        known.insert(worker->process()->alive ? worker->trainer().run() : 0);
      }
    }
    for (const std::unique_ptr<Node>& node : nodes_) {
      for (const std::shared_ptr<Worker>& stray : node->strays()) {
        if (stray->process()->alive && !known.contains(stray->trainer().run())) {
          stray->Kill();
        }
      }
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
          losses_.NoteCut(node.site(), world_.now_ns() + fault.duration_ns);
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
        return user_.Pause(job, fault.duration_ns);
      case FaultKind::kUserCancels:
        return user_.Cancel(job);
      case FaultKind::kNodeLost:
        return LoseNode(i, fault.duration_ns, fault.target / nodes_.size() % 3 == 0);
      case FaultKind::kCheckpointDiskFull:
        node.checkpoints().full = true;
        return world_.In(fault.duration_ns, [&node] { node.checkpoints().full = false; });
      case FaultKind::kNodeKillsWorkers:
        node.deadly_until_ns = world_.now_ns() + fault.duration_ns;
        return HurtWorker(Fault{.kind = FaultKind::kWorkerCrash, .target = fault.target});
      case FaultKind::kUserDrains:
        return user_.Drain(node.site(), fault.duration_ns);
      case FaultKind::kUserWantsCheckpoint:
        return user_.Checkpoint(job);
      case FaultKind::kStartsFail:
        node.starts_fail = true;
        return world_.In(fault.duration_ns, [&node] { node.starts_fail = false; });
      case FaultKind::kFilesFail:
        node.checkpoints().unreadable = true;
        return world_.In(fault.duration_ns, [&node] { node.checkpoints().unreadable = false; });
      case FaultKind::kMountAway:
        node.checkpoints().away = true;
        return world_.In(fault.duration_ns, [&node] { node.checkpoints().away = false; });
      case FaultKind::kStoreOlder:
        hold_coordinator_ns_ = world_.now_ns() + (1 + fault.target % 20) * kSecondNs;
        if (coordinator_ != nullptr) {
          world_.Kill(coordinator_->process());
        }
        return older_store_.PutBack(fault.at_ns);
      case FaultKind::kKeeperAndWorkersDie:
        ExcuseNode(i, "a worker dies");
        if (node.keeper() != nullptr) {
          world_.Kill(node.keeper()->process);
        }
        for (const std::shared_ptr<Worker>& worker : WorkersOf(node)) {
          worker->Kill();
        }
        return;
      case FaultKind::kNodeLeaves:
        ExcuseNode(i, "a node reboots");
        node.Leave();
        leaving_.insert(i);
        return world_.In(fault.duration_ns, [this, i] { SwitchOff(i); });
      default:
        return;
    }
  }

  // The node that was told to go down does; it is back soon.
  void SwitchOff(size_t i) {
    if (leaving_.erase(i) > 0) {
      ExcuseNode(i, "a node reboots");
      hold_agent_ns_[i] = world_.now_ns() + 5 * kSecondNs;
      nodes_[i]->Reboot();
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
      SwitchOff(i);
      hold_agent_ns_[i] = 0;
      node.disk_full = node.starts_fail = node.checkpoints().full = node.checkpoints().unreadable =
          node.checkpoints().away = false;
      node.deadly_until_ns = 0;
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
    user_.ResumeAll();
    user_.UncordonAll();
  }

  // --- The end ---
  // All is well but one site, which is lost or drained, and then that is well, too.
  void TakeSite(size_t i) {
    Node& node = *nodes_[i];
    world_.Trace("--- {} is {}", node.site(), loses_at_end_ ? "lost" : "drained");
    const bool leaves = !loses_at_end_ && KnowsAll() && world_.Chance(0.5);
    if (loses_at_end_) {
      site_rules_.Lose(node.site());
      LoseNode(i, SiteRules::kLeaveNs, world_.Chance(0.3));
    } else if (leaves) {
      world_.Trace("--- it goes down");
      ExcuseNode(i, "a node reboots");
      site_rules_.Leave(node.site());
      node.Leave();
      leaving_.insert(i);
    } else {
      site_rules_.Drain(node.site());
      user_.Drain(node.site(), SiteRules::kLeaveNs + kSecondNs);
    }
    world_.RunUntil(world_.now_ns() + SiteRules::kLeaveNs);
    if (world_.broken().empty()) {
      loses_at_end_ ? site_rules_.CheckLost() : leaves ? site_rules_.CheckLeft() : site_rules_.CheckDrained();
      SwitchOff(i);
      world_.Trace("--- {} is back", node.site());
      site_rules_.GiveBack();
      world_.RunUntil(world_.now_ns() + SiteRules::kReturnNs);
    }
    if (world_.broken().empty()) {
      site_rules_.CheckReturned();
      CheckEnd();
    }
  }

  void LoseNode(size_t i, int64_t duration_ns, bool with_disk) {
    ExcuseNode(i, "a node is lost");
    hold_agent_ns_[i] = world_.now_ns() + duration_ns;
    with_disk ? nodes_[i]->Replace() : nodes_[i]->Reboot();
  }

  void CheckEnd() {
    user_.CheckEnd();
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
    const int64_t over_ns = world_.now_ns() - user_.jobs().at(worker.id().job()).entered_ns;
    if (worker.process()->alive && !in_crew && over_ns > 20 * kSecondNs) {
      world_.Break(fmt::format("{} is no job's any more and runs", worker.process()->name));
    }
  }

  const Options options_;
  World world_;
  const std::vector<Fault> faults_;
  // Mostly as many as it takes.
  const int64_t restarts_ = world_.Chance(0.15) ? 0 : world_.Chance(0.2) ? 3 : 1000;
  const int32_t devices_ = world_.Chance(0.5) ? 1 : 2;
  const bool loses_at_end_ = world_.Chance(0.2);
  const bool drains_at_end_ = !loses_at_end_ && world_.Chance(0.25);
  Ledger ledger_{world_};
  DataPlane plane_{world_, ledger_};
  StoreRules rules_{world_, ledger_};
  Disk disk_{world_, rules_};
  const std::vector<std::string> sites_ = {"north", "east", "west"};
  Reach reach_{world_, sites_};
  User user_{world_, disk_, ledger_, plane_, reach_};
  std::vector<std::unique_ptr<Node>> nodes_;
  OlderStore older_store_{world_, disk_, ledger_, user_, nodes_};
  LossRules losses_{world_, user_, disk_, ledger_, plane_, reach_, nodes_, restarts_ > 0};
  SiteRules site_rules_{world_, user_, disk_, plane_, nodes_, devices_, restarts_ > 3};
  std::shared_ptr<CoordinatorLife> coordinator_;
  std::optional<int64_t> coordinator_gone_ns_;
  int64_t hold_coordinator_ns_ = 0;  // it is not started before
  int64_t coordinator_started_ns_ = 0;
  int64_t slow_planner_until_ns_ = 0;
  int64_t unix_offset_ns_ = 0;
  // State of each node.
  Coverage coverage_;
  std::vector<int64_t> hold_agent_ns_;                            // its agent is not started before
  std::set<size_t> leaving_;                                      // nodes that were told to go down, and still are up
  std::vector<int64_t> agent_gone_ns_;                            // when its agent was there last
  std::map<std::pair<size_t, int64_t>, int64_t> quiet_since_ns_;  // by node and pid: first seen without an agent
};

}  // namespace

Outcome Simulate(const Options& options) {
  return Simulate(options, DrawFaults(options.seed, options.faults, options.duration_ns, options.kinds));
}

Outcome Simulate(const Options& options, std::vector<Fault> faults) { return Simulation(options, faults).Run(); }

}  // namespace geopipe::simulation
