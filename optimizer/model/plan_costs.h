// From a job, a cluster and a plan's choices to the explicit costs that the simulator runs on.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string_view>

#include "optimizer/model/cluster.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/pipeline_costs.h"
#include "optimizer/model/plan_params.h"
#include "optimizer/model/profile.h"

namespace geopipe {

// Explicit costs of `plan` (its stages' sites, devices and layers, b, s, ΔN, micro_batches, recompute and comm; peaks
// are not read): durations of each stage, links at the crossings, memory, epilogue. `profile` may be null.
// A boundary inside a site costs what the profile says a message does over no link. A crossing shares its site pair's
// link with the data-parallel replicas, which divide its bandwidth; a plan that communicates blocking waits for the
// acknowledgement too. The epilogue is what lies between the end of stage 0's last backward and its next forward:
// exchange of tied-embedding gradients, of norm terms (when grad_clip is given), data-parallel synchronisation and
// AdamW, less what hides behind the other stages' own drain and warm-up, which is all of the norm's latency unless its
// terms travel on a slower link than the pipeline. InvalidArgument: a stage names a site the cluster does not have, two
// neighbouring sites have no link, a device figure is missing. REQUIRES: at least one stage; ValidateJob and
// ValidateCluster are OK.
absl::StatusOr<PipelineCosts> CostsOfPlan(const JobSpec& job, const ClusterSpec& cluster, const Profile* profile,
                                          const Plan& plan);

// Bytes that cross sites in one iteration: every crossing, both directions, all data-parallel replicas.
int64_t WanBytesPerIteration(const JobSpec& job, const Plan& plan);

// One-way latency of the fastest path between two sites over the cluster's links; 0 for a site and itself.
// FailedPrecondition when no path exists.
absl::StatusOr<int64_t> PathLatencyNs(const ClusterSpec& cluster, std::string_view from, std::string_view to);

}  // namespace geopipe
