// Workers that may be on devices of no live run. Most are of finished jobs, whose end nobody has reported, for no
// longer than a heartbeat; but an agent may be silent, or have come back without them (its state folder is lost, its
// container was replaced). Then they end by themselves, and their devices stay taken until they have.
//
// Others are of runs of which the coordinator knows neither that they live nor that they are over: its store may be
// older. They are left alone for kUnknownNs, or until people have them stopped.
//
// A worker lives on while an agent speaks to it, or while it makes progress, which needs every rank of its run. So its
// grace counts from when its agent is known to be gone, and no other rank of the run is under an agent that may not
// have stopped it. A worker whose agent came back without it is most likely dead already, as are all ranks of a run
// that are missed like that: they are assumed not to go on among themselves.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "coordinator/cluster/names.h"

namespace geopipe {

struct Stray {
  static constexpr uint64_t kUnknownAgent = ~uint64_t{0};  // there is one, or was

  std::string job;
  uint64_t run = 0;  // incarnations of its job's run, and its own
  uint64_t incarnation = 0;
  uint64_t agent = 0;    // incarnation of the agent that knows it; 0: none does any more
  uint64_t order = 0;    // number of the order to that agent to stop it
  int64_t grace_ns = 0;  // after which it has ended by itself
  int64_t noted_ns = 0;
  int64_t alone_ns = 0;  // earliest time since which it may be alone
  bool unknown = false;  // its run is not known, and it is left alone
};

// Times are of one monotonic clock.
class Strays {
 public:
  // `limit_ns`: longest time for which a device is held; after that nobody can know better.
  explicit Strays(int64_t limit_ns) : limit_ns_(limit_ns) {}

  // Time for which an unknown one is left alone.
  static constexpr int64_t kUnknownNs = int64_t{3600} * 1'000'000'000;

  void Add(const WorkerKey& worker, Stray stray);
  // Adds one of an unknown run, or notes that its agent still has it.
  void AddUnknown(int64_t now_ns, const WorkerKey& worker, const std::string& job, uint64_t incarnation,
                  uint64_t agent);
  // Unknown ones: of the node, of the job, and those whose time is over.
  std::vector<WorkerKey> UnknownAt(const NodeKey& node) const;
  std::vector<WorkerKey> UnknownOf(const std::string& job) const;
  std::vector<WorkerKey> Overdue(int64_t now_ns) const;
  // Notes that nobody wants it any more, and that no agent can be told so. REQUIRES: it is there.
  void GiveUp(const WorkerKey& worker) { strays_.at(worker).unknown = false; }
  // The worker that may still be on the device; nullptr: none.
  const Stray* Find(const WorkerKey& device) const;

  // Notes that the worker's end was reported.
  void OnEnded(int64_t now_ns, const WorkerKey& worker, uint64_t incarnation);
  // Notes that this agent knows the worker, and that this order tells it to end the worker. The news may be old, from
  // an agent that is gone.
  void OnOrdered(const WorkerKey& worker, uint64_t incarnation, uint64_t agent, uint64_t order);
  // Notes that the agent has taken its orders up to this one: it frees devices before it gives them to others.
  void OnOrdersTaken(int64_t now_ns, const NodeKey& node, uint64_t agent, uint64_t order);
  // Notes that this agent has the node now, and any other is gone.
  void OnAgent(int64_t now_ns, const NodeKey& node, uint64_t agent);
  // Forgets those that have ended by themselves.
  void OnTick(int64_t now_ns);

  // Grows when a device is free again.
  int64_t freed() const { return freed_; }

 private:
  template <class Matches>
  std::vector<WorkerKey> UnknownWhere(Matches matches) const;
  int64_t UntilNs(const Stray& stray) const;
  void Forget(int64_t now_ns, const WorkerKey& worker);
  // Notes that other ranks of the run may have been going on with this one until now.
  void Leave(int64_t now_ns, uint64_t run);

  const int64_t limit_ns_;
  std::map<WorkerKey, Stray> strays_;
  int64_t freed_ = 0;
};

}  // namespace geopipe
