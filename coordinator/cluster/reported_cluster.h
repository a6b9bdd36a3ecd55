// The cluster as the coordinator reports it (ListSites, ListLinks), for those who plan beside it, made by the functions
// that the coordinator itself plans with.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "coordinator/cluster/links.h"
#include "coordinator/cluster/names.h"
#include "geopipe/v1/control_service.pb.h"
#include "optimizer/model/cluster.h"

namespace geopipe {

struct LeftOutNode {
  NodeKey node;
  std::string why;  // "lost", "its site is drained"

  friend bool operator==(const LeftOutNode&, const LeftOutNode&) = default;
};

// Origin of a link's figures, in the direction that was measured longest ago.
struct LinkSource {
  std::string source;  // "declared", "probed", "traffic"
  int64_t age_ns = 0;  // of the measurement
};

struct ReportedCluster {
  ClusterSpec cluster;
  std::vector<LeftOutNode> left_out;
  std::map<SitePair, LinkSource> links;  // of the cluster's; of a site twice: its network, where it was measured
};

// Describes all devices of all nodes that are connected and not drained, whichever jobs have them. FailedPrecondition:
// there is no such node, or the nodes of a site declare different networks. InvalidArgument: what is reported is no
// valid cluster.
absl::StatusOr<ReportedCluster> ClusterAsReported(const v1::ListSitesResponse& sites,
                                                  const v1::ListLinksResponse& links);

// "mars/a, mars/b (its site is drained) and oslo/n3 (lost)"; empty without any.
std::string LeftOutText(const std::vector<LeftOutNode>& left_out);

}  // namespace geopipe
