#include "agent/keeper_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <limits>
#include <utility>

#include "agent/overloaded.h"
#include "optimizer/base/quantities.h"
#include "proto/wire/session_wire.h"

namespace geopipe::agent {
namespace {

constexpr int kMaxSignal = 64;

RunKey RunOf(const v1::KeptWorker& child) { return {child.worker().job(), child.run_incarnation()}; }

void Warn(std::string text, KeeperEffects& effects) {
  effects.emplace_back(WriteLog{LogLevel::kWarning, std::move(text)});
}

v1::KeeperNews RunningNews(const v1::KeptWorker& child) {
  v1::KeeperNews news;
  *news.mutable_running() = child;
  return news;
}

v1::KeeperNews ExitNews(const v1::WorkerExit& exit) {
  v1::KeeperNews news;
  *news.mutable_exited() = exit;
  return news;
}

}  // namespace

KeeperCore::KeeperCore(int64_t now_ns, const KeeperCoreOptions& options, const v1::KeeperTable& table)
    : options_(options), busy_until_ns_(now_ns) {
  for (const v1::KeptWorker& child : table.running()) {
    running_[child.worker().device()] = child;
    if (child.run_incarnation() != 0 && child.program_inode() != 0) {
      KeptProgram& program = programs_[RunOf(child)];
      program.devices.insert(child.worker().device());
      program.works = true;
    }
  }
  for (const v1::WorkerExit& exit : table.ended()) {
    ended_[{exit.worker().device(), exit.worker().incarnation()}] = exit;
  }
}

int64_t KeeperCore::next_deadline_ns() const {
  int64_t deadline_ns = rests() && !left_ ? busy_until_ns_ + patience_ns() : std::numeric_limits<int64_t>::max();
  for (const auto& [device, memory] : memory_) {
    deadline_ns = std::min(deadline_ns, memory.until_ns);
  }
  for (const auto& [run, program] : programs_) {
    deadline_ns = std::min(deadline_ns, program.until_ns.value_or(deadline_ns));
  }
  if (end_workers_ns_.has_value() && end_signal_ != SIGKILL && !running_.empty()) {
    deadline_ns = std::min(deadline_ns, *end_workers_ns_);
  }
  return deadline_ns;
}

std::vector<RunKey> KeeperCore::programs() const {
  std::vector<RunKey> runs;
  for (const auto& [run, program] : programs_) {
    runs.push_back(run);
  }
  return runs;
}

KeeperEffects KeeperCore::Step(int64_t now_ns, KeeperEvent event) {
  KeeperEffects effects;
  const bool rested = rests();
  std::visit(Overloaded{
                 [&](AgentConnected& e) { OnConnected(now_ns, e.connection, effects); },
                 [&](AgentAsked& e) { OnAsked(now_ns, std::move(e), effects); },
                 [&](AgentLeft& e) {
                   if (agent_ == e.connection) {
                     agent_.reset();
                   }
                 },
                 [&](ChildStarted& e) { OnStarted(std::move(e), effects); },
                 [&](ChildReleased& e) { OnReleased(now_ns, e, effects); },
                 [&](ChildFailed& e) { OnFailed(now_ns, e, effects); },
                 [&](MemoryLost& e) { OnMemoryLost(e); },
                 [&](MemoryGone& e) { memory_.erase(e.device); },
                 [&](ProgramLost& e) { programs_.erase(e.run); },
                 [&](ChildEnded& e) { OnEnded(now_ns, std::move(e), effects); },
                 [&](FolderSeen& e) { has_folder_ = e.is_there; },
                 [&](ToldToLeave&) { OnToldToLeave(now_ns, effects); },
                 [&](MustStay&) {
                   left_ = false;
                   busy_until_ns_ = now_ns;
                 },
                 [&](Tick&) { OnTick(now_ns, effects); },
             },
             event);
  if (!rested || !rests()) {
    busy_until_ns_ = now_ns;
  }
  LeaveIfUnneeded(now_ns, effects);
  return effects;
}

void KeeperCore::LeaveIfUnneeded(int64_t now_ns, KeeperEffects& effects) {
  const bool is_told = end_workers_ns_.has_value() && running_.empty();
  const bool is_lost = !has_folder_ && !agent_.has_value() && running_.empty();
  if (left_ || (!is_told && !is_lost && (!rests() || now_ns < busy_until_ns_ + patience_ns()))) {
    return;
  }
  left_ = true;
  if (!is_lost && !ended_.empty()) {
    Save(effects);
  }
  using Reason = LeaveKeeper::Reason;
  effects.emplace_back(LeaveKeeper{is_told          ? Reason::kToldTo
                                   : is_lost        ? Reason::kNoFolder
                                   : ended_.empty() ? Reason::kNothingKept
                                                    : Reason::kNobodyAsks});
}

void KeeperCore::OnConnected(int64_t now_ns, KeeperConnection connection, KeeperEffects& effects) {
  agent_ = connection;
  left_ = false;  // where it has not left yet, it stays
  for (const auto& [device, child] : running_) {
    if (!waiting_.contains(device)) {
      Tell(RunningNews(child), effects);
    }
  }
  for (const auto& [key, exit] : ended_) {
    Tell(ExitNews(exit), effects);
  }
  if (end_workers_ns_.has_value()) {
    TellLeaving(now_ns, effects);
  }
  v1::KeeperNews listed;
  listed.mutable_listed()->set_pongs(true);
  Tell(std::move(listed), effects);
}

void KeeperCore::OnAsked(int64_t now_ns, AgentAsked event, KeeperEffects& effects) {
  if (agent_ != event.connection) {
    return;
  }
  switch (event.request.request_case()) {
    case v1::KeeperRequest::kStart:
      return OnStart(std::move(*event.request.mutable_start()), effects);
    case v1::KeeperRequest::kSignal:
      return OnSignal(event.request.signal(), effects);
    case v1::KeeperRequest::kHeld:
      return OnHeld(now_ns, event.request.held(), effects);
    case v1::KeeperRequest::kPing: {
      v1::KeeperNews pong;
      pong.mutable_pong()->set_sequence(event.request.ping().sequence());
      return Tell(std::move(pong), effects);
    }
    case v1::KeeperRequest::kForget:
      if (ended_.erase({event.request.forget().device(), event.request.forget().incarnation()}) > 0) {
        Save(effects);
      }
      return;
    case v1::KeeperRequest::REQUEST_NOT_SET:
      Warn("passed over a request that this version does not know", effects);
  }
}

absl::Status KeeperCore::CheckStart(const v1::KeeperStart& start) const {
  if (absl::Status status = ValidateMessage(start.worker()); !status.ok()) {
    return status;
  }
  if (start.program().empty() || start.log_path().empty()) {
    return absl::InvalidArgumentError("the order to start a worker names no program or no log");
  }
  if (end_workers_ns_.has_value()) {
    return absl::UnavailableError("this node goes down: its keeper was told to end");
  }
  if (running_.contains(start.worker().device())) {
    return absl::FailedPreconditionError(fmt::format("device {} has a running worker", start.worker().device()));
  }
  if (running_.size() >= options_.max_running) {
    return absl::ResourceExhaustedError(
        fmt::format("{} workers run on this node, which is the limit", running_.size()));
  }
  if (ended_.size() >= options_.max_ended) {
    return absl::ResourceExhaustedError(
        fmt::format("{} exits of workers wait for a coordinator to take them, which is the limit", ended_.size()));
  }
  return absl::OkStatus();
}

void KeeperCore::OnStart(v1::KeeperStart start, KeeperEffects& effects) {
  const Key key{start.worker().device(), start.worker().incarnation()};
  if (const auto at = running_.find(key.first);
      at != running_.end() && at->second.worker().incarnation() == key.second) {
    return waiting_.contains(key.first) ? void() : Tell(RunningNews(at->second), effects);
  }
  if (const auto at = ended_.find(key); at != ended_.end()) {
    return Tell(ExitNews(at->second), effects);
  }
  if (const absl::Status status = CheckStart(start); !status.ok()) {
    Warn(fmt::format("refused to start a worker: {}", std::string(status.message())), effects);
    return Fail(start.worker(), status, effects);
  }
  v1::KeptWorker& child = running_[key.first];
  *child.mutable_worker() = start.worker();
  child.set_run_incarnation(start.run_incarnation());
  const Spawn::Program program = ProgramFor(RunOf(child), key.first, effects);
  const auto left = memory_.find(key.first);
  const bool hands_on = left != memory_.end() && left->second.job == start.worker().job() && start.takes_memory();
  if (left != memory_.end() && !hands_on) {
    memory_.erase(left);
    effects.emplace_back(DropMemory{key.first});
  }
  effects.emplace_back(Spawn{std::move(start), hands_on, program});
}

// Says what a worker of the run executes that is to start on the device, which is no other run's any more.
Spawn::Program KeeperCore::ProgramFor(const RunKey& run, int32_t device, KeeperEffects& effects) {
  for (const RunKey& other : programs()) {
    std::set<int32_t>& devices = programs_.at(other).devices;
    if (other != run && devices.erase(device) > 0 && devices.empty()) {
      DropProgramOf(other, effects);
    }
  }
  const bool is_kept = programs_.contains(run);
  if (run.incarnation == 0 || (!is_kept && !MakeRoomForProgram(effects))) {
    return Spawn::Program::kInstalled;
  }
  KeptProgram& program = programs_[run];
  program.devices.insert(device);
  program.until_ns.reset();
  return is_kept ? Spawn::Program::kKept : Spawn::Program::kOpened;
}

// False when as many as may be are kept for runs that have workers here.
bool KeeperCore::MakeRoomForProgram(KeeperEffects& effects) {
  if (programs_.size() < options_.max_programs) {
    return true;
  }
  const auto oldest = std::ranges::min_element(programs_, {}, [](const auto& entry) {
    return entry.second.until_ns.value_or(std::numeric_limits<int64_t>::max());
  });
  if (oldest == programs_.end() || !oldest->second.until_ns.has_value()) {
    return false;
  }
  DropProgramOf(RunKey(oldest->first), effects);
  return true;
}

void KeeperCore::DropProgramOf(const RunKey& run, KeeperEffects& effects) {
  effects.emplace_back(DropProgram{run});
  programs_.erase(run);
}

void KeeperCore::LeaveProgram(int64_t now_ns, const RunKey& run, bool worked, KeeperEffects& effects) {
  const auto at = programs_.find(run);
  if (at == programs_.end()) {
    return;
  }
  at->second.works = at->second.works || worked;
  if (std::ranges::any_of(running_, [&](const auto& entry) { return RunOf(entry.second) == run; })) {
    return;
  }
  if (at->second.works) {
    at->second.until_ns = now_ns + options_.kept_program_ns;
  } else {
    DropProgramOf(run, effects);
  }
}

void KeeperCore::OnStarted(ChildStarted event, KeeperEffects& effects) {
  const v1::WorkerId& id = event.child.worker();
  const WorkerKey key{id.device(), id.incarnation()};
  event.child.set_run_incarnation(running_.at(key.device).run_incarnation());
  running_[key.device] = std::move(event.child);
  waiting_.insert(key.device);
  Save(effects);
  effects.emplace_back(ReleaseChild{key});
}

void KeeperCore::OnReleased(int64_t now_ns, const ChildReleased& event, KeeperEffects& effects) {
  released_ns_[event.worker.device] = now_ns;
  waiting_.erase(event.worker.device);
  memory_.erase(event.worker.device);  // the worker has it now
  Tell(RunningNews(running_.at(event.worker.device)), effects);
}

void KeeperCore::OnHeld(int64_t now_ns, const v1::KeeperHeld& held, KeeperEffects& effects) {
  const auto running = running_.find(held.device());
  const bool is_used = running != running_.end() && running->second.memory_fd() != 0;
  if (held.fd() <= 0 || held.job().empty() || is_used || memory_.contains(held.device())) {
    return;
  }
  memory_[held.device()] = {held.job(), now_ns + options_.kept_memory_ns};
  effects.emplace_back(TakeMemory{held.device(), held.fd()});
}

void KeeperCore::OnMemoryLost(const MemoryLost& event) {
  const auto at = running_.find(event.worker.device);
  if (at != running_.end() && at->second.worker().incarnation() == event.worker.incarnation) {
    at->second.clear_memory_fd();
  }
}

void KeeperCore::OnToldToLeave(int64_t now_ns, KeeperEffects& effects) {
  if (end_workers_ns_.has_value()) {
    return;
  }
  end_workers_ns_ = now_ns + options_.leave_grace_ns;
  Warn(fmt::format("told to end: no worker starts here any more, and those that run are ended within {}",
                   FormatDuration(options_.leave_grace_ns)),
       effects);
  TellLeaving(now_ns, effects);
}

void KeeperCore::TellLeaving(int64_t now_ns, KeeperEffects& effects) const {
  v1::KeeperNews news;
  news.mutable_leaving()->set_within_ns(std::max<int64_t>(0, *end_workers_ns_ - now_ns));
  Tell(std::move(news), effects);
}

void KeeperCore::EndWorkers(int64_t now_ns, KeeperEffects& effects) {
  if (!end_workers_ns_.has_value() || now_ns < *end_workers_ns_ || end_signal_ == SIGKILL) {
    return;
  }
  end_signal_ = end_signal_ == 0 ? SIGTERM : SIGKILL;
  *end_workers_ns_ += options_.kill_grace_ns;
  for (const auto& [device, child] : running_) {
    effects.emplace_back(SignalChild{{device, child.worker().incarnation()}, end_signal_});
  }
}

void KeeperCore::OnTick(int64_t now_ns, KeeperEffects& effects) {
  EndWorkers(now_ns, effects);
  std::erase_if(memory_, [&](const auto& entry) {
    const bool over = entry.second.until_ns <= now_ns;
    if (over) {
      effects.emplace_back(DropMemory{entry.first});
    }
    return over;
  });
  for (const RunKey& run : programs()) {
    if (const std::optional<int64_t> until_ns = programs_.at(run).until_ns;
        until_ns.has_value() && *until_ns <= now_ns) {
      DropProgramOf(run, effects);
    }
  }
}

void KeeperCore::OnFailed(int64_t now_ns, const ChildFailed& event, KeeperEffects& effects) {
  const auto at = running_.find(event.worker.device());
  const bool in_table = at->second.pid() != 0;
  if (at->second.memory_fd() != 0 && !memory_.contains(event.worker.device())) {
    effects.emplace_back(DropMemory{event.worker.device()});  // the memory was new, and nothing is in it
  }
  const RunKey run = RunOf(at->second);
  running_.erase(at);
  waiting_.erase(event.worker.device());
  LeaveProgram(now_ns, run, false, effects);
  if (in_table) {
    Save(effects);
  }
  Fail(event.worker, event.status, effects);
}

void KeeperCore::OnSignal(const v1::KeeperSignal& signal, KeeperEffects& effects) const {
  if (signal.signal() <= 0 || signal.signal() > kMaxSignal) {
    Warn(fmt::format("passed over a request to send signal {}", signal.signal()), effects);
    return;
  }
  const auto at = running_.find(signal.device());
  if (at != running_.end() && at->second.worker().incarnation() == signal.incarnation()) {
    effects.emplace_back(SignalChild{{signal.device(), signal.incarnation()}, signal.signal()});
  }
}

void KeeperCore::OnEnded(int64_t now_ns, ChildEnded event, KeeperEffects& effects) {
  const auto at = running_.find(event.worker.device);
  if (at == running_.end() || at->second.worker().incarnation() != event.worker.incarnation) {
    return;
  }
  v1::WorkerExit exit;
  *exit.mutable_worker() = at->second.worker();
  exit.set_pid(at->second.pid());
  exit.set_exit_code(event.exit_code);
  exit.set_signal(event.signal);
  if (end_signal_ != 0 && event.exit_code == 0 && event.signal == 0) {
    exit.set_signal(end_signal_);  // it was not told to by its coordinator, which may need it
  }
  exit.set_last_words(std::move(event.last_words));
  if (at->second.memory_fd() != 0) {
    if (event.exit_code == 0 && event.signal == 0) {  // told to stop: nobody goes on from its state
      effects.emplace_back(DropMemory{event.worker.device});
    } else {
      memory_[event.worker.device] = {at->second.worker().job(), now_ns + options_.kept_memory_ns};
    }
  }
  const auto released = released_ns_.find(event.worker.device);  // an earlier keeper has released it long ago
  const bool is_young = released != released_ns_.end() && now_ns - released->second < options_.proving_ns;
  const bool by_itself = event.signal == 0 && event.exit_code != 0 && event.exit_code != kUnknownExitCode;
  const RunKey run = RunOf(at->second);
  running_.erase(at);
  waiting_.erase(event.worker.device);
  released_ns_.erase(event.worker.device);
  LeaveProgram(now_ns, run, !(is_young && by_itself), effects);
  ended_[{event.worker.device, event.worker.incarnation}] = exit;
  Save(effects);
  Tell(ExitNews(exit), effects);
}

void KeeperCore::Tell(v1::KeeperNews news, KeeperEffects& effects) const {
  if (agent_.has_value()) {
    effects.emplace_back(TellAgent{*agent_, std::move(news)});
  }
}

void KeeperCore::Fail(const v1::WorkerId& worker, const absl::Status& status, KeeperEffects& effects) const {
  v1::KeeperNews news;
  *news.mutable_failed()->mutable_worker() = worker;
  news.mutable_failed()->set_code(static_cast<int32_t>(status.code()));
  news.mutable_failed()->set_message(std::string(status.message()));
  Tell(std::move(news), effects);
}

void KeeperCore::Save(KeeperEffects& effects) const {
  SaveTable save;
  for (const auto& [device, child] : running_) {
    *save.table.add_running() = child;
  }
  for (const auto& [key, exit] : ended_) {
    *save.table.add_ended() = exit;
  }
  effects.emplace_back(std::move(save));
}

}  // namespace geopipe::agent
