// The federation as a cluster to plan for: what the coordinator knows of its sites, nodes, devices and links.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <string_view>

#include "coordinator/cli/control_client.h"
#include "coordinator/cluster/reported_cluster.h"
#include "coordinator/spec/topology_file.h"
#include "optimizer/model/cluster.h"

namespace geopipe {

// Asks for all sites, or for the one of this name. Errors are those of the client and of ClusterAsReported, with their
// exit codes.
absl::StatusOr<ReportedCluster> AskForCluster(ControlClient& client, const std::string& site = "");

// Writes the cluster as a topology file, with a comment for every figure that is not known.
std::string TopologyText(const ReportedCluster& reported, std::string_view server);

// Returns the cluster for a plan; standard error names the nodes that are left out. InvalidArgument when a device lacks
// figures that the plan needs.
absl::StatusOr<ClusterSpec> ClusterOfSites(ControlClient& client, DeviceFigures figures);

}  // namespace geopipe
