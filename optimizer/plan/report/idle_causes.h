// The causes of a device's idle time: read off a recorded timeline and the longest chain through it.
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/model/pipeline_costs.h"
#include "optimizer/simulator/simulator.h"

namespace geopipe {

// One link of the chain of actions and messages that makes the iteration as long as it is: each begins when, and
// because, the one before it ends. An action on a device, a message (from the end of the action that makes it to its
// arrival, queueing and all), or a message whose sender is held until then.
struct ChainSegment {
  enum class Kind : uint8_t { kAction, kMessage, kHold };
  Kind kind = Kind::kAction;
  int32_t index = 0;  // device; boundary
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

// The chain from 0 to the end of the last action, without gaps, in order of time. If both its device and its input let
// an action begin, the chain stays on the device. REQUIRES: `result` was recorded under `costs`.
std::vector<ChainSegment> LongestChain(const SimulationResult& result, const PipelineCosts& costs);

// The warm-up of a device lasts until its first backward begins, its drain begins when its last forward ends (never
// before the warm-up's end); the steady phase lies between. A device that is idle in it is so because the chain is
// elsewhere: on a device where it stays for long (kWork: that one has no time to lose), or on its way over crossings
// (kLink and kHold: segments between two messages of the chain count as the one before).
enum class IdleCause : uint8_t { kWarmUp, kDrain, kLink, kWork, kHold, kEpilogue };

// Part of the iteration for which the chain must be on a device at once to stay there.
inline constexpr double kStays = 0.2;

struct IdleTime {
  IdleCause cause = IdleCause::kWarmUp;
  int32_t index = 0;  // kLink, kHold: boundary; kWork: device; else 0
  int64_t ns = 0;

  friend bool operator==(const IdleTime&, const IdleTime&) = default;
};

struct DeviceTime {
  int64_t busy_ns = 0;
  int64_t steady_ns = 0;       // length of its steady phase, busy or not
  std::vector<IdleTime> idle;  // one per cause and index, the longest first; with busy_ns they make up the iteration
};

// One per device. REQUIRES: as LongestChain.
std::vector<DeviceTime> FindIdleCauses(const SimulationResult& result, const PipelineCosts& costs);

}  // namespace geopipe
