// Costs of a pipeline as far as the generators that split the backward use them, to decide where a weight gradient
// fits. A schedule is valid under any costs.
#pragma once

#include <cstdint>
#include <vector>

namespace geopipe {

struct ScheduleCosts {
  // Per stage: F, I and W. All empty: all equal. weight_grad_ns alone empty: the backward cannot be split.
  std::vector<int64_t> forward_ns;
  std::vector<int64_t> input_grad_ns;
  std::vector<int64_t> weight_grad_ns;
  // Per boundary (stages - 1), one way: a message occupies its boundary for serialization_ns and arrives latency_ns
  // later. Empty: messages take no time. Used by geopipe-zb alone: the published zero-bubble schedules know of no
  // crossing.
  std::vector<int64_t> latency_ns;
  std::vector<int64_t> serialization_ns;
  // Per stage and micro-batch: bytes that F leaves until I, and that I leaves of them until W. Empty: half of them.
  std::vector<int64_t> activation_bytes;
  std::vector<int64_t> wgrad_bytes;
  // Per device: greatest activation memory, in activations of one stage and micro-batch, each counted whole from F to I
  // and by its part from I to W. It can only lower the schedule's own limit. At least 1 (zb-v: 2). Empty: no cap.
  std::vector<int64_t> activation_cap;
};

}  // namespace geopipe
