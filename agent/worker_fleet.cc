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

int64_t WorkerFleet::next_deadline_ns() const {
  int64_t next = std::numeric_limits<int64_t>::max();
  for (const auto& [device, worker] : workers_) {
    if (worker.exited.has_value()) {
      next = std::min(next, worker.drained_by_ns);
    } else if (worker.kill_at_ns.has_value() && !worker.killed) {
      next = std::min(next, *worker.kill_at_ns);
    } else if (!worker.has_attached && !worker.killed) {
      next = std::min(next, worker.attach_by_ns);
    }
  }
  return next;
}

void WorkerFleet::Start(int64_t now_ns, const v1::StartWorkers& order, Effects& effects) {
  for (const int32_t device : order.devices()) {
    v1::WorkerId id;
    id.set_site(config_.site);
    id.set_node(config_.node);
    id.set_device(device);
    id.set_job(order.job());
    id.set_incarnation(order.incarnation());
    if (device < 0 || device >= config_.devices) {
      Refuse(id, fmt::format("this node has no device {}; it has {}", device, config_.devices), effects);
      continue;
    }
    const auto at = workers_.find(device);
    if (at == workers_.end()) {
      StartOne(now_ns, id, effects);
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
    if (holder.successor.has_value() && !Same(*holder.successor, id)) {
      Refuse(*holder.successor, "another worker was ordered for the device before this one was started", effects);
    }
    holder.successor = id;
  }
}

void WorkerFleet::StartOne(int64_t now_ns, const v1::WorkerId& id, Effects& effects) {
  Worker worker;
  worker.id = id;
  worker.attach_by_ns = now_ns + options_.attach_timeout_ns;
  const bool is_new = workers_.emplace(id.device(), std::move(worker)).second;
  GP_CHECK(is_new, "device {} has a worker", id.device());
  effects.emplace_back(StartWorker{id});
}

// Tells the coordinator that a worker it ordered will not be.
void WorkerFleet::Refuse(const v1::WorkerId& id, std::string reason, Effects& effects) {
  effects.emplace_back(WriteLog{LogLevel::kWarning, fmt::format("worker {} not started: {}", NameOf(id), reason)});
  v1::NodeReport report;
  v1::WorkerExit& exit = *report.mutable_exit();
  *exit.mutable_worker() = id;
  exit.set_exit_code(1);
  exit.set_last_words(std::move(reason));
  report_(std::move(report));
}

void WorkerFleet::FillIn(v1::PrepareCommand& prepare) const {
  const int64_t limit = prepare.memory_limit_bytes();
  prepare.set_memory_limit_bytes(limit > 0 ? std::min(limit, config_.device.memory_bytes)
                                           : config_.device.memory_bytes);
  prepare.set_threads(config_.threads);
  for (v1::LinkShape& shape : *prepare.mutable_shapes()) {
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

void WorkerFleet::Relay(v1::RelayedCommand command, Effects& effects) {
  Worker* worker = FindByKey(KeyOf(command.worker()));
  if (worker == nullptr || !Same(worker->id, command.worker()) || worker->exited.has_value()) {
    effects.emplace_back(
        WriteLog{LogLevel::kWarning,
                 fmt::format("command for worker {} of job {} refused: no such worker (incarnation {:x})",
                             NameOf(command.worker()), command.worker().job(), command.worker().incarnation())});
    return;
  }
  v1::AttachResponse message;
  message.mutable_command()->Swap(command.mutable_command());
  if (message.command().has_prepare()) {
    FillIn(*message.mutable_command()->mutable_prepare());
  }
  if (worker->session.has_value()) {
    effects.emplace_back(SendToWorker{*worker->session, std::move(message)});
  } else if (worker->waiting.size() < options_.waiting_commands) {
    worker->waiting.push_back(std::move(message));
  } else {
    effects.emplace_back(WriteLog{LogLevel::kError, fmt::format("worker {} takes no commands and {} wait; killing it",
                                                                NameOf(worker->id), worker->waiting.size())});
    effects.emplace_back(SignalWorker{KeyOf(worker->id), SIGKILL});
    worker->killed = true;
  }
}

void WorkerFleet::Stop(int64_t now_ns, const v1::StopWorkers& order, Effects& effects) {
  const auto meant = [&](const v1::WorkerId& id) {
    return id.job() == order.job() && (order.incarnation() == 0 || id.incarnation() == order.incarnation()) &&
           (order.devices().empty() || std::ranges::find(order.devices(), id.device()) != order.devices().end());
  };
  for (auto& [device, worker] : workers_) {
    if (worker.successor.has_value() && meant(*worker.successor)) {
      Refuse(*worker.successor, "stopped before it was started: " + order.reason(), effects);
      worker.successor.reset();
    }
    if (meant(worker.id)) {
      StopOne(now_ns, order.grace_ns(), order.reason(), worker, effects);
    }
  }
}

void WorkerFleet::StopAll(int64_t now_ns, int64_t grace_ns, const std::string& reason, Effects& effects) {
  for (auto& [device, worker] : workers_) {
    worker.successor.reset();
    StopOne(now_ns, grace_ns, reason, worker, effects);
  }
}

void WorkerFleet::StopOne(int64_t now_ns, int64_t grace_ns, const std::string& reason, Worker& worker,
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
    SendToWorker stop{.session = *worker.session, .message = {}};
    stop.message.mutable_command()->mutable_stop()->set_reason(reason);
    effects.emplace_back(std::move(stop));
  } else {
    effects.emplace_back(SignalWorker{KeyOf(worker.id), SIGTERM});
  }
}

void WorkerFleet::OnStartFailed(int64_t now_ns, const WorkerStartFailed& event, Effects& effects) {
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
  if (at == workers_.end() || KeyOf(at->second.id) != event.worker || at->second.exited.has_value()) {
    return;
  }
  at->second.exited = std::move(event);
  at->second.drained_by_ns = now_ns + options_.drain_timeout_ns;
  if (!at->second.session.has_value()) {
    Finish(now_ns, at, effects);
  }
}

// Reports the end of a worker and gives its device to the next.
void WorkerFleet::Finish(int64_t now_ns, Workers::iterator at, Effects& effects) {
  const Worker worker = std::move(at->second);
  workers_.erase(at);
  const WorkerExited& exited = *worker.exited;
  v1::NodeReport report;
  v1::WorkerExit& exit = *report.mutable_exit();
  *exit.mutable_worker() = worker.id;
  exit.set_pid(exited.pid);
  exit.set_exit_code(exited.exit_code);
  exit.set_signal(exited.signal);
  exit.set_last_words(exited.last_words);
  const bool expected = worker.kill_at_ns.has_value() || (exited.signal == 0 && exited.exit_code == 0);
  effects.emplace_back(WriteLog{expected ? LogLevel::kInfo : LogLevel::kWarning,
                                exited.signal != 0
                                    ? fmt::format("worker {} of job {} (pid {}) was killed by signal {}",
                                                  NameOf(worker.id), worker.id.job(), exited.pid, exited.signal)
                                    : fmt::format("worker {} of job {} (pid {}) exited with code {}", NameOf(worker.id),
                                                  worker.id.job(), exited.pid, exited.exit_code)});
  report_(std::move(report));
  if (worker.successor.has_value()) {
    StartOne(now_ns, *worker.successor, effects);
  }
}

absl::Status WorkerFleet::CheckFirstMessage(const v1::AttachRequest& message) const {
  const v1::WorkerId& id = message.worker();
  const auto at = workers_.find(id.device());
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

void WorkerFleet::OnMessage(WorkerMessage event, Effects& effects) {
  auto at = FindBySession(event.session);
  if (at == workers_.end()) {
    if (absl::Status status = CheckFirstMessage(event.message); !status.ok()) {
      effects.emplace_back(CloseSession{event.session, std::move(status)});
      return;
    }
    at = workers_.find(event.message.worker().device());
    Worker& worker = at->second;
    worker.session = event.session;
    worker.has_attached = true;
    effects.emplace_back(AcceptSession{event.session});
    for (; !worker.waiting.empty(); worker.waiting.pop_front()) {
      effects.emplace_back(SendToWorker{event.session, std::move(worker.waiting.front())});
    }
  } else if (!Same(at->second.id, event.message.worker())) {
    at->second.session.reset();
    effects.emplace_back(CloseSession{
        event.session, absl::InvalidArgumentError("a message names another worker than the stream's first one")});
    return;
  }
  v1::NodeReport report;
  *report.mutable_worker()->mutable_worker() = at->second.id;
  report.mutable_worker()->mutable_report()->Swap(event.message.mutable_report());
  report_(std::move(report));
}

void WorkerFleet::OnClosed(int64_t now_ns, const WorkerClosed& event, Effects& effects) {
  const auto at = FindBySession(event.session);
  if (at == workers_.end()) {
    return;
  }
  at->second.session.reset();
  if (at->second.exited.has_value()) {
    Finish(now_ns, at, effects);
  }
}

void WorkerFleet::OnTime(int64_t now_ns, Effects& effects) {
  std::vector<int32_t> drained;
  for (auto& [device, worker] : workers_) {
    if (worker.exited.has_value()) {
      if (now_ns >= worker.drained_by_ns) {
        drained.push_back(device);
      }
      continue;
    }
    const bool overdue = worker.kill_at_ns.has_value() && now_ns >= *worker.kill_at_ns;
    const bool never_attached = !worker.kill_at_ns.has_value() && !worker.has_attached && now_ns >= worker.attach_by_ns;
    if (!worker.killed && (overdue || never_attached)) {
      effects.emplace_back(WriteLog{LogLevel::kWarning, fmt::format("killing worker {}: {}", NameOf(worker.id),
                                                                    overdue ? "it has not stopped within its grace"
                                                                            : "it has not attached in time")});
      effects.emplace_back(SignalWorker{KeyOf(worker.id), SIGKILL});
      worker.killed = true;
    }
  }
  for (const int32_t device : drained) {
    const auto at = workers_.find(device);
    effects.emplace_back(CloseSession{*at->second.session, absl::AbortedError("the worker's process has ended")});
    Finish(now_ns, at, effects);
  }
}

}  // namespace geopipe::agent
