// Membership: the nodes whose agents have registered, their streams, and how long ago they were heard from. Decides
// which registrations are taken and when a silent agent is suspect or failed.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/cluster/names.h"
#include "geopipe/v1/agent_service.pb.h"
#include "geopipe/v1/cluster.pb.h"
#include "runtime/manifest/coordinator_config.h"

namespace geopipe {

enum class NodeHealth : uint8_t { kAlive, kSuspect, kFailed };

struct NodeRecord {
  v1::NodeSpec spec;
  std::string version;
  std::string host;          // host of the agent
  int64_t pid = 0;           // of the agent process
  uint64_t incarnation = 0;  // of the agent process
  int64_t registered_ns = 0;
  std::optional<SessionId> session;  // absent: its stream is down
  int64_t last_heard_ns = 0;
  bool hears = false;  // has answered on this stream, so orders get through as well
  NodeHealth health = NodeHealth::kAlive;
  std::vector<v1::LinkDeclaration> links;
  uint64_t reports_taken = 0;  // number of the last one of this incarnation
  uint64_t reports_acknowledged = 0;
  int64_t orphan_grace_ns = 0;  // of its workers; 0: not told
  // Trouble of workers there that is the node's: a start that failed, a disk that cannot be read.
  struct Trouble {
    std::string why;
    int64_t since_ns = 0;
    int64_t last_ns = 0;
  };
  std::optional<Trouble> trouble = std::nullopt;  // until workers do well there, or nobody has tried for long
  // Time at which its workers are ended, for the node goes down; unset: it stays.
  std::optional<int64_t> leaves_ns = std::nullopt;
  // The agent process that wants this one's place, and since when.
  uint64_t claimant = 0;
  int64_t claimed_ns = 0;

  // True when the node takes new work: registered, connected and not failed.
  bool usable() const { return session.has_value() && health != NodeHealth::kFailed; }
  // True when it has been heard from lately as well.
  bool well() const { return session.has_value() && health == NodeHealth::kAlive; }
  // True when the node has failed and its stream is down.
  bool gone() const { return !session.has_value() && health == NodeHealth::kFailed; }
  // True while a trouble is so fresh that nothing new is tried there.
  bool rests(int64_t now_ns) const { return trouble.has_value() && now_ns - trouble->last_ns < kTroubleRestNs; }
  static constexpr int64_t kTroubleRestNs = 10'000'000'000;
};

class Membership {
 public:
  // A node that is gone is remembered for so long, so that people see what is missing; less when its place is needed.
  static constexpr int64_t kForgottenAfterNs = int64_t{3600} * 1'000'000'000;
  // A trouble is forgotten when nothing has been tried on the node for so long.
  static constexpr int64_t kTroubleForgottenAfterNs = int64_t{600} * 1'000'000'000;
  static constexpr int64_t kRefusalForgottenAfterNs = int64_t{60} * 1'000'000'000;
  static constexpr size_t kMaxRefusals = 256;

  Membership(std::string version, MembershipLimits limits) : version_(std::move(version)), limits_(limits) {}

  struct Admission {
    absl::Status status;
    std::optional<SessionId> replaced = std::nullopt;  // an older stream of the same agent process, to be closed
    bool returning = false;                            // this agent process was registered before
  };
  // Errors: FailedPrecondition (another version), Unavailable (another agent holds the site and node; its next
  // heartbeat will show whether it lives), AlreadyExists (it lives), ResourceExhausted (too many agents). The registry
  // of nodes is then unchanged.
  Admission Admit(int64_t now_ns, SessionId session, uint64_t incarnation, const v1::AgentHello& hello);

  // The stream's node; nullptr before its hello was taken.
  const NodeKey* NodeOf(SessionId session) const;
  void Heard(SessionId session, int64_t now_ns);
  // False where reports between the latest one and this one are missing. The first that is taken of a process may have
  // any number: another coordinator took those before. REQUIRES: the node is registered.
  bool Follows(const NodeKey& key, uint64_t sequence) const {
    const uint64_t taken = nodes_.at(key).reports_taken;
    return taken == 0 || sequence <= taken + 1;
  }
  // The next report may have any number.
  void ForgetReports(const NodeKey& key) { nodes_.at(key).reports_taken = 0; }
  // Records the report's number; false for a duplicate. REQUIRES: the node is registered.
  bool Take(const NodeKey& key, uint64_t sequence);
  // REQUIRES: the node is registered.
  void NoteAcknowledged(const NodeKey& key, uint64_t sequence) { nodes_.at(key).reports_acknowledged = sequence; }
  void NoteTrouble(const NodeKey& key, int64_t now_ns, std::string why);
  // The agent tells when the node goes down (nullptr: it stays). True where that is news. REQUIRES: it is registered.
  bool NoteLeaving(const NodeKey& key, int64_t now_ns, const v1::NodeLeaving* leaving);
  // Workers do well there.
  void EndTrouble(const NodeKey& key);
  // True while nothing new is tried there, as of the latest Tick.
  bool Rests(const NodeKey& key) const;
  // True when a node may be tried again since the call before.
  bool TakeRested(int64_t now_ns);
  // The stream has ended; the node stays registered and fails when it is silent for too long.
  void Closed(SessionId session);

  // Agents that were refused lately, each with the latest reason.
  struct Refusal {
    std::string why;
    int64_t at_ns = 0;
  };
  void NoteRefusal(const NodeKey& key, int64_t now_ns, std::string why);
  const std::map<NodeKey, Refusal>& refusals() const { return refusals_; }

  struct HealthChange {
    NodeKey node;
    NodeHealth health = NodeHealth::kAlive;
    int64_t silent_ns = 0;
  };
  // Returns the changes that time alone has made. Each is told once.
  std::vector<HealthChange> Tick(int64_t now_ns);

  // nullptr when it never registered, or is forgotten.
  const NodeRecord* Find(const NodeKey& key) const;
  // The node's stream; nullopt: it has none.
  std::optional<SessionId> SessionOf(const NodeKey& key) const;
  // True when the node is registered and takes new work.
  bool IsUsable(const NodeKey& key) const;
  // True when its agent has told that the node goes down.
  bool IsLeaving(const NodeKey& key) const;
  const std::map<NodeKey, NodeRecord>& nodes() const { return nodes_; }

 private:
  bool ForgetLongestGone();  // false: nobody is gone

  const std::string version_;
  const MembershipLimits limits_;
  int64_t last_tick_ns_ = 0;
  int64_t last_rested_ns_ = 0;
  std::map<NodeKey, NodeRecord> nodes_;
  std::map<SessionId, NodeKey> sessions_;
  std::map<NodeKey, Refusal> refusals_;
};

}  // namespace geopipe
