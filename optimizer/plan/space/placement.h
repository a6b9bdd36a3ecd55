// Places stages on devices.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "optimizer/model/cluster.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/plan/plan_params.h"

namespace geopipe {

// True when every two neighbours of `sites` have a link, and their groups are adjacent (node_groups.h).
bool Linked(const ClusterSpec& cluster, const std::vector<std::string>& sites);

// Limits up to which all orders are tried: kMaxPermutedSites sites, and kMaxTriedOrders orders of their groups.
inline constexpr size_t kMaxPermutedSites = 4;
inline constexpr int64_t kMaxTriedOrders = 512;

// True when the job's sites have few enough orders to try each.
bool TriesAllOrders(const JobSpec& job, const ClusterSpec& cluster);

// Number of stages that the site holds, at the job's degrees (auto is 1): over a network that is known a stage's
// replicas may be on several nodes. 0: no stage with all its replicas. InvalidArgument names the degree that is too
// large.
absl::StatusOr<int64_t> StageSlots(const JobSpec& job, const SiteSpec& site);

// Appends `count` stages, with the layers that follow the plan's, on the nodes of `site` in order: the tensor ranks of
// each replica on consecutive devices of one node, the replicas of a stage on one node as well, unless that leaves too
// few stages; then they follow each other over the nodes. Notes the devices left over. REQUIRES: the site has them.
void PlaceOnSite(const SiteSpec& site, int64_t count, const std::vector<LayerRange>& layers, Plan& plan);

// Shares `stages` among sites that hold `slots`: one each, the others in proportion to the rest of each site, rounded
// by largest remainder, earlier sites first among equals. REQUIRES: slots.size() <= stages <= their sum.
std::vector<int64_t> ShareStages(int64_t stages, const std::vector<int64_t>& slots);

// Makes a plan in which only grid, pipeline ranks, stages, devices and idle are set so far, and no peak_bytes.
//
// Stages are on `sites` in that order, on a site's nodes in order (PlaceOnSite); devices left over are idle. On a site
// whose network is not known the replicas of a stage share a node. Every site gets at least one stage. When the
// pipeline is shorter than the sites could hold, `ranks` says how many each gets; if empty, they are shared in
// proportion to the sites' room, rounded by largest remainder, earlier sites first among equals. `pipeline` auto is as
// many stages as the sites hold, at most one per layer. Layers are split by SplitLayers. InvalidArgument names the key:
// an unknown site, two neighbouring sites without a link, tensor ranks that exceed a node, replicas that exceed a site
// (without a network, a node), more stages than devices, fewer stages than sites. REQUIRES: `ranks` is empty, or has a
// number for each of `sites` that it has room for, at least 1, and the job's pipeline is their sum.
absl::StatusOr<Plan> PlaceStages(const JobSpec& job, const ClusterSpec& cluster, const std::vector<std::string>& sites,
                                 const std::vector<int64_t>& ranks = {});

// The orders of sites, or groups of their nodes, that the planner tries. placement.sites when given: in this order,
// each with every ordered selection of its groups; if that makes more than kMaxTriedOrders, with all of them in the
// cluster's order. Otherwise (auto): if they are few enough, every ordered selection that is Linked, all sites first;
// else the cluster's order if it is Linked, and each site alone (see ShortestWalks for better ones). Never empty for a
// valid cluster.
std::vector<std::vector<std::string>> CandidateSiteOrders(const JobSpec& job, const ClusterSpec& cluster);

// Walks over `count` of the sites, or groups, that hold a stage of the job's degrees, from each to the nearest by
// latency that was not visited; the shortest first. A walk that cannot get that far is left out.
std::vector<std::vector<std::string>> ShortestWalks(const JobSpec& job, const ClusterSpec& cluster, int64_t count);

// Classes of orders that cost the same, site by site and link by link, whatever the names: valid if costs come from the
// figures of sites alone.
class OrderClasses {
 public:
  explicit OrderClasses(const ClusterSpec& cluster);

  // True for the first of all orders that cost the same. True for orders of which two sites have no link: their
  // messages take ways that the order does not tell.
  bool IsNew(const std::vector<std::string>& order);
  // The first order that was asked about and costs the same: this one if there was none, or if two sites have no link.
  std::vector<std::string> FirstLike(const std::vector<std::string>& order);

 private:
  // nullopt if two sites have no link.
  std::optional<std::vector<int32_t>> KeyOf(const std::vector<std::string>& order) const;

  std::map<std::string, int32_t> sites_;                          // kind of each
  std::map<std::pair<std::string, std::string>, int32_t> links_;  // kind of each, both ways round
  std::map<std::vector<int32_t>, std::vector<std::string>> known_;
};

}  // namespace geopipe
