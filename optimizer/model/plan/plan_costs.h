// Turns a job, a cluster and a plan's choices into the explicit costs that the simulator runs on.
#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "optimizer/model/cluster.h"
#include "optimizer/model/cost_model.h"
#include "optimizer/model/cost_source.h"
#include "optimizer/model/execution_config.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/pipeline_costs.h"
#include "optimizer/model/plan/epilogue.h"
#include "optimizer/model/plan/plan_memory.h"
#include "optimizer/model/plan/plan_params.h"

namespace geopipe {

// The job as it is planned on the cluster. States that it keeps for recovery take no device's memory only if all sites'
// devices have their own beside the host's, and its attention is blocked only if it is on all sites' devices.
JobSpec JobOnCluster(JobSpec job, const ClusterSpec& cluster);

// Explicit costs of `plan` (its stages' sites, devices and layers, b, s, ΔN, micro_batches, recompute modes, ZeRO stage
// and comm; peaks are not read): durations of each stage, links at the crossings, memory, epilogue. The source is of
// the same cluster. A boundary inside a site costs the profile's time of a message over no link. A crossing shares its
// site pair's link with the data-parallel replicas, which divide its bandwidth; a plan that communicates blocking waits
// for the acknowledgement too. The epilogue is the time between the end of stage 0's last backward and its next
// forward: exchange of tied-embedding gradients, of norm terms (when grad_clip is given), data-parallel synchronisation
// and AdamW, less the part that hides behind the other stages' own drain and warm-up, which is all of the norm's
// latency unless its terms travel on a slower link than the pipeline. InvalidArgument: a stage names a site the cluster
// does not have, two neighbouring sites have no link, a device figure is missing. REQUIRES: at least one stage;
// ValidateJob and ValidateCluster are OK.
absl::StatusOr<PipelineCosts> CostsOfPlan(const JobSpec& job, const ClusterSpec& cluster, const CostSource& source,
                                          const Plan& plan);

// Adds the cost of ZeRO 2 and 3 (arXiv 1910.02054): every backward scatters its gradients over the replicas, and with 3
// every forward and every backward gathers the weights that it needs, layer by layer, while the layer beside it
// computes. The time beyond the layer's own work is exposed. In a backward both go over the same fabric.
void AddSharding(const ModelSpec& model, const ExecutionConfig& config, const ReplicaGroup& replicas,
                 ModelCosts& costs);

// The parts of a plan's costs that need cluster and profile, and depend neither on a stage's number of layers nor on
// the micro-batches in flight.
struct PlanParts {
  struct Stage {
    ModelCosts costs;  // of an embedding, one layer, a head on the stage's device
    ReplicaGroup replicas;
    int64_t capacity_bytes = 0;  // of its device
    Recompute recompute = Recompute::kNone;

    friend bool operator==(const Stage&, const Stage&) = default;
  };

  ExecutionConfig config;  // as the first pipeline rank recomputes
  PipelineShape shape;
  std::vector<Stage> stages;
  std::vector<BoundaryCost> boundaries;  // stages - 1
  EpilogueParts epilogue;                // update_ns is empty: it depends on the layers

  PlanMemoryModel MemoryModel(const JobSpec& job) const;  // of the parts' own plan
};

// Errors as CostsOfPlan's. The layers of the plan's stages, its ΔN and its peaks are not read.
absl::StatusOr<PlanParts> PartsOfPlan(const JobSpec& job, const ClusterSpec& cluster, const CostSource& source,
                                      const Plan& plan);

// The costs of the plan from its parts. InvalidArgument: one is out of range (ValidateCosts).
absl::StatusOr<PipelineCosts> CostsOfParts(const JobSpec& job, const PlanParts& parts, const Plan& plan);

// Time after a stage's last backward, with the layers of `range`: the reduction of gradients over the replicas as far
// as that backward does not hide it, AdamW, and under ZeRO the gathering of the updated weights. A layer's gradients
// are reduced as soon as the last micro-batch has added to them, while the backward continues with the layers before
// it; so the exposed part is the last bucket, or the excess over the backward's time. `memory` is of the parts' own
// config.
int64_t StageUpdateNs(const PlanParts& parts, const PlanMemoryModel& memory, size_t stage, const LayerRange& range);
// A lower bound of that, no less with more layers: only the last bucket is exposed.
int64_t MinStageUpdateNs(const PlanParts& parts, const PlanMemoryModel& memory, size_t stage, const LayerRange& range);

// The costs of the parts with these layers and at most `in_flight` micro-batches in flight on the stages, in time
// linear in the stages (but for the norm's terms, which go from each to each). `memory` is of the parts' own config.
// REQUIRES: one entry per stage.
PipelineCosts ComposeCosts(const PlanParts& parts, const PlanMemoryModel& memory, std::span<const LayerRange> layers,
                           const std::vector<int64_t>& in_flight, CommMode comm);

// Bytes that cross sites in one iteration: every crossing, both directions, all `data` replicas.
int64_t WanBytesPerIteration(const PipelineCosts& costs, int64_t data);

// One-way latency of the fastest path between two sites over the cluster's links; 0 for a site and itself.
// FailedPrecondition when no path exists.
absl::StatusOr<int64_t> PathLatencyNs(const ClusterSpec& cluster, std::string_view from, std::string_view to);

}  // namespace geopipe
