#include "agent/worker_fleet.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <limits>
#include <utility>

#include "optimizer/base/check.h"

namespace geopipe::agent {
namespace {

WorkerKey KeyOf(const v1::WorkerId& id) { return {id.device(), id.incarnation()}; }

bool Same(const v1::WorkerId& a, const v1::WorkerId& b) { return KeyOf(a) == KeyOf(b) && a.job() == b.job(); }

// "east/east-0/3", as people read it.
std::string NameOf(const v1::WorkerId& id) { return fmt::format("{}/{}/{}", id.site(), id.node(), id.device()); }

}  // namespace

WorkerFleet::WorkerFleet(const AgentConfig& config, const WorkerFleetOptions& options, Report report)
    : config_(config), options_(options), report_(std::move(report)) {}

WorkerFleet::Worker* WorkerFleet::FindByKey(const WorkerKey& key) {
  const auto at = workers_.find(key.device);
  return at != workers_.end() && KeyOf(at->second.id) == key ? &at->second : nullptr;
}

WorkerFleet::Workers::iterator WorkerFleet::FindBySession(SessionId session) {
  return std::find_if(workers_.begin(), workers_.end(),
                      [&](const auto& entry) { return entry.second.session == session; });
}

std::vector<v1::WorkerId> WorkerFleet::Living() const {
  std::vector<v1::WorkerId> living;
  for (const auto& [device, worker] : workers_) {
    if (!worker.exited.has_value()) {
      living.push_back(worker.id);
    }
  }
  return living;
}

void WorkerFleet::Describe(v1::AgentHello& hello) const {
  for (const auto& [device, worker] : workers_) {
    if (worker.exited.has_value()) {
      continue;
    }
    *hello.add_workers() = worker.id;
    v1::WorkerState& state = *hello.add_worker_states();
    state.set_pid(worker.pid);
    state.set_attached(worker.session.has_value());
    *state.mutable_status() = worker.status;
  }
}

bool WorkerFleet::attached() const {
  return std::ranges::any_of(workers_, [](const auto& entry) { return entry.second.session.has_value(); });
}

bool WorkerFleet::listens() const {
  const auto is_awaited = [](const auto& entry) {
    const Worker& worker = entry.second;
    return !worker.has_attached && !worker.StopOrdered() && !worker.exited.has_value();
  };
  return attached() || std::ranges::any_of(workers_, is_awaited);
}

int64_t WorkerFleet::LivingCount() const {
  return std::ranges::count_if(workers_, [](const auto& entry) { return !entry.second.exited.has_value(); });
}

int64_t WorkerFleet::AttachByAwakeNs(int64_t now_ns) const {
  return now_ns - pauses_ns_ +
         std::max(options_.attach_timeout_ns, config_.orphan_grace_ns + options_.orphan_margin_ns);
}

bool WorkerFleet::Speaks(const Worker& worker) {
  return worker.session.has_value() || (worker.adopted && !worker.has_attached && !worker.StopOrdered());
}

int64_t WorkerFleet::DeadlineOf(const Worker& worker) const {
  int64_t next = std::numeric_limits<int64_t>::max();
  if (worker.exited.has_value()) {
    return worker.drained_by_ns;
  }
  if (worker.kill_at_ns.has_value() && !worker.killed) {
    next = *worker.kill_at_ns;
  } else if (!worker.has_attached && !worker.killed) {
    next = worker.attach_by_awake_ns + pauses_ns_;
  }
  if (Speaks(worker) && !worker.silence_told && !worker.read_due && worker.heard_awake_ns.has_value()) {
    next = std::min(next, *worker.heard_awake_ns + options_.worker_silent_after_ns + pauses_ns_);
  }
  return next;
}

int64_t WorkerFleet::next_deadline_ns() const {
  int64_t next = beat_at_ns_.value_or(std::numeric_limits<int64_t>::max());
  for (const auto& [device, worker] : workers_) {
    next = std::min(next, DeadlineOf(worker));
  }
  return next;
}

void WorkerFleet::Start(int64_t now_ns, const v1::StartWorkers& order, Effects& effects) {
  for (const int32_t device : order.devices()) {
    StartWorker start{.worker = {}, .run = order.run_incarnation()};
    v1::WorkerId& id = start.worker;
    id.set_site(config_.site);
    id.set_node(config_.node);
    id.set_device(device);
    id.set_job(order.job());
    id.set_incarnation(order.incarnation());
    if (device < 0 || device >= config_.devices) {
      Refuse(id, fmt::format("this node has no device {}; it has {}", device, config_.devices), effects);
      continue;
    }
    const auto untold = untold_.find({device, order.incarnation()});
    if (untold != untold_.end() && Same(untold->second, id)) {
      continue;
    }
    const auto at = workers_.find(device);
    if (at == workers_.end()) {
      StartOne(now_ns, start, effects);
      continue;
    }
    Worker& holder = at->second;
    if (Same(holder.id, id)) {
      continue;
    }
    if (!holder.kill_at_ns.has_value() && !holder.exited.has_value()) {
      Refuse(id, fmt::format("device {} is held by a worker of job {}", device, holder.id.job()), effects);
      continue;
    }
    if (holder.successor.has_value() && !Same(holder.successor->worker, id)) {
      Refuse(holder.successor->worker, "another worker was ordered for the device before this one was started",
             effects);
    }
    holder.successor = std::move(start);
  }
}

void WorkerFleet::StartOne(int64_t now_ns, const StartWorker& start, Effects& effects) {
  const v1::WorkerId& id = start.worker;
  Worker worker;
  worker.id = id;
  worker.run = start.run;
  worker.attach_by_awake_ns = AttachByAwakeNs(now_ns);
  const bool is_new = workers_.emplace(id.device(), std::move(worker)).second;
  GP_CHECK(is_new, "device {} has a worker", id.device());
  effects.emplace_back(start);
}

// Tells the coordinator that a worker that it ordered will not start.
void WorkerFleet::Refuse(const v1::WorkerId& id, std::string reason, Effects& effects) {
  effects.emplace_back(WriteLog{LogLevel::kWarning, fmt::format("worker {} not started: {}", NameOf(id), reason)});
  v1::NodeReport report;
  v1::WorkerExit& exit = *report.mutable_exit();
  *exit.mutable_worker() = id;
  exit.set_exit_code(1);
  exit.set_last_words(std::move(reason));
  exit.set_not_started(true);
  report_(std::move(report));
}

void WorkerFleet::FillIn(int32_t device, v1::PrepareCommand& prepare) const {
  const int64_t limit = prepare.memory_limit_bytes();
  prepare.set_memory_limit_bytes(limit > 0 ? std::min(limit, config_.device.memory_bytes)
                                           : config_.device.memory_bytes);
  prepare.set_threads(config_.threads);
  for (v1::LinkShape& shape : *prepare.mutable_shapes()) {
    if (shape.to_site() == shape.from_site()) {
      shape.set_pacer_path(
          config_.NetworkPacerPath(shape.is_per_device() ? std::optional(device) : std::optional<int32_t>()));
      continue;
    }
    if (shape.pacer_path().empty()) {
      shape.set_pacer_path(config_.PacerPath(shape.to_site()));
    }
    const auto link = std::ranges::find(config_.links, shape.to_site(), &LinkConfig::to);
    if (link != config_.links.end() && link->slowdown != 1) {
      shape.set_latency_ns(std::llround(static_cast<double>(shape.latency_ns()) * link->slowdown));
      shape.set_bandwidth_bytes_per_s(shape.bandwidth_bytes_per_s() / link->slowdown);
    }
  }
}

void WorkerFleet::Relay(int64_t now_ns, v1::RelayedCommand command, Effects& effects) {
  Worker* worker = FindByKey(KeyOf(command.worker()));
  if (worker == nullptr || !Same(worker->id, command.worker()) || worker->exited.has_value()) {
    effects.emplace_back(
        WriteLog{LogLevel::kWarning,
                 fmt::format("command for worker {} of job {} refused: no such worker (incarnation {:x})",
                             NameOf(command.worker()), command.worker().job(), command.worker().incarnation())});
    return;
  }
  if (command.command().has_stop()) {  // a stop that is not obeyed has to end, too
    StopOne(now_ns, options_.relayed_stop_grace_ns, command.command().stop(), *worker, effects);
    return;
  }
  if (command.command().has_prepare()) {
    FillIn(worker->id.device(), *command.mutable_command()->mutable_prepare());
  }
  Command(*worker, std::move(*command.mutable_command()), effects);
}

SendToWorker WorkerFleet::Addressed(const Worker& worker, v1::AttachResponse message) const {
  message.set_agent_incarnation(options_.incarnation);
  message.set_reports_taken(worker.reports_taken);
  return {*worker.session, std::move(message)};
}

// Numbers a command and hands it to the worker, now or when it attaches.
void WorkerFleet::Command(Worker& worker, v1::WorkerCommand command, Effects& effects) {
  if (worker.commands.size() >= options_.waiting_commands) {
    effects.emplace_back(WriteLog{LogLevel::kError, fmt::format("worker {} takes no commands and {} wait; killing it",
                                                                NameOf(worker.id), worker.commands.size())});
    Kill(worker, effects);
    return;
  }
  v1::AttachResponse message;
  *message.mutable_command() = std::move(command);
  message.set_sequence(++worker.last_command);
  if (worker.session.has_value()) {
    effects.emplace_back(Addressed(worker, message));
  }
  if (worker.numbers || !worker.session.has_value()) {
    worker.commands.push_back(std::move(message));
  }
}

void WorkerFleet::Kill(Worker& worker, Effects& effects) {
  effects.emplace_back(SignalWorker{KeyOf(worker.id), SIGKILL});
  worker.killed = true;
}

void WorkerFleet::Stop(int64_t now_ns, const v1::StopWorkers& order, Effects& effects) {
  const auto meant = [&](const v1::WorkerId& id) {
    return id.job() == order.job() && (order.incarnation() == 0 || id.incarnation() == order.incarnation()) &&
           (order.devices().empty() || std::ranges::find(order.devices(), id.device()) != order.devices().end());
  };
  v1::StopCommand stop;
  stop.set_reason(order.reason());
  stop.set_keeps_state(order.keeps_state());
  for (auto& [device, worker] : workers_) {
    if (worker.successor.has_value() && meant(worker.successor->worker)) {
      Refuse(worker.successor->worker, "stopped before it was started: " + order.reason(), effects);
      worker.successor.reset();
    }
    if (meant(worker.id)) {
      StopOne(now_ns, order.grace_ns(), stop, worker, effects);
    }
  }
}

void WorkerFleet::StopAll(int64_t now_ns, int64_t grace_ns, const std::string& reason, Effects& effects) {
  v1::StopCommand stop;
  stop.set_reason(reason);
  for (auto& [device, worker] : workers_) {
    worker.successor.reset();
    StopOne(now_ns, grace_ns, stop, worker, effects);
  }
}

// A worker that cannot be told that its states are for its successor is killed, for one that ends by itself drops them.
void WorkerFleet::StopOne(int64_t now_ns, int64_t grace_ns, const v1::StopCommand& stop, Worker& worker,
                          Effects& effects) {
  if (worker.exited.has_value()) {
    return;
  }
  const int64_t kill_at_ns = now_ns + std::max<int64_t>(grace_ns, 0);
  const bool first = !worker.kill_at_ns.has_value();
  worker.kill_at_ns = first ? kill_at_ns : std::min(*worker.kill_at_ns, kill_at_ns);
  if (!first) {
    return;
  }
  if (worker.session.has_value()) {
    v1::WorkerCommand command;
    *command.mutable_stop() = stop;
    Command(worker, std::move(command), effects);
  } else if (stop.keeps_state()) {
    Kill(worker, effects);
  } else {
    effects.emplace_back(SignalWorker{KeyOf(worker.id), SIGTERM});
  }
}

bool WorkerFleet::IsOurs(const v1::WorkerId& id) const {
  return id.site() == config_.site && id.node() == config_.node && id.device() >= 0 && id.device() < config_.devices;
}

void WorkerFleet::OnListed(int64_t now_ns, const KeeperListed& event, Effects& effects) {
  std::set<Key> listed;
  for (const KeeperListed::Running& running : event.running) {
    listed.emplace(running.worker.device(), running.worker.incarnation());
    ListRunning(now_ns, running, effects);
  }
  for (const v1::WorkerExit& exit : event.ended) {
    listed.emplace(exit.worker().device(), exit.worker().incarnation());
    ListEnded(now_ns, exit, effects);
  }
  listed_ = true;
  std::vector<WorkerExited> lost;
  for (auto& [device, worker] : workers_) {
    if (worker.exited.has_value()) {
      continue;
    }
    const bool is_listed = listed.contains({device, worker.id.incarnation()});
    if (!is_listed && worker.pid != 0) {
      lost.push_back({.worker = KeyOf(worker.id),
                      .pid = worker.pid,
                      .exit_code = kUnknownExitCode,
                      .signal = 0,
                      .last_words = ""});
      continue;
    }
    // The order to start it may be lost, or on its way: only the keeper can say how it ends. Signals may be lost, too.
    if (!is_listed) {
      effects.emplace_back(StartWorker{worker.id, worker.run});
    }
    if (worker.killed) {
      effects.emplace_back(SignalWorker{KeyOf(worker.id), SIGKILL});
    } else if (worker.kill_at_ns.has_value() && !worker.session.has_value()) {
      effects.emplace_back(SignalWorker{KeyOf(worker.id), SIGTERM});
    }
  }
  for (WorkerExited& exited : lost) {
    OnExited(now_ns, std::move(exited), effects);
  }
}

void WorkerFleet::ListRunning(int64_t now_ns, const KeeperListed::Running& running, Effects& effects) {
  const v1::WorkerId& id = running.worker;
  Worker* known = FindByKey(KeyOf(id));
  if (known != nullptr && Same(known->id, id)) {
    known->pid = running.pid;
    return;
  }
  if (listed_ || !IsOurs(id)) {
    effects.emplace_back(
        WriteLog{LogLevel::kWarning,
                 fmt::format("killing worker {} of job {} (pid {}): {}", NameOf(id), id.job(), running.pid,
                             IsOurs(id) ? "it was not ordered" : "it does not fit the configuration of this node")});
    effects.emplace_back(SignalWorker{KeyOf(id), SIGKILL});
    return;
  }
  effects.emplace_back(WriteLog{LogLevel::kInfo, fmt::format("adopted worker {} of job {} (pid {}, incarnation {:x})",
                                                             NameOf(id), id.job(), running.pid, id.incarnation())});
  Worker worker;
  worker.id = id;
  worker.pid = running.pid;
  worker.adopted = true;
  worker.attach_by_awake_ns = AttachByAwakeNs(now_ns);
  workers_.emplace(id.device(), std::move(worker));
}

void WorkerFleet::ListEnded(int64_t now_ns, const v1::WorkerExit& exit, Effects& effects) {
  Worker* known = FindByKey(KeyOf(exit.worker()));
  if (known != nullptr && Same(known->id, exit.worker()) && !known->Began() && !known->StopOrdered() &&
      exit.signal() == 0 && exit.exit_code() == kUnknownExitCode) {
    // The keeper died while it started this worker, and nobody has heard of the worker since.
    known->attach_by_awake_ns = AttachByAwakeNs(now_ns);
    effects.emplace_back(ForgetExit{KeyOf(known->id)});
    effects.emplace_back(StartWorker{known->id, known->run});
    return;
  }
  WorkerExited exited{.worker = KeyOf(exit.worker()),
                      .pid = exit.pid(),
                      .exit_code = exit.exit_code(),
                      .signal = exit.signal(),
                      .last_words = exit.last_words()};
  if (listed_ || !IsOurs(exit.worker())) {
    OnExited(now_ns, std::move(exited), effects);
    return;
  }
  Worker worker;
  worker.id = exit.worker();
  Tell(exited, worker, effects);
}

void WorkerFleet::OnStarted(const WorkerStarted& event, Effects& effects) {
  Worker* worker = FindByKey(event.worker);
  if (worker == nullptr) {  // given up meanwhile
    effects.emplace_back(SignalWorker{event.worker, SIGKILL});
    return;
  }
  if (worker->pid == 0) {
    effects.emplace_back(
        WriteLog{LogLevel::kInfo, fmt::format("started worker {} (pid {}, incarnation {:x})", NameOf(worker->id),
                                              event.pid, event.worker.incarnation)});
  }
  worker->pid = event.pid;
  if (worker->killed) {  // before there was a process to be signalled
    effects.emplace_back(SignalWorker{event.worker, SIGKILL});
  }
}

void WorkerFleet::OnStartFailed(int64_t now_ns, const WorkerStartFailed& event, Effects& effects) {
  if (const Worker* worker = FindByKey(event.worker); worker == nullptr || worker->pid != 0) {
    return;
  }
  OnExited(now_ns,
           {.worker = event.worker,
            .pid = 0,
            .exit_code = 127,
            .signal = 0,
            .last_words = std::string(event.status.message())},
           effects);
}

void WorkerFleet::OnExited(int64_t now_ns, WorkerExited event, Effects& effects) {
  const auto at = workers_.find(event.worker.device);
  if (at == workers_.end() || KeyOf(at->second.id) != event.worker) {
    if (!untold_.contains(
            {event.worker.device, event.worker.incarnation})) {  // the coordinator has it, or needs it not
      effects.emplace_back(ForgetExit{event.worker});
    }
    return;
  }
  if (at->second.exited.has_value()) {
    return;
  }
  at->second.exited = std::move(event);
  at->second.drained_by_ns = now_ns + options_.drain_timeout_ns;
  if (!at->second.session.has_value()) {
    Finish(now_ns, at, effects);
  }
}

// Reports the end of a worker.
void WorkerFleet::Tell(const WorkerExited& exited, const Worker& worker, Effects& effects) {
  v1::NodeReport report;
  v1::WorkerExit& exit = *report.mutable_exit();
  *exit.mutable_worker() = worker.id;
  exit.set_pid(exited.pid);
  exit.set_exit_code(exited.exit_code);
  exit.set_signal(exited.signal);
  exit.set_last_words(exited.last_words);
  exit.set_not_started(exited.pid == 0);
  const bool expected = worker.kill_at_ns.has_value() || (exited.signal == 0 && exited.exit_code == 0);
  const std::string how = exited.signal != 0                     ? fmt::format("was killed by signal {}", exited.signal)
                          : exited.exit_code == kUnknownExitCode ? "ended; its exit code is not known"
                                                                 : fmt::format("exited with code {}", exited.exit_code);
  effects.emplace_back(WriteLog{expected ? LogLevel::kInfo : LogLevel::kWarning,
                                exited.pid == 0 ? fmt::format("worker {} of job {} was not started: {}",
                                                              NameOf(worker.id), worker.id.job(), exited.last_words)
                                                : fmt::format("worker {} of job {} (pid {}) {}", NameOf(worker.id),
                                                              worker.id.job(), exited.pid, how)});
  if (exited.pid != 0) {
    untold_.emplace(Key{worker.id.device(), worker.id.incarnation()}, worker.id);
  }
  report_(std::move(report));
}

// Reports the end of a worker and gives its device to the next.
void WorkerFleet::Finish(int64_t now_ns, Workers::iterator at, Effects& effects) {
  const Worker worker = std::move(at->second);
  workers_.erase(at);
  Tell(*worker.exited, worker, effects);
  if (worker.successor.has_value()) {
    StartOne(now_ns, *worker.successor, effects);
  }
}

void WorkerFleet::OnTaken(const v1::NodeReport& report) {
  if (report.has_worker()) {
    Worker* worker = FindByKey(KeyOf(report.worker().worker()));
    if (worker != nullptr && Same(worker->id, report.worker().worker())) {
      worker->reports_taken = std::max(worker->reports_taken, report.worker().report().sequence());
    }
  } else if (report.has_exit() && report.exit().pid() != 0) {
    const WorkerKey key = KeyOf(report.exit().worker());
    if (untold_.erase({key.device, key.incarnation}) > 0) {
      told_.push_back(key);
    }
  }
}

absl::Status WorkerFleet::CheckFirstMessage(const v1::AttachRequest& message) const {
  const v1::WorkerId& id = message.worker();
  const auto at = workers_.find(id.device());
  if (!listed_) {  // the worker may be one of those that the keeper is about to name
    return absl::UnavailableError("this agent does not know yet which workers there are; dial again");
  }
  if (id.site() != config_.site || id.node() != config_.node || at == workers_.end() || !Same(at->second.id, id)) {
    return absl::UnauthenticatedError(
        fmt::format("{} is not a worker of job {} with incarnation {:x} here", NameOf(id), id.job(), id.incarnation()));
  }
  if (at->second.session.has_value()) {
    return absl::AlreadyExistsError(fmt::format("worker {} is attached", NameOf(id)));
  }
  if (!message.report().has_hello()) {
    return absl::InvalidArgumentError("the first message of a worker must be its hello");
  }
  return absl::OkStatus();
}

// Tells a worker that has attached who its agent is, and hands it the commands that it has not taken.
void WorkerFleet::OnHello(const v1::AttachRequest& message, Worker& worker, Effects& effects) {
  const v1::WorkerHello& hello = message.report().hello();
  worker.has_attached = true;
  worker.numbers = hello.has_status();
  worker.status = hello.status();
  effects.emplace_back(AcceptSession{*worker.session});
  effects.emplace_back(Addressed(worker, v1::AttachResponse()));
  const uint64_t taken = hello.agent_incarnation() == options_.incarnation ? hello.commands_taken() : 0;
  while (!worker.commands.empty() && worker.commands.front().sequence() <= taken) {
    worker.commands.pop_front();
  }
  for (const v1::AttachResponse& command : worker.commands) {
    effects.emplace_back(Addressed(worker, command));
  }
  if (!worker.numbers) {
    worker.commands.clear();
  }
}

void WorkerFleet::OnMessage(WorkerMessage event, Effects& effects) {
  auto at = FindBySession(event.session);
  if (at == workers_.end()) {
    if (absl::Status status = CheckFirstMessage(event.message); !status.ok()) {
      effects.emplace_back(CloseSession{event.session, std::move(status)});
      return;
    }
    at = workers_.find(event.message.worker().device());
    at->second.session = event.session;
    OnHello(event.message, at->second, effects);
  } else if (!Same(at->second.id, event.message.worker())) {
    at->second.session.reset();
    effects.emplace_back(CloseSession{
        event.session, absl::InvalidArgumentError("a message names another worker than the stream's first one")});
    return;
  } else {
    at->second.read_due = true;
    std::deque<v1::AttachResponse>& commands = at->second.commands;
    while (!commands.empty() && commands.front().sequence() <= event.message.commands_taken()) {
      commands.pop_front();
    }
  }
  Worker& worker = at->second;
  worker.heard_awake_ns.reset();
  worker.silence_told = false;
  const v1::WorkerReport& said = event.message.report();
  if (said.has_heartbeat()) {
    worker.status = said.heartbeat().status();
  }
  if (said.sequence() != 0) {
    if (said.sequence() <= worker.relayed) {
      return;  // said again on a new stream; the queue has it, or the coordinator
    }
    worker.relayed = said.sequence();
  }
  v1::NodeReport report;
  *report.mutable_worker()->mutable_worker() = worker.id;
  report.mutable_worker()->mutable_report()->Swap(event.message.mutable_report());
  report_(std::move(report));
}

void WorkerFleet::OnClosed(int64_t now_ns, const WorkerClosed& event, Effects& effects) {
  const auto at = FindBySession(event.session);
  if (at == workers_.end()) {
    return;
  }
  at->second.session.reset();
  at->second.read_due = false;
  if (at->second.exited.has_value()) {
    Finish(now_ns, at, effects);
  }
}

// Kills workers that are overdue.
void WorkerFleet::LookAt(int64_t now_ns, int64_t awake_ns, Worker& worker, Effects& effects) {
  const bool overdue = worker.kill_at_ns.has_value() && now_ns >= *worker.kill_at_ns;
  const bool never_attached =
      !worker.kill_at_ns.has_value() && !worker.has_attached && awake_ns >= worker.attach_by_awake_ns;
  if (!worker.killed && (overdue || never_attached)) {
    effects.emplace_back(WriteLog{LogLevel::kWarning, fmt::format("killing worker {}: {}", NameOf(worker.id),
                                                                  overdue ? "it has not stopped within its grace"
                                                                          : "it has not attached in time")});
    Kill(worker, effects);
  }
}

void WorkerFleet::LookForSilence(int64_t awake_ns, Worker& worker) {
  if (!worker.heard_awake_ns.has_value() || worker.read_due) {  // a stream that is not read on cannot be heard
    worker.heard_awake_ns = awake_ns;
  }
  const int64_t silent_ns = awake_ns - *worker.heard_awake_ns;
  if (!Speaks(worker) || worker.silence_told || silent_ns < options_.worker_silent_after_ns) {
    return;
  }
  worker.silence_told = true;
  v1::NodeReport report;
  *report.mutable_silent()->mutable_worker() = worker.id;
  report.mutable_silent()->set_pid(worker.pid);
  report.mutable_silent()->set_silent_ns(silent_ns);
  report_(std::move(report));
}

void WorkerFleet::OnTime(int64_t now_ns, bool full, Effects& effects) {
  const int64_t awake_ns = now_ns - pauses_ns_;
  for (const WorkerKey& key : std::exchange(told_, {})) {
    effects.emplace_back(ForgetExit{key});
  }
  if (!attached()) {
    beat_at_ns_.reset();
  } else if (!beat_at_ns_.has_value()) {
    beat_at_ns_ = now_ns + options_.beat_interval_ns;
  }
  const bool beats = beat_at_ns_.has_value() && now_ns >= *beat_at_ns_;
  if (beats) {
    beat_at_ns_ = now_ns + options_.beat_interval_ns;
  }
  std::vector<int32_t> drained;
  for (auto& [device, worker] : workers_) {
    if (worker.read_due && !full) {
      worker.read_due = false;
      effects.emplace_back(ReadOn{*worker.session});
    }
    if (worker.exited.has_value()) {
      if (worker.read_due || !worker.heard_awake_ns.has_value()) {  // its last messages are still coming
        worker.drained_by_ns = now_ns + options_.drain_timeout_ns;
        worker.heard_awake_ns = awake_ns;
      } else if (now_ns >= worker.drained_by_ns) {
        drained.push_back(device);
      }
      continue;
    }
    if (beats && worker.session.has_value()) {
      effects.emplace_back(Addressed(worker, v1::AttachResponse()));
    }
    LookAt(now_ns, awake_ns, worker, effects);
    LookForSilence(awake_ns, worker);
  }
  for (const int32_t device : drained) {
    const auto at = workers_.find(device);
    effects.emplace_back(CloseSession{*at->second.session, absl::AbortedError("the worker's process has ended")});
    Finish(now_ns, at, effects);
  }
}

}  // namespace geopipe::agent
