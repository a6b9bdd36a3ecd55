// Validation of a lowered or compute-only schedule.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <span>
#include <string>

#include "optimizer/schedule/schedule.h"

namespace geopipe {

struct ActivationLimits {
  // Per device: greatest number of micro-batches whose activations may be alive at once, over the device's stages
  // (from F to B, or to I). Empty: no limit.
  std::span<const int64_t> in_flight_per_device;
};

// Place where a schedule is at fault: a device and a position in its list (one past the end: what is missing there);
// -1: no place of its own.
struct ScheduleFault {
  int32_t device = -1;
  int64_t position = -1;
};

// Work of a complete schedule, of each stage and micro-batch.
enum class ScheduleWork : uint8_t {
  kTraining,  // F and B, or F, I and W
  kForwards,  // F alone (forward_only.h)
};

// OK if the schedule is complete (each stage runs F and B, or F, I and W, once per micro-batch on its own device),
// ordered (F before B; F before I before W; backwards and weight gradients of a stage in micro-batch order, because
// gradients accumulate in that order), deadlock-free when every device runs its list in order, and within the limits.
// A schedule with any communication action must be the lowering of its compute actions (lowering.h): each RECV right
// before the action that needs it, each SEND right after the action that made it, no other.
// InvalidArgument otherwise: one sentence naming device, position and action, then the grid with the fault marked; for
// a deadlock the cycle of actions that wait for each other; `fault` (may be null) is where. Linear in the number of
// actions; never hangs.
absl::Status Validate(const Schedule& schedule, const ActivationLimits& limits = {}, ScheduleFault* fault = nullptr,
                      ScheduleWork work = ScheduleWork::kTraining);

// One row per device, one column per position; `>cell<` marks the fault (device, position), -1 for none. Positions
// start at 0; one past the end of a list marks what is missing there. `stuck` (empty, or a position per device) marks
// more actions. At most 64 rows and 256 columns are shown, those around the fault.
std::string RenderGrid(const Schedule& schedule, int32_t fault_device = -1, int64_t fault_position = -1,
                       std::span<const int64_t> stuck = {});

}  // namespace geopipe
