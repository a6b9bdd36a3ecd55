// Exact data parallelism over sites: each site trains a replica of the model on its share of an iteration's tokens, and
// the gradients are summed over the sites before any weight is updated. Every site's gradients are sums over its tokens
// divided by the tokens of all, so shares need not be equal.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "optimizer/model/cluster.h"
#include "optimizer/model/cost_source.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/pipeline_costs.h"
#include "optimizer/model/plan/plan_params.h"
#include "optimizer/plan/report/site_reduction.h"
#include "optimizer/schedule/schedule.h"

namespace geopipe {

// Gradients are reduced in buckets: of each layer, with the first one the embedding's, and of the head. Their bytes
// over all tensor-parallel ranks, in model order; a tied embedding counts once.
std::vector<int64_t> BucketBytes(const JobSpec& job);

// The timing of one site's gradients and updates in an iteration, from its start.
struct ReplicaTiming {
  struct Bucket {
    int32_t pipeline_rank = 0;
    // Time at which the last micro-batch has added to it: layer by layer, while the stage's last backward continues
    // with the layers before.
    int64_t ready_ns = 0;
    int64_t scatter_ns = 0;  // reduce-scatter over the site's replicas of the stage, before the sites' reduction
    int64_t gather_ns = 0;   // all-gather of gradients after it; 0 under ZeRO, which gathers updated weights
  };
  struct Device {           // each pipeline rank's
    int64_t end_ns = 0;     // of its last action
    int64_t update_ns = 0;  // AdamW, and under ZeRO the gathering of the updated weights
    int64_t input_ns = 0;   // its next forward begins at least this long after the first rank's
  };

  std::vector<Bucket> buckets;  // as BucketBytes
  std::vector<Device> devices;
  bool clips = false;                              // every update waits for the norm of all reduced gradients
  std::vector<std::vector<int64_t>> latencies_ns;  // of norm terms, [from][to] pipeline rank
  int64_t alone_ns = 0;                            // the iteration without any other site
};

// `job` is the site's: its share of the tokens, the plan's degrees; `costs` and `schedule` are those of the plan's
// prediction. Errors as CostsOfPlan's. REQUIRES: all of the plan's ranks are at one site.
absl::StatusOr<ReplicaTiming> TimeReplica(const JobSpec& job, const ClusterSpec& cluster, const CostSource& source,
                                          const Plan& plan, const PipelineCosts& costs, const Schedule& schedule);

struct ReducedIteration {
  int64_t iteration_ns = 0;
  int64_t exposed_ns = 0;         // by how much that exceeds the slowest site's own iteration
  std::vector<int64_t> sites_ns;  // until each site could begin its next iteration; the greatest is the iteration
};

// Times an iteration of sites that begin together. A bucket goes through the network of its stage's replicas, over the
// links when every site has it, and, without ZeRO, through that network again; each takes buckets in the order in which
// they come (hierarchical all-reduce, arXiv 1807.11205). All shards of a bucket share the links: the devices of a site
// send theirs at once. So the links are busy for `reduction.LinkNs` of each bucket and it is summed a latency later.
// With one bucket that nothing hides that is `reduction.AloneNs`; time that the last backward hides is not exposed.
// Sites that begin their next iteration as soon as they can, and not together, are no slower. REQUIRES: one timing per
// site of the reduction; sizes as BucketBytes.
ReducedIteration ReduceOverSites(std::span<const ReplicaTiming> sites, const SiteReduction& reduction,
                                 std::span<const int64_t> bucket_bytes);

}  // namespace geopipe
