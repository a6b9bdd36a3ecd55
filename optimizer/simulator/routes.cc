#include "optimizer/simulator/routes.h"

#include <cstddef>
#include <map>
#include <string>
#include <tuple>

#include "optimizer/schedule/dependencies.h"

namespace geopipe {
namespace {

// Numbers the FIFOs and finds out which of them are fed by more than one source.
class FifoTable {
 public:
  explicit FifoTable(const PipelineCosts& costs) : costs_(costs) {}

  // The route over `boundary` from the chunk `from` to the chunk `to` (its two ends).
  Route Connect(int32_t boundary, int32_t from, int32_t to) {
    const BoundaryCost& cost = costs_.boundaries[boundary];
    Route route;
    route.producer = costs_.shape.placement[from];
    route.consumer = costs_.shape.placement[to];
    if ((!cost.crosses && cost.overhead_ns == 0) || route.producer == route.consumer) {
      return route;
    }
    // A private link is named by its boundary, which no shared link can be: their first part is -1.
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

void MarkOrdered(Route& route, const std::vector<bool>& ordered) {
  route.ordered = route.fifo == kNoFifo || ordered[route.fifo];
}

}  // namespace

OperationTable BuildOperations(const PipelineCosts& costs) {
  const PipelineShape& shape = costs.shape;
  const OutputTable outputs(shape);
  FifoTable fifos(costs);
  // forward[c] leaves chunk c for c + 1, backward[c] leaves chunk c for c - 1.
  std::vector<Route> forward(static_cast<size_t>(shape.chunks));
  std::vector<Route> backward(static_cast<size_t>(shape.chunks));
  for (int32_t boundary = 0; boundary + 1 < shape.chunks; ++boundary) {
    forward[boundary] = fifos.Connect(boundary, boundary, boundary + 1);
    backward[boundary + 1] = fifos.Connect(boundary, boundary + 1, boundary);
  }
  const std::vector<bool> ordered = fifos.Ordered();
  for (int32_t chunk = 0; chunk < shape.chunks; ++chunk) {
    MarkOrdered(forward[chunk], ordered);
    MarkOrdered(backward[chunk], ordered);
  }

  OperationTable table;
  table.fifo_count = fifos.count();
  table.operations.resize(static_cast<size_t>(shape.chunks) * kComputeKinds);
  for (const bool is_ordered : ordered) {
    table.all_ordered = table.all_ordered && is_ordered;
  }
  for (int32_t chunk = 0; chunk < shape.chunks; ++chunk) {
    Operation* const operations = &table.operations[chunk * kComputeKinds];
    for (size_t kind = 0; kind < kComputeKinds; ++kind) {
      const Action first{chunk, static_cast<ActionKind>(kind), 0};
      operations[kind].input_base = outputs.InputOf(first);
      operations[kind].output_base = outputs.OutputOf(first);
    }
    Operation& f = operations[static_cast<size_t>(ActionKind::kForward)];
    Operation& b = operations[static_cast<size_t>(ActionKind::kBackward)];
    Operation& i = operations[static_cast<size_t>(ActionKind::kInputGradient)];
    Operation& w = operations[static_cast<size_t>(ActionKind::kWeightGradient)];
    f.duration_ns = costs.forward_ns[chunk];
    b.duration_ns = costs.BackwardNs(chunk);
    i.duration_ns = costs.input_grad_ns[chunk];
    w.duration_ns = costs.weight_grad_ns.empty() ? 0 : costs.weight_grad_ns[chunk];
    f.output = forward[chunk];
    b.output = i.output = backward[chunk];
    if (chunk > 0) {
      f.input = forward[chunk - 1];
    }
    if (chunk + 1 < shape.chunks) {
      b.input = i.input = backward[chunk + 1];
    }
    // What W needs never left its device: its place in the list is enough.
    w.input_base = -1;
  }
  return table;
}

}  // namespace geopipe
