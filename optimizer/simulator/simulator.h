// Discrete-event simulation of one iteration of a pipeline schedule. Integer nanoseconds throughout: same input, same
// nanoseconds, on every machine.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <vector>

#include "optimizer/model/pipeline_costs.h"
#include "optimizer/schedule/schedule.h"

namespace geopipe {

struct ActionTiming {
  Action action;
  int64_t start_ns = 0;
  int64_t end_ns = 0;

  friend bool operator==(const ActionTiming&, const ActionTiming&) = default;
};

// One message on a link, from entering it to its arrival.
struct MessageTiming {
  Action send;           // SEND_F or SEND_B of the producing stage
  int64_t ready_ns = 0;  // the producing action ended
  int64_t enter_ns = 0;  // the link began to carry it
  int64_t arrive_ns = 0;

  friend bool operator==(const MessageTiming&, const MessageTiming&) = default;
};

struct SimulationOptions {
  bool record_timeline = false;  // fill `timeline` and `messages`
};

struct SimulationResult {
  int64_t iteration_ns = 0;                         // end of the last action plus the epilogue
  double bubble_ratio = 0;                          // 1 - sum of busy / (devices * iteration); 0 for no time at all
  std::vector<int64_t> busy_ns;                     // per device
  std::vector<int64_t> peak_bytes;                  // per device; empty when the costs have no memory
  bool fits = true;                                 // peak_bytes within capacity on every device
  std::vector<std::vector<ActionTiming>> timeline;  // [device][position], compute actions only
  std::vector<MessageTiming> messages;              // in order of entering a link
};

// Runs `schedule` (compute-only or lowered: both give the same times) under `costs`. REQUIRES:
// ValidateCosts(costs).ok(), schedule.shape == costs.shape. Does not repeat the work of Validate
// (optimizer/schedule/validate.h): for a schedule that it rejects for another reason than a deadlock the times are
// meaningless, but the simulation ends. FailedPrecondition if the schedule deadlocks: the message shows the cycle of
// waiting actions. InvalidArgument if an action is out of range, on the wrong device, or splits the backward where the
// costs cannot. Linear in the number of actions unless two devices feed one direction of one link; the messages of such
// links cost a logarithm more. Any thread.
absl::StatusOr<SimulationResult> Simulate(const Schedule& schedule, const PipelineCosts& costs,
                                          const SimulationOptions& options = {});

}  // namespace geopipe
