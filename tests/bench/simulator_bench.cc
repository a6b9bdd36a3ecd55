// Actions per second of the simulator, on one processor: private links (no event heap) and one shared link (event
// heap), from 10^3 to 10^7 actions; once prepared and run again and again, as a search does it, and from scratch.
// Counts the processor time of the thread. Prints one line per case.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <functional>

#include "optimizer/schedule/schedule_table.h"
#include "optimizer/simulator/prepared_simulator.h"

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

double ThreadSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Millions of actions per second in the best of several runs.
double Measure(int64_t actions, const std::function<int64_t()>& iteration_ns) {
  double best_s = 1e9;
  for (int64_t i = std::max<int64_t>(5, 8'000'000 / actions); i > 0; --i) {
    const double begin_s = ThreadSeconds();
    const int64_t result_ns = iteration_ns();
    best_s = std::min(best_s, ThreadSeconds() - begin_s);
    if (result_ns <= 0) {
      fmt::print(stderr, "no iteration\n");
    }
  }
  return static_cast<double>(actions) / best_s * 1e-6;
}

void MeasureCase(int32_t devices, int32_t micro_batches, bool shared) {
  const PipelineCosts costs = Costs(devices, micro_batches, shared);
  std::vector<int32_t> delta_n(costs.boundaries.size(), 0);
  for (size_t boundary = 0; boundary < delta_n.size(); ++boundary) {
    delta_n[boundary] = costs.boundaries[boundary].crosses ? 1 : 0;
  }
  const Schedule schedule = MakeSchedule(ScheduleKind::kGeoPipe, costs.shape, delta_n).value();
  const int64_t actions = 2 * int64_t{devices} * micro_batches;
  PreparedSimulator simulator(costs);
  const double prepared = Measure(actions, [&] { return simulator.Run(schedule).value().iteration_ns; });
  const double from_scratch = Measure(actions, [&] { return Simulate(schedule, costs).value().iteration_ns; });
  fmt::print(
      "{:>7} links, {:>2} devices, {:>6} micro-batches, {:>8} actions: {:>6.1f} M actions/s prepared, {:>6.1f} M "
      "actions/s from scratch\n",
      shared ? "shared" : "private", devices, micro_batches, actions, prepared, from_scratch);
}

}  // namespace
}  // namespace geopipe

int main() {
  for (const bool shared : {false, true}) {
    for (const int32_t micro_batches : {64, 1'000, 10'000, 100'000, 625'000}) {
      geopipe::MeasureCase(8, micro_batches, shared);
    }
  }
  return 0;
}
