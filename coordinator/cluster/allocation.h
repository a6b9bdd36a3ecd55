// Allocates devices to jobs. A device belongs to one job at a time; devices that the job's plan has no use for are
// given back.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "coordinator/cluster/names.h"
#include "geopipe/v1/cluster.pb.h"
#include "optimizer/model/cluster.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/profile.h"
#include "optimizer/model/run_options.h"

namespace geopipe {

// A connected node, as allocation sees it.
struct NodeOffer {
  NodeKey key;
  v1::NodeSpec spec;
  std::vector<int32_t> free;      // devices no job has, ascending
  std::set<std::string> holders;  // names of the jobs that have the others
  int64_t orphan_grace_ns = 0;    // of workers that are started there; 0: not told
};

struct AllocatedNode {
  v1::NodeSpec spec;
  std::vector<int32_t> devices;  // ascending; a plan's device number is the position here
  int64_t orphan_grace_ns = 0;   // NodeOffer
};

struct AllocatedSite {
  std::string name;
  std::vector<AllocatedNode> nodes;  // by name, those alike with equally many devices; a plan's node number is the
                                     // position here
};

// Sites in pipeline order (in order of name when the job leaves the order to the planner).
struct Allocation {
  std::vector<AllocatedSite> sites;

  std::set<NodeKey> nodes() const;
  std::vector<WorkerKey> workers() const;
  std::vector<std::string> site_names() const;
  int64_t devices() const;
};

struct AllocationDecision {
  std::optional<Allocation> allocation;
  std::string reason;  // summary of the devices, or of what the job waits for: "waiting for site west: 0 of 1 devices"
};

// True when the workers of the node can run the backend.
bool CanRun(const NodeOffer& node, BackendKind backend);

// FailedPrecondition when a site that the job is to use, or where it names none the whole federation, has nodes and
// none whose workers can run the job's backend: names site, node and the reason.
absl::Status CheckBackend(const JobSpec& job, const RunOptions& run, std::span<const NodeOffer> offers);

// Everything that DecideAllocation looks at in a job: two that ask for the same are given the same.
std::string AskedFor(const JobSpec& job, const RunOptions& run);

// Gives the job free devices of its sites, as soon as they are enough: of nodes that can run its backend, equally many
// of each node that is alike, and as many as possible. Explicit costs say how many devices each site needs; otherwise
// each site needs one stage (tensor x data devices: of one node, or, where the network between the site's nodes is
// known, tensor of one node), and all together `pipeline` of them.
AllocationDecision DecideAllocation(const JobSpec& job, const RunOptions& run, std::span<const NodeOffer> offers);

// The nodes of each site, or of each group of its nodes that are alike (ClusterSpec), as the planner calls them:
// positions in AllocatedSite::nodes.
using GroupedNodes = std::map<std::string, std::vector<int32_t>>;

struct AllocatedCluster {
  ClusterSpec cluster;  // links are added by the caller
  GroupedNodes nodes;
};

// The profile with measurements by group instead of by site.
Profile ProfileOfGroups(Profile profile, const Allocation& allocation, const GroupedNodes& groups);

// The allocated sites for the planner. FailedPrecondition when the nodes of a site declare different networks.
absl::StatusOr<AllocatedCluster> ClusterOf(const Allocation& allocation);

}  // namespace geopipe
