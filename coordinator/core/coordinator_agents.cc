// Handles messages of agents, and sends them theirs.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "coordinator/core/coordinator.h"

namespace geopipe {

void Coordinator::On(Now now, AgentMessage& event) {
  const v1::ConnectRequest& message = event.message;
  const std::optional<Agents::Speaker> speaker = agents_.Hear(now, event.session, message);
  if (!speaker.has_value()) {
    return;
  }
  const auto& [node, is_new] = *speaker;
  if (message.has_hello()) {
    if (is_new) {
      for (Job* job : jobs_.InOrder()) {
        job->unfit.erase(node);  // it may have been repaired
      }
    }
    strays_.OnAgent(now.ns, node, message.incarnation());
    OnWorkersListed(now, node, message.hello(), is_new);
    TellReturned(now);
    outbox_.AskToSchedule();
    return;
  }
  strays_.OnOrdersTaken(now.ns, node, message.incarnation(), message.orders_taken());
  if (message.has_reports()) {
    OnReports(now, event.session, node, message.reports());
  } else {
    agents_.AnswerHeartbeat(node);
  }
}

// An agent that has lost its stream repeats everything that it does not know to have been taken.
void Coordinator::OnReports(Now now, SessionId session, const NodeKey& node, const v1::NodeReports& message) {
  uint64_t sequence = message.first_sequence();
  for (const v1::NodeReport& report : message.reports()) {
    if (membership_.Take(node, sequence++)) {
      if (report.has_worker()) {
        OnReport(now, session, node, report.worker());
      } else if (report.has_exit()) {
        OnExit(now, session, node, report.exit());
      } else if (report.has_silent()) {
        OnSilent(now, session, node, report.silent());
      } else if (report.has_probe()) {
        links_.OnReport(now, node, report.probe());
      }
    }
    if (membership_.NodeOf(session) == nullptr) {
      return;  // refused
    }
  }
  agents_.AcknowledgeSoon(node);
}

// Repeats orders that returned nodes may have missed, in runs that have all their nodes again.
void Coordinator::TellReturned(Now now) {
  for (Job* job : jobs_.Running()) {
    if (std::ranges::all_of(job->run->life().nodes, [&](const NodeKey& key) { return membership_.IsUsable(key); })) {
      job->run->News(now.ns).OnAllConnected();
      Drive(now, *job);
    }
  }
}

// Stops workers of no live run, and investigates workers of a live run that should be there and are not.
void Coordinator::OnWorkersListed(Now now, const NodeKey& node, const v1::AgentHello& hello, bool fresh) {
  const v1::WorkerState none;
  std::map<std::string, std::map<WorkerKey, AgentNews::Living>> alive;  // by job
  for (int i = 0; i < hello.workers_size(); ++i) {
    const v1::WorkerId& worker = hello.workers(i);
    if (jobs_.OfWorker(worker) != nullptr && KeyOf(worker).node_key() == node) {
      AgentNews::Living& living = alive[worker.job()][KeyOf(worker)];
      if (i < hello.worker_states_size()) {
        living = {.attached = hello.worker_states(i).attached(), .status = hello.worker_states(i).status()};
      }
      continue;
    }
    if (Job* job = jobs_.Outrun(node, worker, i < hello.worker_states_size() ? hello.worker_states(i) : none);
        job != nullptr) {
      job->run->News(now.ns).OnYounger(KeyOf(worker), worker.incarnation());
      next_incarnation_ = std::max(next_incarnation_, worker.incarnation());
      alive[worker.job()][KeyOf(worker)] = {.attached = hello.worker_states(i).attached(),
                                            .status = hello.worker_states(i).status()};
      continue;
    }
    const bool is_left = unknown_.OnListed(now, node, worker);
    if (Job* job = is_left ? jobs_.Find(worker.job()) : nullptr;
        job != nullptr && job->run != nullptr && worker.incarnation() > job->run->life().incarnation) {
      job->run->News(now.ns).OnLaterRun(KeyOf(worker));
      Drive(now, *job);
    }
  }
  for (Job* job : jobs_.Running()) {
    if (job->run->life().nodes.contains(node)) {
      Listen(now, *job->run);  // it has not answered yet
      job->run->News(now.ns).OnNodeReturned(node, alive[job->name()], fresh);
      Drive(now, *job);
    }
  }
}

void Coordinator::OnReport(Now now, SessionId session, const NodeKey& node, const v1::RelayedReport& report) {
  if (!agents_.SpeaksFor(now, session, node, report.worker(), "for")) {
    return;
  }
  if (Job* job = jobs_.OfWorker(report.worker()); job != nullptr) {
    React(now, *job, job->run->OnReport(now.ns, KeyOf(report.worker()), report.report()));
    Drive(now, *job);
  }
}

void Coordinator::OnExit(Now now, SessionId session, const NodeKey& node, const v1::WorkerExit& exit) {
  if (!agents_.SpeaksFor(now, session, node, exit.worker(), "the exit of")) {
    return;
  }
  strays_.OnEnded(now.ns, KeyOf(exit.worker()), exit.worker().incarnation());
  if (Job* job = jobs_.OfWorker(exit.worker()); job != nullptr) {
    job->run->News(now.ns).OnExit(KeyOf(exit.worker()), exit);
    Drive(now, *job);
  }
}

void Coordinator::OnSilent(Now now, SessionId session, const NodeKey& node, const v1::WorkerSilent& silent) {
  if (!agents_.SpeaksFor(now, session, node, silent.worker(), "the silence of")) {
    return;
  }
  if (Job* job = jobs_.OfWorker(silent.worker()); job != nullptr) {
    job->run->News(now.ns).OnSilent(KeyOf(silent.worker()), silent);
    Drive(now, *job);
  }
}

}  // namespace geopipe
