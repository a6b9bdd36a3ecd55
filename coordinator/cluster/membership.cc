#include "coordinator/cluster/membership.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace geopipe {

Membership::Admission Membership::Admit(int64_t now_ns, SessionId session, uint64_t incarnation,
                                        const v1::AgentHello& hello) {
  const NodeKey key{hello.node().site(), hello.node().node()};
  if (hello.version() != version_) {
    return {.status = absl::FailedPreconditionError(fmt::format(
                "agent {} is version {} and the coordinator is version {}; install the same version on both",
                DisplayName(key), hello.version(), version_))};
  }
  auto found = nodes_.find(key);
  if (found == nodes_.end() && nodes_.size() >= limits_.max_agents && !ForgetLongestGone()) {
    return {.status = absl::ResourceExhaustedError(
                fmt::format("agent {} is one more than the {} agents this coordinator takes; raise limits.agents",
                            DisplayName(key), limits_.max_agents))};
  }
  Admission admission;
  if (found != nodes_.end()) {
    NodeRecord& node = found->second;
    admission.returning = node.incarnation == incarnation;
    if (node.session.has_value() && !admission.returning) {
      if (node.claimant != incarnation) {
        node.claimant = incarnation;
        node.claimed_ns = now_ns;
      }
      const std::string holder = fmt::format(
          "{} belongs to the agent with pid {} on host {}, which registered {} ago and was heard from {} ago",
          DisplayName(key), node.pid, node.host, FormatSeconds(now_ns - node.registered_ns),
          FormatSeconds(now_ns - node.last_heard_ns));
      if (node.last_heard_ns <= node.claimed_ns) {
        return {.status = absl::UnavailableError(holder + "; its next heartbeat decides, try again")};
      }
      return {.status =
                  absl::AlreadyExistsError(holder + "; stop that one, or give this one another site or node name")};
    }
    if (node.session.has_value()) {
      admission.replaced = node.session;
      sessions_.erase(*node.session);
    }
  }
  const uint64_t reports_taken = admission.returning ? found->second.reports_taken : 0;
  std::optional<NodeRecord::Trouble> trouble;
  if (admission.returning) {
    trouble = std::move(found->second.trouble);
  }
  nodes_[key] = {.spec = hello.node(),
                 .version = hello.version(),
                 .host = hello.host(),
                 .pid = hello.pid(),
                 .incarnation = incarnation,
                 .registered_ns = admission.returning ? found->second.registered_ns : now_ns,
                 .session = session,
                 .last_heard_ns = now_ns,
                 .health = NodeHealth::kAlive,
                 .links = {hello.links().begin(), hello.links().end()},
                 .reports_taken = reports_taken,
                 .reports_acknowledged = admission.returning ? found->second.reports_acknowledged : 0,
                 .orphan_grace_ns = hello.orphan_grace_ns(),
                 .trouble = std::move(trouble)};
  sessions_[session] = key;
  refusals_.erase(key);
  return admission;
}

const NodeKey* Membership::NodeOf(SessionId session) const {
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : &found->second;
}

void Membership::Heard(SessionId session, int64_t now_ns) {
  if (const NodeKey* key = NodeOf(session); key != nullptr) {
    NodeRecord& node = nodes_.at(*key);
    node.last_heard_ns = now_ns;
    node.hears = true;
    node.health = NodeHealth::kAlive;
  }
}

bool Membership::Take(const NodeKey& key, uint64_t sequence) {
  NodeRecord& node = nodes_.at(key);
  const bool fresh = sequence > node.reports_taken;
  node.reports_taken = std::max(node.reports_taken, sequence);
  return fresh;
}

void Membership::NoteRefusal(const NodeKey& key, int64_t now_ns, std::string why) {
  if (refusals_.size() < kMaxRefusals || refusals_.contains(key)) {
    refusals_[key] = {.why = std::move(why), .at_ns = now_ns};
  }
}

void Membership::NoteTrouble(const NodeKey& key, int64_t now_ns, std::string why) {
  if (const auto found = nodes_.find(key); found != nodes_.end()) {
    std::optional<NodeRecord::Trouble>& trouble = found->second.trouble;
    trouble = {.why = std::move(why), .since_ns = trouble.has_value() ? trouble->since_ns : now_ns, .last_ns = now_ns};
  }
}

bool Membership::NoteLeaving(const NodeKey& key, int64_t now_ns, const v1::NodeLeaving* leaving) {
  std::optional<int64_t>& leaves_ns = nodes_.at(key).leaves_ns;
  const bool is_news = leaves_ns.has_value() != (leaving != nullptr);
  leaves_ns = leaving == nullptr ? std::nullopt : std::optional(now_ns + leaving->within_ns());
  return is_news;
}

void Membership::EndTrouble(const NodeKey& key) {
  if (const auto found = nodes_.find(key); found != nodes_.end()) {
    found->second.trouble.reset();
  }
}

bool Membership::Rests(const NodeKey& key) const {
  const NodeRecord* node = Find(key);
  return node != nullptr && node->rests(last_tick_ns_);
}

bool Membership::TakeRested(int64_t now_ns) {
  const int64_t before_ns = std::exchange(last_rested_ns_, now_ns);
  return std::ranges::any_of(nodes_, [&](const auto& entry) {
    return entry.second.trouble.has_value() && !entry.second.rests(now_ns) && entry.second.rests(before_ns);
  });
}

void Membership::Closed(SessionId session) {
  const auto found = sessions_.find(session);
  if (found != sessions_.end()) {
    nodes_.at(found->second).session.reset();
    sessions_.erase(found);
  }
}

bool Membership::ForgetLongestGone() {
  auto longest = nodes_.end();
  for (auto node = nodes_.begin(); node != nodes_.end(); ++node) {
    if (node->second.gone() &&
        (longest == nodes_.end() || node->second.last_heard_ns < longest->second.last_heard_ns)) {
      longest = node;
    }
  }
  if (longest == nodes_.end()) {
    return false;
  }
  nodes_.erase(longest);
  return true;
}

std::vector<Membership::HealthChange> Membership::Tick(int64_t now_ns) {
  std::erase_if(nodes_, [&](const auto& entry) {
    return entry.second.gone() && now_ns - entry.second.last_heard_ns >= kForgottenAfterNs;
  });
  std::erase_if(refusals_, [&](const auto& entry) { return now_ns - entry.second.at_ns >= kRefusalForgottenAfterNs; });
  std::vector<HealthChange> changes;
  // After a long pause of this process (a slow disk, a stopped machine) it was not the agents that were silent.
  const int64_t pause_ns = last_tick_ns_ == 0 ? 0 : now_ns - last_tick_ns_;
  last_tick_ns_ = now_ns;
  for (auto& [key, node] : nodes_) {
    if (node.trouble.has_value() && now_ns - node.trouble->last_ns >= kTroubleForgottenAfterNs) {
      node.trouble.reset();
    }
    if (pause_ns > limits_.suspect_after_ns) {
      node.last_heard_ns = std::min(now_ns, node.last_heard_ns + pause_ns);
      node.claimed_ns = std::max(node.claimed_ns, node.last_heard_ns);  // not heard from since
    }
    const int64_t silent_ns = now_ns - node.last_heard_ns;
    const NodeHealth health = silent_ns >= limits_.failed_after_ns    ? NodeHealth::kFailed
                              : silent_ns >= limits_.suspect_after_ns ? NodeHealth::kSuspect
                                                                      : NodeHealth::kAlive;
    if (health > node.health) {
      node.health = health;
      changes.push_back({key, health, silent_ns});
    }
  }
  return changes;
}

const NodeRecord* Membership::Find(const NodeKey& key) const {
  const auto found = nodes_.find(key);
  return found == nodes_.end() ? nullptr : &found->second;
}

std::optional<SessionId> Membership::SessionOf(const NodeKey& key) const {
  const NodeRecord* node = Find(key);
  return node == nullptr ? std::nullopt : node->session;
}

bool Membership::IsUsable(const NodeKey& key) const {
  const NodeRecord* node = Find(key);
  return node != nullptr && node->usable();
}

bool Membership::IsLeaving(const NodeKey& key) const {
  const NodeRecord* node = Find(key);
  return node != nullptr && node->leaves_ns.has_value();
}

}  // namespace geopipe
