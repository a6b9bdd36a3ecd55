#include "optimizer/simulator/routes.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <tuple>

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

// Forward outputs leave a chunk for the next one, backward outputs for the one before.
std::vector<Route> ConnectChunks(const PipelineCosts& costs, FifoTable& fifos) {
  const int32_t chunks = costs.shape.chunks;
  std::vector<Route> routes(2 * static_cast<size_t>(chunks));
  for (int32_t boundary = 0; boundary + 1 < chunks; ++boundary) {
    routes[boundary] = fifos.Connect(boundary, boundary, boundary + 1);
    routes[chunks + boundary + 1] = fifos.Connect(boundary, boundary + 1, boundary);
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
  const int32_t chunks = costs.shape.chunks;
  FifoTable fifos(costs);
  OperationTable table;
  table.routes = ConnectChunks(costs, fifos);
  table.fifo_count = fifos.count();
  for (const Route& route : table.routes) {
    table.all_ordered = table.all_ordered && route.ordered;
    table.longest_latency_ns = std::max(table.longest_latency_ns, route.latency_ns);
  }
  table.operations.resize(static_cast<size_t>(chunks) * kComputeKinds);
  const bool splits = !costs.weight_grad_ns.empty();
  for (int32_t chunk = 0; chunk < chunks; ++chunk) {
    Operation* const operations = &table.operations[chunk * kComputeKinds];
    Operation& f = operations[static_cast<size_t>(ActionKind::kForward)];
    Operation& b = operations[static_cast<size_t>(ActionKind::kBackward)];
    Operation& i = operations[static_cast<size_t>(ActionKind::kInputGradient)];
    Operation& w = operations[static_cast<size_t>(ActionKind::kWeightGradient)];
    f.duration_ns = costs.forward_ns[chunk];
    b.duration_ns = costs.BackwardNs(chunk);
    i.duration_ns = costs.input_grad_ns[chunk];
    w.duration_ns = splits ? costs.weight_grad_ns[chunk] : 0;
    if (costs.memory.has_value()) {
      f.bytes = costs.memory->activation_bytes[chunk];
      w.bytes = -costs.memory->wgrad_bytes[chunk];
      b.bytes = -f.bytes;
      i.bytes = -f.bytes - w.bytes;
    }
    f.device = b.device = costs.shape.placement[chunk];
    i.device = w.device = splits ? f.device : kNoDevice;
    f.input = chunk > 0 ? chunk - 1 : kNoColumn;
    // The backward of the last chunk waits for its own forward. What W needs never left its device: its place in the
    // list is enough.
    b.input = i.input = chunk + 1 < chunks ? chunks + chunk + 1 : chunk;
    SetOutput(f, chunk, table.routes[chunk]);
    SetOutput(b, chunks + chunk, table.routes[chunks + chunk]);
    SetOutput(i, chunks + chunk, table.routes[chunks + chunk]);
  }
  return table;
}

}  // namespace geopipe
