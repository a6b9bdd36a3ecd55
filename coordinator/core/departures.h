// Finds out which jobs should leave devices, and where they could go on: nodes that are gone or go down, sites that are
// drained, and all of them when they are back.
//
// Rules: a job leaves only for devices that it would get. Nodes that are merely silent are waited for as long as its
// grace; where the coordinator hears from nobody, it is itself cut off, and nobody's silence counts.
//
// Callers: the coordinator, at each look at the time and before each decision of a job.
#pragma once

#include <cstdint>
#include <set>

#include "coordinator/cluster/membership.h"
#include "coordinator/core/jobs.h"
#include "coordinator/core/placement.h"

namespace geopipe {

class Departures {
 public:
  Departures(const Membership& membership, const Jobs& jobs, const Placement& placement)
      : membership_(membership), jobs_(jobs), placement_(placement) {}

  // The coordinator begins.
  void Start(Now now) { last_look_ns_ = now.ns; }
  // Adds the time that passed to that of each node that is not heard.
  void NoteUnheard(Now now);
  // Finds out whether the job should leave nodes, or come back to some (Job::exit, Job::stays). Returns nodes that go
  // down while it stays there: its state should be in a checkpoint by then.
  std::set<NodeKey> LookAfter(Now now, Job& job) const;
  // True when the failing run is the first with some nodes and has not trained yet: those nodes are at fault, and the
  // job goes on as it did before.
  static bool DoWithoutNewNodes(Job& job);

 private:
  Exit LeaveGone(Job& job, const std::set<NodeKey>& gone, const std::set<NodeKey>& without) const;
  Exit LeaveFor(Job& job, const std::set<NodeKey>& left, const std::set<NodeKey>& without) const;
  Exit ComeBack(Job& job) const;

  const Membership& membership_;
  const Jobs& jobs_;
  const Placement& placement_;
  int64_t last_look_ns_ = 0;  // NoteUnheard
};

}  // namespace geopipe
