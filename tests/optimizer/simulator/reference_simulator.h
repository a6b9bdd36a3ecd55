// A second simulator, slow and plain, that follows the normative semantics word by word: instant after instant, and at
// one instant first all ends, then link entries in order of producing device, then arrivals, then starts in order of
// device, again and again until nothing more happens there. It shares no code with the product's simulator.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "optimizer/model/pipeline_costs.h"
#include "optimizer/schedule/schedule.h"

namespace geopipe {

struct ReferenceResult {
  bool deadlock = false;
  int64_t end_ns = 0;  // of the last action
  // [device][n]: start and end of the device's n-th compute action.
  std::vector<std::vector<std::pair<int64_t, int64_t>>> times;
  int64_t message_count = 0;  // that went over a link
  int64_t arrival_sum_ns = 0;
};

ReferenceResult SimulateByTheBook(const Schedule& schedule, const PipelineCosts& costs);

}  // namespace geopipe
