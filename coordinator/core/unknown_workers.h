// Workers that agents tell of and the coordinator cannot place. A run that it does not know need not be over: the store
// may be lost, or older than the run.
//
// Rules: a worker that is known to be of no live run is stopped at once. One of a run that may still be wanted is left
// alone, listed with its node, and its device given to no job; it is stopped after Strays::kUnknownNs, or when somebody
// says so.
//
// Callers: the coordinator, with hellos of agents and with time; people who stop strays.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>

#include "coordinator/cluster/strays.h"
#include "coordinator/core/agents.h"
#include "coordinator/core/jobs.h"
#include "coordinator/core/outbox.h"

namespace geopipe {

class UnknownWorkers {
 public:
  UnknownWorkers(const CoordinatorOptions& options, Outbox& outbox, const Membership& membership, const Jobs& jobs,
                 Strays& strays, Agents& agents)
      : options_(options), outbox_(outbox), membership_(membership), jobs_(jobs), strays_(strays), agents_(agents) {}

  // Stops the worker of the node, or leaves it alone: true. REQUIRES: it belongs to no live run.
  bool OnListed(Now now, const NodeKey& node, const v1::WorkerId& worker);
  void OnTick(Now now);
  absl::StatusOr<v1::StopStrayResponse> On(Now now, const StopStray& event);
  // Leaves the workers of the job's run alone, which is given up because the store is older than it.
  void LeaveAlone(Now now, const Job& job);
  // Stops those of the job; returns how many.
  int64_t StopOf(const std::string& job);

 private:
  // True when its run is over, or another worker has its place in it.
  bool IsOver(const v1::WorkerId& worker) const;
  void Stop(const WorkerKey& key, const std::string& job, uint64_t incarnation, const std::string& reason,
            bool keeps_state = false);
  // Stops one that was left alone, or waits for its end where its agent does not know it any more.
  void GiveUp(const WorkerKey& key, const std::string& reason, bool keeps_state = false);

  const CoordinatorOptions& options_;
  Outbox& outbox_;
  const Membership& membership_;
  const Jobs& jobs_;
  Strays& strays_;
  Agents& agents_;
};

}  // namespace geopipe
