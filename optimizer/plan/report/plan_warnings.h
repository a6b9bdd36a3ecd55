// Warnings about settings with which a plan costs more than it need.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "optimizer/model/cluster.h"
#include "optimizer/model/cost_source.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/plan/report/plan_result.h"

namespace geopipe {

// Bytes that one replica of the model, all of its devices together, sends to the others in one iteration, in rings:
// with ZeRO 2 (arXiv 1910.02054) every backward scatters its gradients, with 3 every forward and every backward also
// gathers the weights; with 1 the gradients are scattered and the weights gathered once, and with 0 gradients are
// reduced once. 0 if there is one replica.
int64_t ReplicaBytes(int64_t parameters, Precision precision, int64_t data, int32_t zero_stage, int64_t micro_batches);

// Warns of ZeRO 2 and 3 if the replicas send at least four times as much as with ZeRO 1: bytes and iteration time
// beside those of ZeRO 1 with the same schedule, and the remedy; else nullopt. REQUIRES: the plan is of job, cluster
// and source.
std::optional<std::string> ShardingWarning(const JobSpec& job, const ClusterSpec& cluster, const CostSource& source,
                                           const PlanResult& result);
// Warns about a job that has no plan yet: the bytes of the largest micro-batches that the job allows, without times.
// nullopt also if it leaves data or zero_stage to the planner.
std::optional<std::string> ShardingWarning(const JobSpec& job);

}  // namespace geopipe
