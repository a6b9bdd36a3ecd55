// The costs of a pipeline arranged for the engine: one record per stage and kind of action with all that the engine
// needs to run the action, and the link FIFOs numbered.
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/model/pipeline_costs.h"

namespace geopipe {

inline constexpr int32_t kNoFifo = -1;
inline constexpr int32_t kNoDevice = -1;
inline constexpr int32_t kNoColumn = -1;
inline constexpr size_t kComputeKinds = 4;

// The way of one output of a stage to the next stage.
struct Route {
  int32_t fifo = kNoFifo;  // kNoFifo: at once (no link, or both stages on one device)
  bool ordered = true;     // false: entries into the FIFO must be put in order of time first
  int32_t producer = kNoDevice;
  int32_t consumer = kNoDevice;  // kNoDevice: no other stage waits for it
  int64_t serialization_ns = 0;
  int64_t latency_ns = 0;  // and overhead
  int64_t acknowledgement_ns = 0;
};

// One cache line.
struct alignas(64) Operation {
  int64_t duration_ns = 0;
  int64_t bytes = 0;  // how much more memory its device holds: F's from its start, of the others from their end
  int64_t serialization_ns = 0;
  int64_t latency_ns = 0;
  int32_t fifo = kNoFifo;  // fifo to consumer: of the route of its output
  int32_t consumer = kNoDevice;
  int32_t input = kNoColumn;   // the output it waits for
  int32_t output = kNoColumn;  // the output it makes
  int32_t device = kNoDevice;  // where it runs; kNoDevice: nowhere, the costs do not split the backward
  bool ordered = true;
};

// The outputs of one micro-batch are numbered in columns: forward outputs by stage, then backward outputs by stage.
struct OperationTable {
  std::vector<Operation> operations;  // [stage * kComputeKinds + kind]
  std::vector<Route> routes;          // [column]
  int32_t fifo_count = 0;
  int64_t longest_latency_ns = 0;
  bool all_ordered = true;
};

// A FIFO is one direction of one link. It is ordered when its entries are made one after the other by construction: all
// by one producing device or, with rendezvous, where the receivers set the time, all of one boundary and direction.
// REQUIRES: ValidateCosts(costs).ok().
OperationTable BuildOperations(const PipelineCosts& costs);

}  // namespace geopipe
