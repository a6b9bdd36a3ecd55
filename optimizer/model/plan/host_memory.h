// Memory that a plan takes of its hosts, beside that of devices that have their own: offloaded optimizer states, states
// that are kept for recovery or copied for checkpoints, messages, and what passes through it (StageMemory::host_bytes).
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <vector>

#include "optimizer/model/cluster.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/plan/plan_params.h"

namespace geopipe {

// FailedPrecondition when the ranks on some node need more than its host has; names the node and remedies. Hosts whose
// memory is not known, or is the devices' own, hold everything. REQUIRES: the job is JobOnCluster's, with the plan's
// degrees, and `in_flight` is of its schedule (InFlightOfSchedule).
absl::Status CheckHostMemory(const JobSpec& job, const ClusterSpec& cluster, const Plan& plan,
                             const std::vector<int64_t>& in_flight);

}  // namespace geopipe
