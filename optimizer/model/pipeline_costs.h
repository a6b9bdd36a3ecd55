// Explicit costs of one pipeline iteration: the input of the simulator, the content of a case file, and the result of
// the cost model for a job on a cluster. All durations are whole nanoseconds, rounded half-up once when they enter.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "optimizer/schedule/schedule.h"
#include "optimizer/schedule/schedule_costs.h"

namespace geopipe {

// Cost of the boundary between stage s and s + 1. A boundary with no link costs no more than its overhead.
struct BoundaryCost {
  bool crosses = false;          // has a link (in a case file every listed link is a crossing)
  std::string link;              // boundaries with the same name share one FIFO per physical direction; empty: private
  int64_t message_bytes = 0;     // of one message, in either direction
  int64_t latency_ns = 0;        // one way
  int64_t serialization_ns = 0;  // message_bytes / bandwidth: how long one message occupies the link
  // comm blocking: time from a message's arrival until its sender is let go. 0 in the simulator's own semantics; on a
  // real link the acknowledgement needs one latency.
  int64_t acknowledgement_ns = 0;
  // Time of a message besides its link, in either direction: from handing it over until the receiver continues, over a
  // link without latency and of unlimited bandwidth. 0 in a case file.
  int64_t overhead_ns = 0;

  friend bool operator==(const BoundaryCost&, const BoundaryCost&) = default;
};

struct MemoryCosts {
  std::vector<int64_t> capacity_bytes;    // per device
  std::vector<int64_t> static_bytes;      // per device
  std::vector<int64_t> activation_bytes;  // per stage and in-flight micro-batch
  std::vector<int64_t> wgrad_bytes;       // per stage: the part kept between I and W
  // Per stage: micro-batches between F and I that a schedule made to measure may have, whatever the memory; empty: any.
  std::vector<int32_t> most_in_flight = {};

  friend bool operator==(const MemoryCosts&, const MemoryCosts&) = default;
};

struct PipelineCosts {
  PipelineShape shape;
  std::vector<int64_t> forward_ns;       // per stage
  std::vector<int64_t> input_grad_ns;    // per stage: I, or the full B when weight_grad_ns is empty
  std::vector<int64_t> weight_grad_ns;   // per stage: W; empty: the backward cannot be split
  std::vector<BoundaryCost> boundaries;  // stages - 1
  CommMode comm = CommMode::kNonBlocking;
  std::optional<MemoryCosts> memory;
  int64_t epilogue_ns = 0;  // after the last action: gradient norm, synchronisation, weight update

  // Duration of a full backward of `stage`.
  int64_t BackwardNs(int32_t stage) const {
    return input_grad_ns[stage] + (weight_grad_ns.empty() ? 0 : weight_grad_ns[stage]);
  }

  friend bool operator==(const PipelineCosts&, const PipelineCosts&) = default;
};

// Seconds to whole nanoseconds, half-up. REQUIRES: finite, 0 <= seconds < 9e9.
int64_t SecondsToNs(double seconds);

// InvalidArgument names the field: sizes of all vectors, non-negative durations, shared links with equal parameters.
absl::Status ValidateCosts(const PipelineCosts& costs);

// The costs as the schedule generators take them. A message's overhead counts as latency. Memory without any activation
// counts as none given.
ScheduleCosts ScheduleCostsOf(const PipelineCosts& costs);

}  // namespace geopipe
