// Sites as tables and JSON.
#pragma once

#include <string>

#include "coordinator/cli/render/format.h"
#include "coordinator/cli/render/plan_output.h"
#include "geopipe/v1/control_service.pb.h"

namespace geopipe {

// Table of all sites, a node a row. NETWORK is the node's to the others of its site: "400 Gbps, 5.0 µs per device,
// declared", or as `links` has it measured, or "-". `wide` adds version and heartbeat.
Table SiteTableOf(const v1::ListSitesResponse& sites, const v1::ListLinksResponse& links, bool wide);

// A line for each node in trouble, worker of an unknown run and agent that was refused; empty without any.
std::string SiteTroubles(const v1::ListSitesResponse& sites);

// Everything, in base units: one entry per node.
Json SitesToJson(const v1::ListSitesResponse& sites, const v1::ListLinksResponse& links);

}  // namespace geopipe
