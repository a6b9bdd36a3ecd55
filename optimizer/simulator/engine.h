// The core of the simulator: computes when every action starts and ends.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "optimizer/model/pipeline_costs.h"
#include "optimizer/schedule/schedule.h"
#include "optimizer/simulator/simulator.h"

namespace geopipe {

// Built once for some costs, runs any number of schedules: after the first runs it allocates only for its records. Not
// thread-safe.
class Engine {
 public:
  enum class End : uint8_t {
    kFinished,
    kStuck,      // the devices wait for each other, or for an output that no action makes
    kBadAction,  // an action out of range, on another device than its stage, or a split backward that has no costs
  };
  struct DeviceOutcome {
    int64_t position = 0;  // actions done: all, unless stuck or bad
    int64_t busy_ns = 0;
    int64_t peak_bytes = 0;  // beside the static part; 0 when the costs have no memory
    int64_t last_end_ns = 0;
  };

  virtual ~Engine() = default;

  // With `record`, fills its timeline and messages. REQUIRES: schedule.shape is that of the costs, with as many lists
  // as devices.
  virtual End Run(const Schedule& schedule, SimulationResult* record) = 0;
  // Outcomes of the last run, per device; valid until the next.
  virtual std::span<const DeviceOutcome> outcomes() const = 0;
};

// REQUIRES: ValidateCosts(costs).ok().
std::unique_ptr<Engine> MakeEngine(const PipelineCosts& costs);

}  // namespace geopipe
