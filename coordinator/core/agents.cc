#include "coordinator/core/agents.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "optimizer/base/quantities.h"

namespace geopipe {

std::optional<Agents::Speaker> Agents::Hear(Now now, SessionId session, const v1::ConnectRequest& message) {
  const auto refuse = [&](const std::string& why) {
    Refuse(now, session, absl::InvalidArgumentError(why));
    return std::nullopt;
  };
  const NodeKey* known = membership_.NodeOf(session);
  if (message.incarnation() == 0) {
    return refuse("incarnation is 0; an agent counts from 1");
  }
  if (message.has_hello() != (known == nullptr)) {
    return refuse(known == nullptr ? "the first message of an agent is AgentHello"
                                   : "AgentHello is sent once, as the first message");
  }
  if (known == nullptr) {
    return Admit(now, session, message);
  }
  const NodeKey node = *known;
  const NodeRecord& record = *membership_.Find(node);
  if (message.incarnation() != record.incarnation) {
    return refuse(fmt::format("agent {} changed its incarnation within a stream", DisplayName(node)));
  }
  if (message.has_reports() && !membership_.Follows(node, message.reports().first_sequence())) {
    const uint64_t taken = record.reports_taken;
    membership_.ForgetReports(node);  // it cannot tell them again: its next stream begins where it is
    return refuse(fmt::format("agent {} tells its report {} after its report {}; those between are missing",
                              DisplayName(node), message.reports().first_sequence(), taken));
  }
  if (record.health != NodeHealth::kAlive) {
    outbox_.Log(LogLevel::kInfo, "", "agent {} is heard from again", DisplayName(node));
  }
  membership_.Heard(session, now.ns);
  if (message.has_heartbeat()) {
    NoteLeaving(now, node, message.heartbeat().has_leaving() ? &message.heartbeat().leaving() : nullptr);
  }
  orders_[node].log.Taken(message.orders_taken());
  return Speaker{node};
}

// A coordinator whose store is lost, or another one, must not touch the workers of a federation that it does not know.
// FailedPrecondition: the agent, which has workers, goes on with them and tries again after a while.
absl::Status Agents::CheckFederation(const v1::AgentHello& hello) const {
  if (hello.federation().empty() || options_.federation.empty() || hello.federation() == options_.federation ||
      hello.workers_size() == 0) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(fmt::format(
      "agent {}/{} has {} of federation {}, and this coordinator's job store is of federation {}: they go on by "
      "themselves; give this coordinator the store that belongs to them (state_dir, a volume that is not mounted, a "
      "backup)",
      hello.node().site(), hello.node().node(), Counted(hello.workers_size(), "worker"), hello.federation(),
      options_.federation));
}

std::optional<Agents::Speaker> Agents::Admit(Now now, SessionId session, const v1::ConnectRequest& message) {
  const v1::AgentHello& hello = message.hello();
  const LinkMonitor::News news = links_.NewsIn(hello);
  const NodeKey node{hello.node().site(), hello.node().node()};
  absl::Status foreign = CheckFederation(hello);
  const Membership::Admission admission = foreign.ok()
                                              ? membership_.Admit(now.ns, session, message.incarnation(), hello)
                                              : Membership::Admission{.status = std::move(foreign)};
  if (!admission.status.ok()) {
    membership_.NoteRefusal(node, now.ns, std::string(admission.status.message()));
    Refuse(now, session, admission.status);
    return std::nullopt;
  }
  links_.OnNodeGone(now, node);  // its earlier stream, if it had one
  if (admission.replaced.has_value()) {
    outbox_.Emit(CloseSession{*admission.replaced, absl::AbortedError("the same agent has opened a newer stream")});
  }
  outbox_.Log(LogLevel::kInfo, "", "agent {} {}: {} {} devices, {} workers", DisplayName(node),
              admission.returning ? "is back" : "has registered", hello.node().devices(), hello.node().device().kind(),
              hello.workers_size());
  NoteLeaving(now, node, hello.has_leaving() ? &hello.leaving() : nullptr);
  Orders& orders = orders_[node];
  const bool is_new = std::exchange(orders.agent, message.incarnation()) != message.incarnation();
  if (is_new) {
    orders.log.Restart();
  }
  if (is_new && hello.federation().empty()) {
    ForgetMarks(now, node);
  }
  v1::ConnectResponse welcome;
  welcome.mutable_welcome()->set_coordinator_incarnation(options_.incarnation);
  welcome.mutable_welcome()->set_heartbeat_interval_ns(options_.heartbeat_interval_ns);
  welcome.mutable_welcome()->set_silent_after_ns(options_.membership.failed_after_ns);
  welcome.mutable_welcome()->set_orders_before(orders.log.before());
  welcome.mutable_welcome()->set_federation(options_.federation);
  outbox_.Emit(SendToAgent{session, std::move(welcome)});
  links_.OnDeclared(node, news);
  // Both processes are the same as before: messages lost with the stream are sent again, and nothing else can be
  // missing. Only the processes count: a hello may have been overtaken by a later one, and does not know of its
  // welcome.
  if (!is_new) {
    orders.log.Taken(hello.coordinator_incarnation() == options_.incarnation ? hello.orders_taken() : 0);
    for (const v1::ConnectResponse& order : orders.log.waiting()) {
      outbox_.Emit(SendToAgent{session, order});
    }
  }
  return Speaker{node, is_new};
}

void Agents::NoteLeaving(Now now, const NodeKey& node, const v1::NodeLeaving* leaving) {
  if (!membership_.NoteLeaving(node, now.ns, leaving)) {
    return;
  }
  if (leaving != nullptr) {
    outbox_.Log(LogLevel::kWarning, "", "node {} goes down: its workers are ended within {}", DisplayName(node),
                FormatSeconds(leaving->within_ns()));
  } else {
    outbox_.Log(LogLevel::kInfo, "", "node {} stays", DisplayName(node));
  }
  outbox_.AskToSchedule();
}

// An agent that has never obeyed a coordinator is on a new machine, whose folders of checkpoints are new, too. That is
// durable before the welcome, after which it does not tell so again.
void Agents::ForgetMarks(Now now, const NodeKey& node) {
  for (Job* job : jobs_.InOrder()) {
    if (!IsFinal(job->state()) && ForgetMark(now, *job, node)) {
      outbox_.Emit(PersistRecord{job->name(), RecordOf(*job)});
    }
  }
}

bool Agents::SpeaksFor(Now now, SessionId session, const NodeKey& node, const v1::WorkerId& worker,
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

void Agents::OnClosed(Now now, const AgentClosed& event) {
  if (const NodeKey* found = membership_.NodeOf(event.session); found != nullptr) {
    const NodeKey node = *found;
    outbox_.Log(LogLevel::kWarning, "", "the stream of agent {} has ended: {}", DisplayName(node), event.reason);
    membership_.Closed(event.session);
    links_.OnNodeGone(now, node);
  }
}

void Agents::OnTick(Now now) {
  for (const Membership::HealthChange& change : membership_.Tick(now.ns)) {
    const std::string silent = fmt::format("agent {} has not been heard from for {}", DisplayName(change.node),
                                           FormatSeconds(change.silent_ns));
    if (change.health == NodeHealth::kSuspect) {
      outbox_.Log(LogLevel::kWarning, "", silent + ": suspect");
      continue;
    }
    outbox_.Log(LogLevel::kError, "", silent + ": failed");
    if (const std::optional<SessionId> session = membership_.SessionOf(change.node); session.has_value()) {
      Close(*session, absl::UnavailableError(silent + "; dial again"));
    }
    links_.OnNodeGone(now, change.node);
  }
  for (auto& [node, orders] : orders_) {  // their numbers stay, should the agent come after all
    if (orders.agent != 0 && membership_.Find(node) == nullptr) {
      orders.log.Restart();
      orders.agent = 0;
    }
  }
}

void Agents::Close(SessionId session, absl::Status status) {
  membership_.Closed(session);
  outbox_.Emit(CloseSession{session, std::move(status)});
}

void Agents::Refuse(Now now, SessionId session, absl::Status status) {
  outbox_.Log(LogLevel::kWarning, "", "an agent's stream is refused: {}", std::string(status.message()));
  const NodeKey* found = membership_.NodeOf(session);
  const std::optional<NodeKey> node = found == nullptr ? std::nullopt : std::optional(*found);
  Close(session, std::move(status));
  if (node.has_value()) {
    links_.OnNodeGone(now, *node);
  }
}

// --- Orders -------------------------------------------------------------------------------------------------------

void Agents::Send(NodeMessage message) {
  Orders& orders = orders_[message.node];
  if (orders.log.full()) {
    DropOrders(message.node);
  }
  const v1::ConnectResponse& order = orders.log.Add(std::move(message.message));
  if (const std::optional<SessionId> session = membership_.SessionOf(message.node); session.has_value()) {
    outbox_.Emit(SendToAgent{*session, order});
  }
}

void Agents::Send(std::vector<NodeMessage> messages) {
  for (NodeMessage& message : messages) {
    Send(std::move(message));
  }
}

// Drops the waiting orders of an agent that takes none and closes its session. Its next hello counts as another
// process's, whose workers are asked for their state and ordered anew. A probe with it ends by its deadline.
void Agents::DropOrders(const NodeKey& key) {
  Orders& orders = orders_.at(key);
  const std::string sentence = fmt::format("agent {} has left {} orders untaken; it has to come again",
                                           DisplayName(key), orders.log.waiting().size());
  outbox_.Log(LogLevel::kWarning, "", sentence);
  orders.log.Restart();
  orders.agent = 0;
  if (const std::optional<SessionId> session = membership_.SessionOf(key); session.has_value()) {
    Close(*session, absl::ResourceExhaustedError(sentence));
  }
}

// --- Acknowledgements ---------------------------------------------------------------------------------------------

void Agents::AcknowledgeAllSoon() {
  for (const auto& [key, node] : membership_.nodes()) {
    AcknowledgeSoon(key);
  }
}

void Agents::AnswerHeartbeat(const NodeKey& node) {
  if (!to_acknowledge_.contains(node)) {
    Acknowledge(node);
  }
}

void Agents::Flush() {
  for (const NodeKey& node : std::exchange(to_acknowledge_, {})) {
    Acknowledge(node);
  }
}

// Acknowledges the reports taken from the node: they are durable, or will be sent again by their source.
void Agents::Acknowledge(const NodeKey& key) {
  const std::optional<SessionId> session = membership_.SessionOf(key);
  if (!session.has_value()) {
    return;
  }
  const NodeRecord& node = *membership_.Find(key);
  const bool diagnosing = std::ranges::any_of(jobs_.Running(), [&](const Job* job) {
    return job->run->crew().diagnosis.pending() && job->run->life().nodes.contains(key);
  });
  v1::ConnectResponse taken;
  taken.mutable_reports_taken()->set_sequence(diagnosing ? node.reports_acknowledged : node.reports_taken);
  membership_.NoteAcknowledged(key, taken.reports_taken().sequence());
  if (diagnosing) {
    AcknowledgeSoon(key);
  }
  outbox_.Emit(SendToAgent{*session, std::move(taken)});
}

}  // namespace geopipe
