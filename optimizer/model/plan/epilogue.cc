#include "optimizer/model/plan/epilogue.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace geopipe {

int64_t EpilogueNs(const PipelineCosts& costs, const EpilogueParts& parts) {
  return EpilogueNs(costs, parts, parts.update_ns);
}

int64_t EpilogueNs(const PipelineCosts& costs, const EpilogueParts& parts, const std::vector<int64_t>& update_ns) {
  const size_t stages = update_ns.size();
  const std::vector<int32_t>& device_of = costs.shape.placement;
  struct Device {
    int64_t ready_ns = std::numeric_limits<int64_t>::min();  // its gradients are complete, and it continues
    // Least time from the start of stage 0's next forward to the input of this device's next forward.
    int64_t input_ns = std::numeric_limits<int64_t>::max();
    int64_t update_ns = 0;
  };
  std::vector<Device> devices(static_cast<size_t>(costs.shape.devices));
  int64_t ready_ns = 0;
  int64_t input_ns = 0;
  int64_t end_ns = 0;  // of the stage's last backward, at the latest
  for (size_t stage = 0; stage < stages; ++stage) {
    if (stage > 0) {
      const BoundaryCost& boundary = costs.boundaries[stage - 1];
      const int64_t crossing_ns = boundary.latency_ns + boundary.serialization_ns + boundary.overhead_ns;
      const auto before = static_cast<int32_t>(stage - 1);
      const int64_t arrives_ns = end_ns - costs.BackwardNs(before);  // its last gradient
      end_ns = arrives_ns - crossing_ns;
      const bool held = costs.comm == CommMode::kBlocking && (boundary.crosses || boundary.overhead_ns > 0);
      ready_ns = held ? arrives_ns + boundary.acknowledgement_ns : end_ns;
      input_ns += costs.forward_ns[before] + crossing_ns;
    }
    Device& device = devices[device_of[stage]];
    device.ready_ns = std::max(device.ready_ns, ready_ns);
    device.input_ns = std::min(device.input_ns, input_ns);
    device.update_ns += update_ns[stage];
  }
  if (parts.tied_ns > 0) {
    Device& first = devices[device_of.front()];
    Device& last = devices[device_of.back()];
    const int64_t first_ns = first.ready_ns;
    first.ready_ns = std::max(first_ns, last.ready_ns + parts.tied_ns);
    last.ready_ns = std::max(last.ready_ns, first_ns + parts.tied_ns);
  }
  int64_t epilogue_ns = 0;
  for (size_t stage = 0; stage < stages; ++stage) {
    const Device& device = devices[device_of[stage]];
    int64_t start_ns = device.ready_ns;
    for (size_t other = 0; parts.clips && other < stages; ++other) {
      start_ns = std::max(start_ns, devices[device_of[other]].ready_ns + parts.latencies_ns[other][stage]);
    }
    epilogue_ns = std::max(epilogue_ns, start_ns + device.update_ns - device.input_ns);
  }
  return epilogue_ns;
}

}  // namespace geopipe
