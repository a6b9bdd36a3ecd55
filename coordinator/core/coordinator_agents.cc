// Handles messages of agents, and sends them theirs.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "coordinator/core/coordinator.h"
#include "coordinator/core/run/worker_commands.h"

namespace geopipe {
namespace {

// News of links in an agent's declaration.
enum class Brings : uint8_t { kNothing, kFirstLinks, kOtherLinks };

Brings BringsLinks(const Membership& membership, const v1::AgentHello& hello) {
  const NodeKey key{hello.node().site(), hello.node().node()};
  const NodeRecord* known = membership.Find(key);
  if (known == nullptr) {
    const auto first = membership.nodes().lower_bound({key.site, ""});
    return first == membership.nodes().end() || first->first.site != key.site ? Brings::kFirstLinks : Brings::kNothing;
  }
  const bool same = std::equal(known->links.begin(), known->links.end(), hello.links().begin(), hello.links().end(),
                               [](const v1::LinkDeclaration& a, const v1::LinkDeclaration& b) {
                                 return a.SerializeAsString() == b.SerializeAsString();
                               });
  return same ? Brings::kNothing : Brings::kOtherLinks;
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
  orders_[node].Taken(message.orders_taken());
  strays_.OnOrdersTaken(now.ns, node, message.incarnation(), message.orders_taken());
  if (message.has_reports()) {
    OnReports(now, event.session, node, message.reports());
  } else if (!to_acknowledge_.contains(node)) {
    Acknowledge(node);  // the agent hears that somebody is there
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
        CarryOut(now, probing_.OnReport(now.ns, node, report.probe()));
      }
    }
    if (membership_.NodeOf(session) == nullptr) {
      return;  // refused
    }
  }
  to_acknowledge_.insert(node);
}

// Acknowledges the reports taken from the node: they are durable, or will be sent again by their source.
void Coordinator::Acknowledge(const NodeKey& key) {
  const NodeRecord* node = membership_.Find(key);
  if (node == nullptr || !node->session.has_value()) {
    return;
  }
  const bool diagnosing = std::ranges::any_of(jobs_, [&](const auto& entry) {
    return entry.second->run != nullptr && entry.second->run->crew().diagnosis.pending() &&
           entry.second->run->life().nodes.contains(key);
  });
  v1::ConnectResponse taken;
  taken.mutable_reports_taken()->set_sequence(diagnosing ? node->reports_acknowledged : node->reports_taken);
  membership_.NoteAcknowledged(key, taken.reports_taken().sequence());
  if (diagnosing) {
    to_acknowledge_.insert(key);
  }
  Emit(SendToAgent{*node->session, std::move(taken)});
}

void Coordinator::On(Now now, AgentClosed& event) {
  if (const NodeKey* found = membership_.NodeOf(event.session); found != nullptr) {
    const NodeKey node = *found;
    Log(LogLevel::kWarning, "", fmt::format("the stream of agent {} has ended: {}", DisplayName(node), event.reason));
    membership_.Closed(event.session);
    NoteLostNode(now, node);
  }
}

// Ends the node's probe: an agent gives its probes up when its stream breaks.
void Coordinator::NoteLostNode(Now now, const NodeKey& node) { CarryOut(now, probing_.OnNodeGone(now.ns, node)); }

void Coordinator::OnHello(Now now, SessionId session, const v1::ConnectRequest& message) {
  const v1::AgentHello& hello = message.hello();
  const Brings brings_links = BringsLinks(membership_, hello);
  const Membership::Admission admission = membership_.Admit(now.ns, session, message.incarnation(), hello);
  if (!admission.status.ok()) {
    Refuse(now, session, admission.status);
    return;
  }
  const NodeKey node{hello.node().site(), hello.node().node()};
  NoteLostNode(now, node);  // its earlier stream, if it had one
  if (brings_links != Brings::kNothing) {
    probing_.Renew(node.site);
  }
  if (brings_links == Brings::kOtherLinks) {
    measured_.Forget(node.site);
  }
  if (admission.replaced.has_value()) {
    Emit(CloseSession{*admission.replaced, absl::AbortedError("the same agent has opened a newer stream")});
  }
  Log(LogLevel::kInfo, "",
      fmt::format("agent {} {}: {} {} devices, {} workers", DisplayName(node),
                  admission.returning ? "is back" : "has registered", hello.node().devices(),
                  hello.node().device().kind(), hello.workers_size()));
  const bool fresh = std::exchange(orders_of_[node], message.incarnation()) != message.incarnation();
  OrderLog& orders = orders_[node];
  if (fresh) {
    orders.Restart();
    for (Job* job : InOrder()) {
      job->unfit.erase(node);  // the node may have been repaired
    }
  }
  v1::ConnectResponse welcome;
  welcome.mutable_welcome()->set_coordinator_incarnation(options_.incarnation);
  welcome.mutable_welcome()->set_heartbeat_interval_ns(options_.heartbeat_interval_ns);
  welcome.mutable_welcome()->set_silent_after_ns(options_.membership.failed_after_ns);
  welcome.mutable_welcome()->set_orders_before(orders.before());
  Emit(SendToAgent{session, std::move(welcome)});
  NoteDisputes();
  // Both processes are the same as before: messages lost with the stream are sent again, and nothing else can be
  // missing. Only the processes count: a hello may have been overtaken by a later one, and does not know of its
  // welcome.
  if (!fresh) {
    orders.Taken(hello.coordinator_incarnation() == options_.incarnation ? hello.orders_taken() : 0);
    for (const v1::ConnectResponse& order : orders.waiting()) {
      Emit(SendToAgent{session, order});
    }
  }
  strays_.OnAgent(now.ns, node, message.incarnation());
  OnWorkersListed(now, node, hello, fresh);
  TellReturned(now);
  schedule_ = true;
}

// Repeats orders that returned nodes may have missed, in runs that have all their nodes again.
void Coordinator::TellReturned(Now now) {
  for (Job* job : InOrder()) {
    if (job->run != nullptr && AllConnected(*job->run)) {
      job->run->OnAllConnected(now.ns);
      Drive(now, *job);
    }
  }
}

// Stops workers of no live run, and investigates workers of a live run that should be there and are not.
void Coordinator::OnWorkersListed(Now now, const NodeKey& node, const v1::AgentHello& hello, bool fresh) {
  constexpr std::string_view kReason = "the coordinator does not know this worker's job as running";
  std::map<std::string, std::map<WorkerKey, JobRun::Living>> alive;  // by job
  for (int i = 0; i < hello.workers_size(); ++i) {
    const v1::WorkerId& worker = hello.workers(i);
    if (LiveJob(worker) != nullptr && KeyOf(worker).node_key() == node) {
      JobRun::Living& living = alive[worker.job()][KeyOf(worker)];
      if (i < hello.worker_states_size()) {
        living = {.attached = hello.worker_states(i).attached(), .status = hello.worker_states(i).status()};
      }
      continue;
    }
    // The worker is named by its incarnation: a later run of that name may have workers here.
    SendToNode({node, StopMessage(worker.job(), options_.run.stop_grace_ns, std::string(kReason), {worker.device()},
                                  worker.incarnation())});
    strays_.OnOrdered(KeyOf(worker), worker.incarnation(), membership_.Find(node)->incarnation, orders_[node].last());
  }
  for (Job* job : InOrder()) {
    if (job->run != nullptr && job->run->life().nodes.contains(node)) {
      job->run->OnNodeReturned(now.ns, node, alive[job->name()], fresh);
      Drive(now, *job);
    }
  }
}

bool Coordinator::SpeaksFor(Now now, SessionId session, const NodeKey& node, const v1::WorkerId& worker,
                            std::string_view what) {
  const WorkerKey key = KeyOf(worker);
  if (key.node_key() == node) {
    return true;
  }
  Refuse(now, session,
         absl::InvalidArgumentError(fmt::format("agent {} reports {} worker {}; an agent speaks for its own node only",
                                                DisplayName(node), what, DisplayName(key))));
  return false;
}

void Coordinator::OnReport(Now now, SessionId session, const NodeKey& node, const v1::RelayedReport& report) {
  if (!SpeaksFor(now, session, node, report.worker(), "for")) {
    return;
  }
  if (Job* job = LiveJob(report.worker()); job != nullptr) {
    React(now, *job, job->run->OnReport(now.ns, KeyOf(report.worker()), report.report()));
    Drive(now, *job);
  }
}

void Coordinator::OnExit(Now now, SessionId session, const NodeKey& node, const v1::WorkerExit& exit) {
  if (!SpeaksFor(now, session, node, exit.worker(), "the exit of")) {
    return;
  }
  strays_.OnEnded(now.ns, KeyOf(exit.worker()), exit.worker().incarnation());
  if (Job* job = LiveJob(exit.worker()); job != nullptr) {
    job->run->OnExit(now.ns, KeyOf(exit.worker()), exit);
    Drive(now, *job);
  }
}

void Coordinator::OnSilent(Now now, SessionId session, const NodeKey& node, const v1::WorkerSilent& silent) {
  if (!SpeaksFor(now, session, node, silent.worker(), "the silence of")) {
    return;
  }
  if (Job* job = LiveJob(silent.worker()); job != nullptr) {
    job->run->OnSilent(now.ns, KeyOf(silent.worker()), silent);
    Drive(now, *job);
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
  OrderLog& orders = orders_[message.node];
  if (orders.full()) {
    DropOrders(message.node);
  }
  const v1::ConnectResponse& order = orders.Add(std::move(message.message));
  const NodeRecord* node = membership_.Find(message.node);
  if (node != nullptr && node->session.has_value()) {
    Emit(SendToAgent{*node->session, order});
  }
}

// Drops the waiting orders of an agent that takes none and closes its session. Its next hello counts as another
// process's, whose workers are asked for their state and ordered anew. A probe with it ends by its deadline.
void Coordinator::DropOrders(const NodeKey& key) {
  OrderLog& orders = orders_.at(key);
  const std::string sentence = fmt::format("agent {} has left {} orders untaken; it has to come again",
                                           DisplayName(key), orders.waiting().size());
  Log(LogLevel::kWarning, "", sentence);
  orders.Restart();
  orders_of_.erase(key);
  const NodeRecord* node = membership_.Find(key);
  if (node != nullptr && node->session.has_value()) {
    const SessionId session = *node->session;
    membership_.Closed(session);
    Emit(CloseSession{session, absl::ResourceExhaustedError(sentence)});
  }
}

Job* Coordinator::LiveJob(const v1::WorkerId& worker) {
  Job* job = FindJob(worker.job());
  return job != nullptr && job->run != nullptr && job->run->life().Has(KeyOf(worker), worker.incarnation()) ? job
                                                                                                            : nullptr;
}

}  // namespace geopipe
