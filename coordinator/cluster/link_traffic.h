// Measures links by the messages of a running job.
#pragma once

#include <vector>

#include "coordinator/cluster/measured_links.h"
#include "geopipe/v1/control_service.pb.h"
#include "optimizer/model/pipeline_costs.h"
#include "optimizer/model/plan/plan_params.h"

namespace geopipe {

// Observes one iteration that was reported with all its actions.
//
// Latency: half of the quickest round trips between workers of two sites (PeerClock); messages that queued behind
// payload took longer.
//
// Bandwidth: a message's bytes over the time the link took to send it. A message begins when it was handed over, or, on
// a link that was still sending the one before, when that one ended; so a queue does not make a link look slow.
// Returned only where sending takes long enough to be seen above the error of clocks and wake-ups, by several messages,
// and where one boundary of one replica alone crosses between the two sites.
//
// Returns nothing for reports that do not fit the plan.
std::vector<TrafficObservation> ObserveTraffic(const v1::IterationTimeline& timeline, const Plan& plan,
                                               const PipelineCosts& costs);

}  // namespace geopipe
