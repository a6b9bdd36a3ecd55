#include "optimizer/model/epilogue.h"

#include <algorithm>
#include <cstddef>

namespace geopipe {

int64_t EpilogueNs(const PipelineCosts& costs, const EpilogueParts& parts) {
  return EpilogueNs(costs, parts, parts.update_ns);
}

int64_t EpilogueNs(const PipelineCosts& costs, const EpilogueParts& parts, const std::vector<int64_t>& update_ns) {
  const size_t stages = update_ns.size();
  std::vector<int64_t> ready_ns(stages, 0);  // the stage's gradients are complete, and it goes on
  std::vector<int64_t> input_ns(stages, 0);  // its next forward's input comes so much after stage 0's forward began
  int64_t end_ns = 0;                        // of the stage's last backward, at the latest
  for (size_t stage = 1; stage < stages; ++stage) {
    const BoundaryCost& boundary = costs.boundaries[stage - 1];
    const int64_t crossing_ns = boundary.latency_ns + boundary.serialization_ns + boundary.overhead_ns;
    const auto before = static_cast<int32_t>(stage - 1);
    const int64_t arrives_ns = end_ns - costs.BackwardNs(before);  // its last gradient
    end_ns = arrives_ns - crossing_ns;
    const bool held = costs.comm == CommMode::kBlocking && (boundary.crosses || boundary.overhead_ns > 0);
    ready_ns[stage] = held ? arrives_ns + boundary.acknowledgement_ns : end_ns;
    input_ns[stage] = input_ns[stage - 1] + costs.forward_ns[before] + crossing_ns;
  }
  if (parts.tied_ns > 0) {
    const int64_t first_ns = ready_ns.front();
    ready_ns.front() = std::max(first_ns, ready_ns.back() + parts.tied_ns);
    ready_ns.back() = std::max(ready_ns.back(), first_ns + parts.tied_ns);
  }
  int64_t epilogue_ns = 0;
  for (size_t stage = 0; stage < stages; ++stage) {
    int64_t start_ns = ready_ns[stage];
    for (size_t other = 0; parts.clips && other < stages; ++other) {
      start_ns = std::max(start_ns, ready_ns[other] + parts.latencies_ns[other][stage]);
    }
    epilogue_ns = std::max(epilogue_ns, start_ns + update_ns[stage] - input_ns[stage]);
  }
  return epilogue_ns;
}

}  // namespace geopipe
