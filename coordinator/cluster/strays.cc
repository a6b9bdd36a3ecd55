#include "coordinator/cluster/strays.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace geopipe {

void Strays::Add(const WorkerKey& worker, Stray stray) { strays_[worker] = std::move(stray); }

void Strays::AddUnknown(int64_t now_ns, const WorkerKey& worker, const std::string& job, uint64_t incarnation,
                        uint64_t agent) {
  constexpr int64_t kGraceNs = 60'000'000'000;  // of agents whose configuration nobody knows
  const Stray* known = Find(worker);
  const bool is_known = known != nullptr && known->incarnation == incarnation;
  Add(worker, {.job = job,
               .run = 0,
               .incarnation = incarnation,
               .agent = agent,
               .order = ~uint64_t{0},
               .grace_ns = kGraceNs,
               .noted_ns = is_known ? known->noted_ns : now_ns,
               .alone_ns = now_ns,
               .unknown = true});
}

template <class Matches>
std::vector<WorkerKey> Strays::UnknownWhere(Matches matches) const {
  std::vector<WorkerKey> found;
  for (const auto& [worker, stray] : strays_) {
    if (stray.unknown && matches(worker, stray)) {
      found.push_back(worker);
    }
  }
  return found;
}

std::vector<WorkerKey> Strays::UnknownAt(const NodeKey& node) const {
  return UnknownWhere([&](const WorkerKey& worker, const Stray&) { return worker.node_key() == node; });
}

std::vector<WorkerKey> Strays::UnknownOf(const std::string& job) const {
  return UnknownWhere([&](const WorkerKey&, const Stray& stray) { return stray.job == job; });
}

std::vector<WorkerKey> Strays::Overdue(int64_t now_ns) const {
  return UnknownWhere([&](const WorkerKey&, const Stray& stray) { return now_ns - stray.noted_ns >= kUnknownNs; });
}

const Stray* Strays::Find(const WorkerKey& device) const {
  const auto found = strays_.find(device);
  return found == strays_.end() ? nullptr : &found->second;
}

void Strays::OnEnded(int64_t now_ns, const WorkerKey& worker, uint64_t incarnation) {
  if (const Stray* stray = Find(worker); stray != nullptr && stray->incarnation == incarnation) {
    Forget(now_ns, worker);
  }
}

void Strays::OnOrdered(const WorkerKey& worker, uint64_t incarnation, uint64_t agent, uint64_t order) {
  if (const auto found = strays_.find(worker); found != strays_.end() && found->second.incarnation == incarnation) {
    found->second.agent = agent;
    found->second.order = order;
    found->second.unknown = false;
  }
}

void Strays::OnOrdersTaken(int64_t now_ns, const NodeKey& node, uint64_t agent, uint64_t order) {
  std::vector<WorkerKey> stopped;
  for (const auto& [worker, stray] : strays_) {
    if (worker.node_key() == node && stray.agent == agent && stray.order <= order) {
      stopped.push_back(worker);
    }
  }
  for (const WorkerKey& worker : stopped) {
    Forget(now_ns, worker);
  }
}

void Strays::OnAgent(int64_t now_ns, const NodeKey& node, uint64_t agent) {
  for (auto& [worker, stray] : strays_) {
    if (worker.node_key() == node && stray.agent != 0 && stray.agent != agent) {
      stray.agent = 0;
      Leave(now_ns, stray.run);
    }
  }
}

void Strays::OnTick(int64_t now_ns) {
  freed_ +=
      static_cast<int64_t>(std::erase_if(strays_, [&](const auto& entry) { return now_ns >= UntilNs(entry.second); }));
}

int64_t Strays::UntilNs(const Stray& stray) const {
  const bool accompanied = std::ranges::any_of(
      strays_, [&](const auto& entry) { return entry.second.run == stray.run && entry.second.agent != 0; });
  return accompanied ? stray.noted_ns + limit_ns_
                     : std::min(stray.noted_ns + limit_ns_, stray.alone_ns + stray.grace_ns);
}

void Strays::Forget(int64_t now_ns, const WorkerKey& worker) {
  const auto found = strays_.find(worker);
  const uint64_t run = found->second.run;
  strays_.erase(found);
  ++freed_;
  Leave(now_ns, run);
}

void Strays::Leave(int64_t now_ns, uint64_t run) {
  for (auto& [worker, stray] : strays_) {
    if (stray.run == run) {
      stray.alone_ns = now_ns;
    }
  }
}

}  // namespace geopipe
