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

// Writes a file that ParseTopologyFile reads as the same cluster: `attention`, `roofline` and `reserve` that are not
// given are spelled out where a file would give the device's kind its own. A comment shows what to add where a plan
// needs a figure that the cluster lacks. REQUIRES: a valid cluster.
std::string WriteTopology(const ClusterSpec& cluster, const TopologyRemarks& remarks = {});

}  // namespace geopipe
