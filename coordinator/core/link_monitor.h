// Knows the links between sites and the networks inside them: probes idle ones, takes the traffic of busy ones and what
// agents declare, and knows which of them waiting jobs want to know first.
//
// Rules: one link is probed at a time, and none whose sites a job has workers on. A job waits for the links that its
// plan depends on, but not for long. A measurement is stored with the next flush.
//
// Callers: the agents' streams (hellos, reports of probes, ends of streams), the scheduling of jobs, the ledger, and
// the coordinator at the end of a step.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/cluster/allocation.h"
#include "coordinator/cluster/link_probing.h"
#include "coordinator/cluster/links.h"
#include "coordinator/cluster/measured_links.h"
#include "coordinator/cluster/membership.h"
#include "coordinator/core/jobs.h"
#include "coordinator/core/outbox.h"

namespace geopipe {

class LinkMonitor {
 public:
  LinkMonitor(const LinkProbingOptions& options, Outbox& outbox, const Membership& membership, const Jobs& jobs)
      : options_(options), outbox_(outbox), membership_(membership), jobs_(jobs), probing_(options) {}

  // Restores what an earlier life of the coordinator has measured.
  void Restore(Now now, const std::vector<StoredLink>& links);

  // The links as they are declared, and as they were measured.
  LinkTable Declared() const { return LinkTable::Of(membership_.nodes()); }
  const MeasuredLinks& measured() const { return measured_; }
  absl::StatusOr<v1::ListLinksResponse> On(Now now, const ListLinks& event) const;
  // Sets the network of nodes that declare none to what was measured inside their sites. So allocation and planning of
  // a run use the figure of the moment it got its devices.
  void AddMeasuredNetworks(const Job& job, std::vector<NodeOffer>& offers) const;

  // --- Agents. ---
  enum class News : uint8_t { kNothing, kFirstLinks, kOtherLinks };
  // News of links in an agent's declaration, before it is admitted. OnDeclared takes them, when it is.
  News NewsIn(const v1::AgentHello& hello) const;
  void OnDeclared(const NodeKey& node, News news);
  // Ends the node's probe: an agent gives its probes up when its stream breaks.
  void OnNodeGone(Now now, const NodeKey& node) { CarryOut(now, probing_.OnNodeGone(now.ns, node)); }
  void OnReport(Now now, const NodeKey& node, const v1::ProbeReport& report) {
    CarryOut(now, probing_.OnReport(now.ns, node, report));
  }
  void OnTick(Now now);
  // Ends and begins probes if something has changed (`changed`), or it is time.
  void Probe(Now now, bool changed);

  // --- Jobs. ---
  void OnTraffic(Now now, const std::vector<TrafficObservation>& traffic);
  // Waiting jobs are about to say anew what they want (AwaitedBy).
  void ForgetWanted() { wanted_.clear(); }
  // Says which links the job waits for; empty: those that it needs were probed, or it has waited long enough.
  std::string AwaitedBy(Now now, Job& job, const Allocation& allocation);

  // --- The store. ---
  // Returns what was measured since the last call.
  std::vector<StoredLink> TakeUnstored(Now now);
  void NoteUnstored(const std::vector<StoredLink>& links);

 private:
  LinkProbing::View ViewOf(const LinkTable& links) const;
  void CarryOut(Now now, ProbeStep step);
  void NoteMeasured(const std::string& from, const std::string& to);
  // True when probes measure what this job's messages inside the site take.
  bool TakesMeasuredNetwork(const Job& job, const std::string& site) const;

  const LinkProbingOptions& options_;
  Outbox& outbox_;
  const Membership& membership_;
  const Jobs& jobs_;
  LinkProbing probing_;
  bool is_time_ = false;  // to probe
  MeasuredLinks measured_;
  std::vector<SitePair> wanted_;
  std::vector<std::string> disputes_;                         // already logged
  std::set<std::pair<std::string, std::string>> not_stored_;  // directions
};

}  // namespace geopipe
