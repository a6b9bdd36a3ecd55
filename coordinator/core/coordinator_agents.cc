// What agents say, and what is said to them.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "coordinator/core/coordinator.h"
#include "coordinator/core/worker_commands.h"

namespace geopipe {
namespace {

// Whether links of the agent's site may be others than those known so far.
bool BringsLinks(const Membership& membership, const v1::AgentHello& hello) {
  const NodeKey key{hello.node().site(), hello.node().node()};
  const NodeRecord* known = membership.Find(key);
  if (known == nullptr) {
    const auto first = membership.nodes().lower_bound({key.site, ""});
    return first == membership.nodes().end() || first->first.site != key.site;
  }
  return !std::equal(known->links.begin(), known->links.end(), hello.links().begin(), hello.links().end(),
                     [](const v1::LinkDeclaration& a, const v1::LinkDeclaration& b) {
                       return a.SerializeAsString() == b.SerializeAsString();
                     });
}

}  // namespace

void Coordinator::On(Now now, AgentMessage& event) {
  const v1::ConnectRequest& message = event.message;
  const NodeKey* known = membership_.NodeOf(event.session);
  if (message.has_hello() != (known == nullptr) || message.incarnation() == 0) {
    Refuse(now, event.session,
           absl::InvalidArgumentError(message.incarnation() == 0 ? "incarnation is 0; an agent counts from 1"
                                      : known == nullptr         ? "the first message of an agent is AgentHello"
                                                                 : "AgentHello is sent once, as the first message"));
    return;
  }
  if (known == nullptr) {
    OnHello(now, event.session, message);
    return;
  }
  const NodeKey node = *known;
  if (message.incarnation() != membership_.Find(node)->incarnation) {
    Refuse(
        now, event.session,
        absl::InvalidArgumentError(fmt::format("agent {} changed its incarnation within a stream", DisplayName(node))));
    return;
  }
  if (membership_.Find(node)->health != NodeHealth::kAlive) {
    Log(LogLevel::kInfo, "", fmt::format("agent {} is heard from again", DisplayName(node)));
  }
  membership_.Heard(event.session, now.ns);
  if (message.has_reports()) {
    OnReports(now, event.session, node, message.reports());
  }
}

// An agent that has lost its stream says again what it does not know to have been taken.
void Coordinator::OnReports(Now now, SessionId session, const NodeKey& node, const v1::NodeReports& message) {
  uint64_t sequence = message.first_sequence();
  for (const v1::NodeReport& report : message.reports()) {
    if (membership_.Take(node, sequence++)) {
      if (report.has_worker()) {
        OnReport(now, session, node, report.worker());
      } else if (report.has_exit()) {
        OnExit(now, session, node, report.exit());
      } else if (report.has_probe()) {
        CarryOut(now, probing_.OnReport(now.ns, node, report.probe()));
      }
    }
    if (membership_.NodeOf(session) == nullptr) {
      return;  // refused
    }
  }
  v1::ConnectResponse taken;
  taken.mutable_reports_taken()->set_sequence(membership_.Find(node)->reports_taken);
  Emit(SendToAgent{session, std::move(taken)});
}

void Coordinator::On(Now now, AgentClosed& event) {
  if (const NodeKey* found = membership_.NodeOf(event.session); found != nullptr) {
    const NodeKey node = *found;
    Log(LogLevel::kWarning, "", fmt::format("the stream of agent {} has ended: {}", DisplayName(node), event.reason));
    membership_.Closed(event.session);
    NoteLostNode(now, node);
  }
}

// What it was probing is over: an agent gives its probes up when its stream breaks.
void Coordinator::NoteLostNode(Now now, const NodeKey& node) { CarryOut(now, probing_.OnNodeGone(now.ns, node)); }

void Coordinator::OnHello(Now now, SessionId session, const v1::ConnectRequest& message) {
  const v1::AgentHello& hello = message.hello();
  const bool brings_links = BringsLinks(membership_, hello);
  const Membership::Admission admission = membership_.Admit(now.ns, session, message.incarnation(), hello);
  if (!admission.status.ok()) {
    Refuse(now, session, admission.status);
    return;
  }
  const NodeKey node{hello.node().site(), hello.node().node()};
  NoteLostNode(now, node);  // its earlier stream, if it had one
  if (brings_links) {
    probing_.Renew(node.site);
    measured_.Forget(node.site);
  }
  if (admission.replaced.has_value()) {
    Emit(CloseSession{*admission.replaced, absl::AbortedError("the same agent has opened a newer stream")});
  }
  Log(LogLevel::kInfo, "",
      fmt::format("agent {} {}: {} {} devices, {} workers", DisplayName(node),
                  admission.returning ? "is back" : "has registered", hello.node().devices(),
                  hello.node().device().kind(), hello.workers_size()));
  v1::ConnectResponse welcome;
  welcome.mutable_welcome()->set_coordinator_incarnation(options_.incarnation);
  welcome.mutable_welcome()->set_heartbeat_interval_ns(options_.heartbeat_interval_ns);
  Emit(SendToAgent{session, std::move(welcome)});
  NoteDisputes();
  OnWorkersListed(now, node, hello);
  FlushUnsent(node);
  schedule_ = true;
}

// Workers of no live run are stopped; those of a live run that should be there and are not are looked into.
void Coordinator::OnWorkersListed(Now now, const NodeKey& node, const v1::AgentHello& hello) {
  constexpr std::string_view kReason = "the coordinator does not know this worker's job as running";
  std::map<std::string, std::set<int32_t>> alive;  // by job
  for (const v1::WorkerId& worker : hello.workers()) {
    if (LiveJob(worker) != nullptr && KeyOf(worker).node_key() == node) {
      alive[worker.job()].insert(worker.device());
      continue;
    }
    // By its incarnation: a later run of that name may have workers here.
    SendToNode({node, StopMessage(worker.job(), options_.run.stop_grace_ns, std::string(kReason), {worker.device()},
                                  worker.incarnation())});
  }
  for (Job* job : InOrder()) {
    if (job->run == nullptr || !job->run->nodes().contains(node)) {
      continue;
    }
    // An order to start workers that was never sent is repeated by the run for those that are missing.
    std::erase_if(unsent_[node], [&](const v1::ConnectResponse& unsent) {
      return unsent.has_start_workers() && unsent.start_workers().job() == job->name();
    });
    React(now, *job, job->run->OnNodeReturned(now.ns, node, alive[job->name()]));
  }
}

void Coordinator::OnReport(Now now, SessionId session, const NodeKey& node, const v1::RelayedReport& report) {
  const WorkerKey worker = KeyOf(report.worker());
  if (worker.node_key() != node) {
    Refuse(now, session,
           absl::InvalidArgumentError(fmt::format("agent {} reports for worker {}; an agent speaks for its own "
                                                  "node only",
                                                  DisplayName(node), DisplayName(worker))));
    return;
  }
  if (Job* job = LiveJob(report.worker()); job != nullptr) {
    React(now, *job, job->run->OnReport(now.ns, worker, report.report()));
  }
}

void Coordinator::OnExit(Now now, SessionId session, const NodeKey& node, const v1::WorkerExit& exit) {
  const WorkerKey worker = KeyOf(exit.worker());
  if (worker.node_key() != node) {
    Refuse(now, session,
           absl::InvalidArgumentError(fmt::format("agent {} reports the exit of worker {}; an agent speaks for "
                                                  "its own node only",
                                                  DisplayName(node), DisplayName(worker))));
    return;
  }
  if (Job* job = LiveJob(exit.worker()); job != nullptr) {
    React(now, *job, job->run->OnExit(now.ns, worker, exit));
  }
}

void Coordinator::NoteDisputes() {
  std::vector<std::string> disputes = LinkTable::Of(membership_.nodes()).Disputes();
  for (const std::string& dispute : disputes) {
    if (std::ranges::find(disputes_, dispute) == disputes_.end()) {
      Log(LogLevel::kWarning, "", dispute);
    }
  }
  disputes_ = std::move(disputes);
}

void Coordinator::Refuse(Now now, SessionId session, absl::Status status) {
  Log(LogLevel::kWarning, "", fmt::format("an agent's stream is refused: {}", std::string(status.message())));
  const NodeKey* found = membership_.NodeOf(session);
  const std::optional<NodeKey> node = found == nullptr ? std::nullopt : std::optional(*found);
  membership_.Closed(session);
  Emit(CloseSession{session, std::move(status)});
  if (node.has_value()) {
    NoteLostNode(now, *node);
  }
}

void Coordinator::SendToNode(NodeMessage message) {
  const NodeRecord* node = membership_.Find(message.node);
  if (node != nullptr && node->session.has_value()) {
    Emit(SendToAgent{*node->session, std::move(message.message)});
  } else if (node != nullptr && node->health != NodeHealth::kFailed) {
    unsent_[message.node].push_back(std::move(message.message));
  }
  // A failed agent's orders are void: its job has failed, and whatever it reports when it returns is stopped.
}

void Coordinator::FlushUnsent(const NodeKey& node) {
  const auto found = unsent_.find(node);
  if (found == unsent_.end()) {
    return;
  }
  std::vector<v1::ConnectResponse> messages = std::move(found->second);
  unsent_.erase(found);
  for (v1::ConnectResponse& message : messages) {
    SendToNode({node, std::move(message)});
  }
}

Job* Coordinator::LiveJob(const v1::WorkerId& worker) {
  Job* job = FindJob(worker.job());
  return job != nullptr && job->run != nullptr && job->run->incarnation() == worker.incarnation() &&
                 job->run->Has(KeyOf(worker))
             ? job
             : nullptr;
}

}  // namespace geopipe
