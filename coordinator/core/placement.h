// Decides which devices a job gets: those that are free at the sites that are in use, those that a job that has trained
// would go on with, and what a job that gets none waits for. Also keeps which sites are drained. Nothing is begun at a
// drained site, nor on a node that goes down.
//
// Rules: a device belongs to one job at a time, and to none while a worker of an earlier run may be on it. A job that
// has trained is given nodes that have its state, and its own ones where it may wait for them.
//
// Callers: the scheduling of jobs, jobs that leave devices or come back to them, and people who drain sites.
#pragma once

#include <absl/status/statusor.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/cluster/allocation.h"
#include "coordinator/cluster/membership.h"
#include "coordinator/cluster/strays.h"
#include "coordinator/core/jobs.h"
#include "coordinator/core/link_monitor.h"
#include "coordinator/core/outbox.h"

namespace geopipe {

class Placement {
 public:
  Placement(Outbox& outbox, const Membership& membership, const Strays& strays, const Jobs& jobs,
            const LinkMonitor& links, const std::vector<std::string>& drained)
      : outbox_(outbox),
        membership_(membership),
        strays_(strays),
        jobs_(jobs),
        links_(links),
        drained_(drained.begin(), drained.end()) {}

  // Offers of all nodes that take work. `own`: devices of this job count as free.
  std::vector<NodeOffer> Offers(const Job* own = nullptr) const;
  // Offers of a moment, and why jobs got nothing of them, by what these ask for: others that ask for the same get
  // nothing either, for the same reason.
  struct Market {
    std::vector<NodeOffer> offers;
    std::map<std::string, std::string> refused = {};
  };
  Market Open() const { return {.offers = Offers()}; }
  // Devices that a PENDING job gets, of nodes that are not promised to others.
  AllocationDecision Decide(const Job& job, const std::set<NodeKey>& promised, Market& market) const;
  // True when a worker of an earlier run of the job may still be on the node, and its agent is about to end it.
  bool EndsSoon(const Job& job, const NodeKey& key) const;
  // Devices that the job would get if it left its own and did without these nodes. `needs_state`: it has to find its
  // state there. REQUIRES: it has a run.
  AllocationDecision WouldGet(const Job& job, const std::set<NodeKey>& without, bool needs_state) const;
  // Decides as WouldGet, for a job that takes its state along.
  AllocationDecision WouldLeaveFor(const Job& job, const std::set<NodeKey>& without) const;
  // The job with its sites fixed to those of its run, in the order that it had them: then the planner leaves out none
  // that has its state.
  JobSpec Pinned(const Job& job, const LinkTable& links) const;

  // --- Sites. ---
  bool IsDrained(const std::string& site) const { return drained_.contains(site); }
  // True when jobs have to leave the node: its site is drained, or it goes down.
  bool IsLeft(const NodeKey& node) const { return IsDrained(node.site) || membership_.IsLeaving(node); }
  std::set<NodeKey> LeftBy(const JobRun& run) const;
  absl::StatusOr<v1::DrainSiteResponse> On(Now now, const DrainSite& event);
  absl::StatusOr<v1::UncordonSiteResponse> On(Now now, const UncordonSite& event);
  absl::Status On(Now now, const DrainNotStored& event);
  absl::StatusOr<v1::ListSitesResponse> On(Now now, const ListSites& event) const;

 private:
  // Returns those of the offers that suit the job, without these nodes. `goes_on`: it has trained.
  std::vector<NodeOffer> Suiting(const Job& job, std::vector<NodeOffer> offers, bool goes_on,
                                 const std::set<NodeKey>& without) const;
  // Workers of earlier runs of the job that may still be on the node.
  std::vector<const Stray*> StraysOf(const Job& job, const NodeKey& key) const;
  AllocationDecision DecideFirst(const Job& job, const std::set<NodeKey>& promised, const Market& market) const;
  // Says why a run on these devices cannot take the job over; nullopt: it can.
  std::optional<std::string> Misfit(const JobSpec& spec, const JobLife::Earlier& earlier,
                                    const Allocation& allocation) const;
  std::optional<std::string> AwaitedBy(const Job& job) const;
  // NotFound: no agent of the site is known.
  absl::Status CheckKnown(const std::string& site) const;

  Outbox& outbox_;
  const Membership& membership_;
  const Strays& strays_;
  const Jobs& jobs_;
  const LinkMonitor& links_;
  std::set<std::string> drained_;
};

}  // namespace geopipe
