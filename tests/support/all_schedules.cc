#include "tests/support/all_schedules.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "optimizer/simulator/prepared_simulator.h"
#include "tests/support/random_pipeline.h"

namespace geopipe {
namespace {

// Appends to `orders` every order of F, I and W (or F and B) of one device in which micro-batches stay in line.
void AppendOrders(const PipelineCosts& costs, int32_t device, std::vector<int32_t> done, std::vector<Action> order,
                  std::vector<std::vector<Action>>& orders) {
  const int32_t micro_batches = costs.shape.micro_batches;
  if (done.back() == micro_batches) {
    orders.push_back(std::move(order));
    return;
  }
  const bool splits = done.size() == 3;
  const std::vector<ActionKind> kinds =
      splits ? std::vector{ActionKind::kForward, ActionKind::kInputGradient, ActionKind::kWeightGradient}
             : std::vector{ActionKind::kForward, ActionKind::kBackward};
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    if (done[kind] == (kind == 0 ? micro_batches : done[kind - 1])) {
      continue;
    }
    order.push_back({device, kinds[kind], done[kind]++});
    AppendOrders(costs, device, done, order, orders);
    --done[kind];
    order.pop_back();
  }
}

}  // namespace

PipelineCosts RandomTinyCosts(std::mt19937_64& random, int32_t devices, int32_t micro_batches, bool split) {
  PipelineCosts costs;
  costs.shape = PipelineShape::Linear(devices, micro_batches);
  costs.boundaries.resize(static_cast<size_t>(devices) - 1);
  costs.epilogue_ns = Draw(random, 0, 3);
  costs.memory = MemoryCosts{{}, std::vector<int64_t>(static_cast<size_t>(devices), 1), {}, {}};
  for (int32_t stage = 0; stage < devices; ++stage) {
    costs.forward_ns.push_back(Draw(random, 1, 9));
    costs.input_grad_ns.push_back(Draw(random, 1, 9));
    if (split) {
      costs.weight_grad_ns.push_back(Draw(random, 1, 9));
    }
    costs.memory->activation_bytes.push_back(Draw(random, 1, 4));
    costs.memory->wgrad_bytes.push_back(Draw(random, 0, costs.memory->activation_bytes.back()));
    costs.memory->capacity_bytes.push_back(1'000);
  }
  for (BoundaryCost& boundary : costs.boundaries) {
    boundary.crosses = Draw(random, 0, 2) > 0;
    boundary.latency_ns = boundary.crosses ? Draw(random, 0, 20) : 0;
    boundary.serialization_ns = boundary.crosses ? Draw(random, 0, 9) : 0;
    boundary.overhead_ns = Draw(random, 0, 2);
  }
  return costs;
}

std::vector<TriedSchedule> TryAllSchedules(const PipelineCosts& costs) {
  std::vector<std::vector<std::vector<Action>>> orders(static_cast<size_t>(costs.shape.devices));
  for (int32_t device = 0; device < costs.shape.devices; ++device) {
    AppendOrders(costs, device, std::vector<int32_t>(costs.weight_grad_ns.empty() ? 2 : 3, 0), {}, orders[device]);
  }
  PreparedSimulator simulator(costs);
  Schedule schedule{costs.shape, {}};
  std::vector<size_t> choice(orders.size(), 0);
  for (const auto& of_device : orders) {
    schedule.devices.push_back(of_device.front());
  }
  std::vector<TriedSchedule> tried;
  size_t device = 0;
  while (device < orders.size()) {
    if (const auto outcome = simulator.Run(schedule); outcome.ok()) {
      tried.push_back({outcome->iteration_ns, {outcome->peak_bytes.begin(), outcome->peak_bytes.end()}});
    }
    for (device = 0; device < orders.size(); ++device) {
      choice[device] = (choice[device] + 1) % orders[device].size();
      schedule.devices[device] = orders[device][choice[device]];
      if (choice[device] != 0) {
        break;
      }
    }
  }
  return tried;
}

int64_t ShortestWithin(std::span<const TriedSchedule> tried, std::span<const int64_t> capacity_bytes) {
  int64_t best_ns = std::numeric_limits<int64_t>::max();
  for (const TriedSchedule& one : tried) {
    if (std::ranges::equal(one.peak_bytes, capacity_bytes, [](int64_t a, int64_t b) { return a <= b; })) {
      best_ns = std::min(best_ns, one.iteration_ns);
    }
  }
  return best_ns;
}

}  // namespace geopipe
