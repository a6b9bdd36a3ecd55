// Clusters as topology files.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "optimizer/model/cluster.h"

namespace geopipe {

// Remarks that a file carries as comments, a line each.
struct TopologyRemarks {
  std::vector<std::string> head;
  std::map<std::string, std::string> networks;                       // by site
  std::map<std::pair<std::string, std::string>, std::string> links;  // by both sites, in order of their names
};

// A file that ParseTopologyFile reads as the same cluster: `attention`, `roofline` and `reserve` that are not given are
// spelled out where a file would give the device's kind its own. What a plan needs and the cluster does not say stands
// as a comment with what to add. REQUIRES: a valid cluster.
std::string WriteTopology(const ClusterSpec& cluster, const TopologyRemarks& remarks = {});

}  // namespace geopipe
