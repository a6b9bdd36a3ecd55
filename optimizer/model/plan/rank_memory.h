// Most bytes that each rank of a plan accounts, category by category, as its allocator does
// (runtime/tensor/allocator.h). Categories are not all at their most at once: the peak of all together is at most their
// sum.
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/model/job_spec.h"
#include "optimizer/model/plan/plan_params.h"
#include "optimizer/schedule/schedule.h"

namespace geopipe {

// Bytes of one device, and of the host for it.
struct RankMemory {
  int64_t weights = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;
  int64_t activations = 0;
  int64_t workspace = 0;
  int64_t transport = 0;
  int64_t recovery = 0;
  int64_t peak = 0;  // of all together
  int64_t host = 0;  // in none of the others: StageMemory::host_bytes and what StageNeeds adds to it

  friend bool operator==(const RankMemory&, const RankMemory&) = default;
};

// The memory by pipeline rank; all data and tensor ranks of one are alike. REQUIRES: the schedule is of the plan's
// shape.
std::vector<RankMemory> MemoryOfRanks(const JobSpec& job, const Plan& plan, const Schedule& schedule);

}  // namespace geopipe
