// Actions per second of the simulator: private links (no event queue) and one shared link (event queue), over growing
// numbers of micro-batches. Prints one line per case; run it by hand on a quiet machine.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "optimizer/schedule/generators.h"
#include "optimizer/simulator/simulator.h"

namespace geopipe {
namespace {

PipelineCosts Costs(int32_t devices, int32_t micro_batches, bool shared) {
  PipelineCosts costs;
  costs.shape = PipelineShape::Linear(devices, micro_batches);
  costs.forward_ns.assign(static_cast<size_t>(devices), 30'000'000);
  costs.input_grad_ns.assign(static_cast<size_t>(devices), 60'000'000);
  costs.boundaries.resize(static_cast<size_t>(devices) - 1);
  for (const int32_t boundary : {devices / 3, 2 * devices / 3}) {
    BoundaryCost& cost = costs.boundaries[boundary];
    cost.crosses = true;
    cost.link = shared ? std::string(1, 'w') : std::string();
    cost.latency_ns = 20'000'000;
    cost.serialization_ns = 5'000'000;
  }
  return costs;
}

void Measure(int32_t devices, int32_t micro_batches, bool shared) {
  const PipelineCosts costs = Costs(devices, micro_batches, shared);
  std::vector<int32_t> delta_n(costs.boundaries.size(), 0);
  for (size_t boundary = 0; boundary < delta_n.size(); ++boundary) {
    delta_n[boundary] = costs.boundaries[boundary].crosses ? 1 : 0;
  }
  const Schedule schedule = MakeGeoPipe(costs.shape, delta_n).value();
  const int64_t actions = 2 * int64_t{devices} * micro_batches;
  const int64_t repetitions = std::max<int64_t>(3, 4'000'000 / actions);
  double best_s = 1e9;
  for (int64_t i = 0; i < repetitions; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const SimulationResult result = Simulate(schedule, costs).value();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    best_s = std::min(best_s, elapsed.count());
    if (result.iteration_ns <= 0) {
      fmt::print(stderr, "no iteration\n");
    }
  }
  fmt::print("{:>7} links, {:>3} devices, {:>8} micro-batches: {:>10} actions in {:>10.3f} ms, {:>7.1f} M actions/s\n",
             shared ? "shared" : "private", devices, micro_batches, actions, best_s * 1e3,
             static_cast<double>(actions) / best_s * 1e-6);
}

}  // namespace
}  // namespace geopipe

int main() {
  for (const bool shared : {false, true}) {
    for (const int32_t micro_batches : {64, 1'000, 10'000, 100'000, 625'000}) {
      geopipe::Measure(8, micro_batches, shared);
    }
  }
  return 0;
}
