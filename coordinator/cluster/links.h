// Links between sites, as the agents of either end declare them. Where declarations differ, the larger latency and the
// smaller bandwidth count: a plan must not count on more than both ends promise. A measurement takes precedence over a
// declaration.
//
// The network inside a site of several nodes is a link from the site to itself unless one of them declares it
// (NodeSpec.network, which takes precedence over a measurement): only measurements tell of it.
#pragma once

#include <absl/status/status.h>

#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/cluster/measured_links.h"
#include "coordinator/cluster/membership.h"
#include "geopipe/v1/cluster.pb.h"
#include "geopipe/v1/control_service.pb.h"
#include "geopipe/v1/worker_service.pb.h"
#include "optimizer/model/cluster.h"
#include "optimizer/model/job_spec.h"

namespace geopipe {

// Two sites, in order of their names; twice the same one: the network inside it.
using SitePair = std::pair<std::string, std::string>;
SitePair PairOf(const std::string& a, const std::string& b);
inline SitePair InsideOf(const std::string& site) { return {site, site}; }
inline bool IsInside(const SitePair& pair) { return pair.first == pair.second; }
// "between east and west", "inside east".
std::string PlaceOf(const SitePair& pair);

struct MergedLink {
  int64_t latency_ns = 0;
  double bandwidth_bytes_per_s = 0;       // 0: nothing is declared, of a site's own network
  bool disputed = false;                  // the declarations differ
  std::map<std::string, bool> shaped_by;  // per end that declares the link: whether its workers shape what they send

  bool ShapedBy(const std::string& site) const {
    const auto found = shaped_by.find(site);
    return found != shaped_by.end() && found->second;
  }
};

class LinkTable {
 public:
  // The links of all registered nodes, connected or not: a link does not end with a stream. Declarations of nodes that
  // are gone count only where no other has declared anything.
  static LinkTable Of(const std::map<NodeKey, NodeRecord>& nodes);
  // The links that a coordinator has reported.
  static LinkTable Of(const v1::ListLinksResponse& reported);

  // nullptr when neither end declares one; of a site and itself, when it has fewer than two nodes, or one of them
  // declares the network. Symmetric.
  const MergedLink* Find(const std::string& a, const std::string& b) const;

  // Links that a worker at `site` shapes itself: those declared with shape, to each of `sites` (its own is passed over;
  // every other counts, because gradient-norm terms go from every rank to every other). The agent, which knows its
  // host's files, fills in pacer_path.
  std::vector<v1::LinkShape> ShapesFor(const std::string& site, std::span<const std::string> sites) const;

  // True when both ends shape what they send: the link is rehearsed.
  bool Shaped(const std::string& a, const std::string& b) const;

  // Every link, in order.
  std::vector<SitePair> Pairs() const;

  // Links among `sites` for the planner: as measured, and what was not, as declared. A plan has one latency and one
  // bandwidth for both directions, so those of the worse one.
  std::vector<LinkSpec> SpecsFor(std::span<const std::string> sites, const MeasuredLinks& measured) const;

  // The network inside the site for the planner, as measured; nullopt where it was not, or none is to be measured. The
  // devices of a node share it: what one process of a node got is no promise that several get as much at once.
  std::optional<NetworkSpec> NetworkInside(const std::string& site, const MeasuredLinks& measured) const;

  // FailedPrecondition names the first two sites, in pipeline order, that exchange messages in this job but have no
  // declared link: neighbours always; every pair when gradients are clipped, for the norm's terms; the two ends when
  // embeddings are tied.
  absl::Status CheckPipeline(const JobSpec& job, std::span<const std::string> sites) const;

  // Both directions of every link, whichever end declares it, and the networks inside sites, one status each.
  std::vector<v1::LinkStatus> Statuses(int64_t now_ns, const MeasuredLinks& measured) const;

  // One sentence for each pair of sites whose declarations differ.
  std::vector<std::string> Disputes() const;

 private:
  void Merge(const std::map<NodeKey, NodeRecord>& nodes, bool gone);
  void AddInside(const std::map<NodeKey, NodeRecord>& nodes);

  std::map<SitePair, MergedLink> links_;
};

}  // namespace geopipe
