// One micro-batch alone: the shortest times from anywhere in a pipeline to anywhere else. Every lower bound rests on
// them.
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/model/pipeline_costs.h"

namespace geopipe {

// Bounds that hold for one stage in every schedule.
struct StagePath {
  int64_t first_forward_ns = 0;  // from the start of the iteration to the start of F, at least
  int64_t round_trip_ns = 0;     // from the start of F to the end of I (or B) of the same micro-batch, at least
  int64_t way_out_ns = 0;        // from the end of I (or B) to the end of the iteration, at least
  // The k-th micro-batch whose F starts does so no earlier than first_forward_ns + (k - 1) * forward_spacing_ns: each
  // of the k went through every stage and link before, one after the other. At least F's own duration.
  int64_t forward_spacing_ns = 0;
  // The k-th last I ends at least way_out_ns + (k - 1) * backward_spacing_ns before the iteration, for the same reason.
  // At least I's own duration.
  int64_t backward_spacing_ns = 0;
};

// Per stage. REQUIRES: ValidateCosts(costs).ok().
std::vector<StagePath> ShortestPaths(const PipelineCosts& costs);

// Time from sending to arrival of one message over `boundary`, in either direction; 0 within one device.
int64_t MessageNs(const PipelineCosts& costs, int32_t boundary);

}  // namespace geopipe
