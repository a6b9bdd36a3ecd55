// The contents of the memory of a plan's devices, by category, at the moment when it is fullest. From the memory
// model's own arithmetic (plan_memory.h) and the plan's schedule: the categories add up to the peak that the plan was
// checked with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "optimizer/model/cluster.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/plan/report/plan_result.h"

namespace geopipe {

// The memory of one device of a pipeline rank, over all stages that it runs.
struct MemoryBreakdown {
  std::string site;
  int64_t weight_bytes = 0;
  int64_t gradient_bytes = 0;
  int64_t optimizer_bytes = 0;
  int64_t host_bytes = 0;       // states and messages that the host has for it; not the device's
  int64_t recovery_bytes = 0;   // states kept for recovery (StageMemory)
  int64_t workspace_bytes = 0;  // standing tables, and the workspace of one backward
  int64_t message_bytes = 0;    // slots of posted receives, sends that are not acknowledged
  // Micro-batches between F and the end of B or I: their number, over all stages, and the bytes that they keep.
  // Micro-batches between I and W, if the backward is split: the bytes that W needs. Both without logits.
  int64_t in_flight = 0;
  int64_t activation_bytes = 0;
  int64_t weight_grad_bytes = 0;
  int64_t logits_bytes = 0;

  int64_t more_bytes = 0;      // for one more micro-batch in flight on each of its stages
  int64_t capacity_bytes = 0;  // that a plan may use
  int64_t reserve_bytes = 0;   // of the device's memory, that no plan may use

  int64_t peak_bytes() const;
  int64_t free_bytes() const { return capacity_bytes - peak_bytes(); }

  friend bool operator==(const MemoryBreakdown&, const MemoryBreakdown&) = default;
};

// One per pipeline rank. Empty if the plan's costs were given without memory. REQUIRES: the plan was made for the job
// on the cluster.
std::vector<MemoryBreakdown> BreakDownMemory(const JobSpec& job, const ClusterSpec& cluster, const PlanResult& result);

// The rank with the least to spare; the first of equals. REQUIRES: not empty.
size_t TightestRank(const std::vector<MemoryBreakdown>& ranks);

}  // namespace geopipe
