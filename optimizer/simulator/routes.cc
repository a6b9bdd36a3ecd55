#include "optimizer/simulator/routes.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <tuple>

namespace geopipe {
namespace {

// Numbers the FIFOs and finds those that more than one source feeds.
class FifoTable {
 public:
  explicit FifoTable(const PipelineCosts& costs) : costs_(costs) {}

  // The route over `boundary` from the stage `from` to the stage `to` (its two ends).
  Route Connect(int32_t boundary, int32_t from, int32_t to) {
    const BoundaryCost& cost = costs_.boundaries[boundary];
    Route route;
    route.producer = costs_.shape.placement[from];
    route.consumer = costs_.shape.placement[to];
    if ((!cost.crosses && cost.overhead_ns == 0) || route.producer == route.consumer) {
      return route;
    }
    // The key of a private link is its boundary; that of a shared link has -1 there.
    const bool upwards = route.consumer > route.producer;
    const Key key{cost.link.empty() ? boundary : -1, cost.link, upwards};
    const int32_t source = costs_.comm == CommMode::kRendezvous ? 2 * boundary + (to > from ? 1 : 0) : route.producer;
    const auto [entry, inserted] = fifos_.try_emplace(key, Fifo{static_cast<int32_t>(fifos_.size()), source, true});
    entry->second.ordered &= entry->second.source == source;
    route.fifo = entry->second.index;
    route.serialization_ns = cost.serialization_ns;
    route.latency_ns = cost.latency_ns + cost.overhead_ns;
    route.acknowledgement_ns = cost.acknowledgement_ns;
    return route;
  }

  int32_t count() const { return static_cast<int32_t>(fifos_.size()); }

  std::vector<bool> Ordered() const {
    std::vector<bool> ordered(fifos_.size());
    for (const auto& [key, fifo] : fifos_) {
      ordered[fifo.index] = fifo.ordered;
    }
    return ordered;
  }

 private:
  using Key = std::tuple<int32_t, std::string, bool>;
  struct Fifo {
    int32_t index;
    int32_t source;
    bool ordered;
  };

  const PipelineCosts& costs_;
  std::map<Key, Fifo> fifos_;
};

// Forward outputs leave a stage for the next one, backward outputs for the one before.
std::vector<Route> ConnectStages(const PipelineCosts& costs, FifoTable& fifos) {
  const int32_t stages = costs.shape.stages;
  std::vector<Route> routes(2 * static_cast<size_t>(stages));
  for (int32_t boundary = 0; boundary + 1 < stages; ++boundary) {
    routes[boundary] = fifos.Connect(boundary, boundary, boundary + 1);
    routes[stages + boundary + 1] = fifos.Connect(boundary, boundary + 1, boundary);
  }
  const std::vector<bool> ordered = fifos.Ordered();
  for (Route& route : routes) {
    route.ordered = route.fifo == kNoFifo || ordered[route.fifo];
  }
  return routes;
}

void SetOutput(Operation& operation, int32_t column, const Route& route) {
  operation.output = column;
  operation.fifo = route.fifo;
  operation.ordered = route.ordered;
  operation.consumer = route.consumer;
  operation.serialization_ns = route.serialization_ns;
  operation.latency_ns = route.latency_ns;
}

}  // namespace

OperationTable BuildOperations(const PipelineCosts& costs) {
  const int32_t stages = costs.shape.stages;
  FifoTable fifos(costs);
  OperationTable table;
  table.routes = ConnectStages(costs, fifos);
  table.fifo_count = fifos.count();
  for (const Route& route : table.routes) {
    table.all_ordered = table.all_ordered && route.ordered;
    table.longest_latency_ns = std::max(table.longest_latency_ns, route.latency_ns);
  }
  table.operations.resize(static_cast<size_t>(stages) * kComputeKinds);
  const bool splits = !costs.weight_grad_ns.empty();
  for (int32_t stage = 0; stage < stages; ++stage) {
    Operation* const operations = &table.operations[stage * kComputeKinds];
    Operation& f = operations[static_cast<size_t>(ActionKind::kForward)];
    Operation& b = operations[static_cast<size_t>(ActionKind::kBackward)];
    Operation& i = operations[static_cast<size_t>(ActionKind::kInputGradient)];
    Operation& w = operations[static_cast<size_t>(ActionKind::kWeightGradient)];
    f.duration_ns = costs.forward_ns[stage];
    b.duration_ns = costs.BackwardNs(stage);
    i.duration_ns = costs.input_grad_ns[stage];
    w.duration_ns = splits ? costs.weight_grad_ns[stage] : 0;
    if (costs.memory.has_value()) {
      f.bytes = costs.memory->activation_bytes[stage];
      w.bytes = -costs.memory->wgrad_bytes[stage];
      b.bytes = -f.bytes;
      i.bytes = -f.bytes - w.bytes;
    }
    f.device = b.device = costs.shape.placement[stage];
    i.device = w.device = splits ? f.device : kNoDevice;
    f.input = stage > 0 ? stage - 1 : kNoColumn;
    // The backward of the last stage waits for its own forward. W's input never leaves its device, so W's place in the
    // list is enough.
    b.input = i.input = stage + 1 < stages ? stages + stage + 1 : stage;
    SetOutput(f, stage, table.routes[stage]);
    SetOutput(b, stages + stage, table.routes[stages + stage]);
    SetOutput(i, stages + stage, table.routes[stages + stage]);
  }
  return table;
}

}  // namespace geopipe
