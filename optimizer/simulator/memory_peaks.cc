#include "optimizer/simulator/memory_peaks.h"

#include <algorithm>
#include <cstddef>

namespace geopipe {

std::vector<int64_t> PeakBytes(const Schedule& schedule, const MemoryCosts& memory) {
  std::vector<int64_t> peaks(schedule.devices.size());
  for (size_t device = 0; device < schedule.devices.size(); ++device) {
    int64_t bytes = memory.static_bytes[device];
    int64_t peak = bytes;
    for (const Action& action : schedule.devices[device]) {
      switch (action.kind) {
        case ActionKind::kForward:
          bytes += memory.activation_bytes[action.stage];
          break;
        case ActionKind::kBackward:
          bytes -= memory.activation_bytes[action.stage];
          break;
        case ActionKind::kInputGradient:
          bytes += memory.wgrad_bytes[action.stage] - memory.activation_bytes[action.stage];
          break;
        case ActionKind::kWeightGradient:
          bytes -= memory.wgrad_bytes[action.stage];
          break;
        default:
          break;
      }
      peak = std::max(peak, bytes);
    }
    peaks[device] = peak;
  }
  return peaks;
}

}  // namespace geopipe
