// A simulator for many schedules of the same costs, as a search tries them.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "optimizer/model/pipeline_costs.h"
#include "optimizer/schedule/schedule.h"
#include "optimizer/simulator/simulator.h"

namespace geopipe {

class Engine;

// Prepares one pipeline's costs once, and then runs schedule after schedule in the same memory: after the first runs,
// Run allocates nothing. Any thread, one at a time.
class PreparedSimulator {
 public:
  // The figures of a schedule that a search needs. The spans belong to the simulator and last until its next run.
  struct Outcome {
    int64_t iteration_ns = 0;             // end of the last action plus the epilogue
    double bubble_ratio = 0;              // 1 - sum of busy / (devices * iteration); 0 for no time at all
    bool fits = true;                     // peak_bytes within capacity on every device
    std::span<const int64_t> busy_ns;     // per device
    std::span<const int64_t> peak_bytes;  // per device; empty when the costs have no memory
  };

  // REQUIRES: ValidateCosts(costs).ok().
  explicit PreparedSimulator(const PipelineCosts& costs);
  PreparedSimulator(PreparedSimulator&&) noexcept;
  PreparedSimulator& operator=(PreparedSimulator&&) noexcept;
  ~PreparedSimulator();

  // Runs the schedule. Requirements and errors are those of Simulate.
  absl::StatusOr<Outcome> Run(const Schedule& schedule);
  // The full result of Simulate.
  absl::StatusOr<SimulationResult> Simulate(const Schedule& schedule, const SimulationOptions& options = {});

 private:
  absl::StatusOr<Outcome> RunAndRecord(const Schedule& schedule, SimulationResult* record);

  PipelineCosts costs_;
  std::unique_ptr<Engine> engine_;
  std::vector<int64_t> busy_ns_;
  std::vector<int64_t> peak_bytes_;
};

}  // namespace geopipe
