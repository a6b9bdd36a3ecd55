// The agents' streams: which are admitted, the orders that each agent has not taken yet, and the reports that are to be
// acknowledged.
//
// Rules: orders to a node are numbered, and wait until its agent has taken them, across its streams. An agent that
// leaves too many begins anew, as another process would. Reports are acknowledged with the next flush, when what they
// told is durable. The end of a stream ends the node's probe.
//
// Callers: the coordinator, with what comes over the streams and with orders of runs; the ledger.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "coordinator/cluster/membership.h"
#include "coordinator/core/jobs.h"
#include "coordinator/core/link_monitor.h"
#include "coordinator/core/order_log.h"
#include "coordinator/core/outbox.h"

namespace geopipe {

class Agents {
 public:
  Agents(const CoordinatorOptions& options, Outbox& outbox, Membership& membership, const Jobs& jobs,
         LinkMonitor& links)
      : options_(options), outbox_(outbox), membership_(membership), jobs_(jobs), links_(links) {}

  // The agent that a message of a stream is from.
  struct Speaker {
    NodeKey node;
    bool is_new = false;  // another process than the one that the orders so far were for
  };
  // Takes a message: admits the agent with the first one, and notes with the others that it is heard, and which orders
  // it has taken. nullopt: the stream is refused.
  std::optional<Speaker> Hear(Now now, SessionId session, const v1::ConnectRequest& message);
  // Returns false, and refuses the stream, when the agent speaks for another node.
  bool SpeaksFor(Now now, SessionId session, const NodeKey& node, const v1::WorkerId& worker, std::string_view what);
  void OnClosed(Now now, const AgentClosed& event);
  // Gives up agents that have been silent for too long.
  void OnTick(Now now);

  void Send(NodeMessage message);
  void Send(std::vector<NodeMessage> messages);
  // Number of the last order to the node.
  uint64_t LastOrder(const NodeKey& node) { return orders_[node].log.last(); }

  // With the next flush.
  void AcknowledgeSoon(const NodeKey& node) { to_acknowledge_.insert(node); }
  void AcknowledgeAllSoon();
  // Now, unless it is done soon anyway: the agent hears that somebody is there.
  void AnswerHeartbeat(const NodeKey& node);
  void Flush();

 private:
  struct Orders {
    uint64_t agent = 0;  // incarnation of the process that they are for
    OrderLog log;
  };

  std::optional<Speaker> Admit(Now now, SessionId session, const v1::ConnectRequest& message);
  void ForgetMarks(Now now, const NodeKey& node);
  void NoteLeaving(Now now, const NodeKey& node, const v1::NodeLeaving* leaving);
  absl::Status CheckFederation(const v1::AgentHello& hello) const;
  void Refuse(Now now, SessionId session, absl::Status status);
  void Close(SessionId session, absl::Status status);
  void DropOrders(const NodeKey& key);
  void Acknowledge(const NodeKey& key);

  const CoordinatorOptions& options_;
  Outbox& outbox_;
  Membership& membership_;
  const Jobs& jobs_;
  LinkMonitor& links_;
  std::map<NodeKey, Orders> orders_;
  std::set<NodeKey> to_acknowledge_;
};

}  // namespace geopipe
