// Divides a timeline into warm-up, steady phase and drain, and into shares of time per column of a picture.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "optimizer/simulator/simulator.h"

namespace geopipe {

// The warm-up ends when every device has begun its first backward; the drain begins when a device has ended its last
// forward.
struct TimelinePhases {
  int64_t steady_ns = 0;  // start of the steady phase
  int64_t drain_ns = 0;
};

// nullopt when there is no steady phase: the iteration is too short, or its schedule has none (gpipe).
std::optional<TimelinePhases> PhasesOf(const SimulationResult& result);

// Shares of one device's time: [kind][column], the part of the column's time that actions of that kind (F, B, I, W)
// take. REQUIRES: columns > 0.
std::array<std::vector<double>, 4> SharesOf(const std::vector<ActionTiming>& lane, int64_t span_ns, size_t columns);

}  // namespace geopipe
