// Orders the records of the workers on one iteration.
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/model/pipeline_costs.h"
#include "optimizer/schedule/schedule.h"
#include "optimizer/simulator/simulator.h"

namespace geopipe {

// The reasons why a compute action did not begin when the one before it on its device was over.
struct ActionDelay {
  Action action;
  int64_t sends_ns = 0;  // the device was sending
  int64_t late_ns = 0;   // that was over, and the input there; 0 where its arrival is not known

  friend bool operator==(const ActionDelay&, const ActionDelay&) = default;
};

// One iteration of a real pipeline, all times on one clock, from the start of device 0's first action.
struct MeasuredIteration {
  int64_t iteration = 0;
  int64_t duration_ns = 0;                          // to device 0's next iteration's first action
  std::vector<std::vector<ActionTiming>> timeline;  // [device][position], compute actions
  std::vector<MessageTiming> messages;              // ready = enter: handed over by the sender; in that order
  std::vector<ActionDelay> delays = {};             // of all compute actions but each device's first
};

// Sorts the actions that the workers recorded: a SEND lasts from handing its message over until its device continues, a
// RECV begins when its message has arrived. `actions` are per device; messages with only one end recorded are left out.
MeasuredIteration MakeMeasuredIteration(int64_t iteration, int64_t duration_ns,
                                        const std::vector<std::vector<ActionTiming>>& actions,
                                        const PipelineShape& shape);

// Number of iterations, of a run that has finished `finished` (at least one), that are warm-up and no measure of its
// speed: the first three or the first tenth, whichever is more, but never all.
int64_t WarmUpIterations(int64_t finished);

}  // namespace geopipe
