// Labels of a timeline's picture: its title, the sites, the crossings.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/model/pipeline_costs.h"

namespace geopipe {

struct TimelineLabels {
  std::string title;                // "geopipe, ΔN 2,1, nonblocking"
  std::string device = "device";    // name of a lane: "device 3", "pipeline rank 3"
  std::vector<std::string> sites;   // of each device; neighbours with equal names are one site; empty names: not shown
  int64_t lower_bound_ns = 0;       // 0: unknown
  std::vector<std::string> places;  // of each device within its site ("node 1"); may be empty
  int32_t pipelines = 1;            // data ranks: they share a crossing's link
};

// Labels for costs that come without names: the devices between two crossings are "site 0", "site 1" and so on;
// nameless when nothing crosses.
TimelineLabels LabelsOfCosts(const PipelineCosts& costs, std::string title, int64_t lower_bound_ns);

// "pipeline rank 3 (east, node 0)", for each device.
std::vector<std::string> DeviceNames(const TimelineLabels& labels, int32_t devices);

// True when `device` and the one before it are at different sites. REQUIRES: labels.sites has one entry per device.
bool BeginsSite(const TimelineLabels& labels, int32_t device);

// Describes the crossing between `device` - 1 and `device` as "20 ms, 160 Gbps", with the link's own bandwidth; empty
// when no boundary between them crosses. If several cross, the first counts.
std::string CrossingText(const PipelineCosts& costs, const TimelineLabels& labels, int32_t device);

}  // namespace geopipe
