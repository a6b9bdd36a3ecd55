// Lower bounds on iteration_ns that hold for every schedule of the same costs.
#pragma once

#include <cstdint>
#include <optional>

#include "optimizer/model/pipeline_costs.h"

namespace geopipe {

// Bounds each device and each directed link: earliest possible first use + all of its work (of all boundaries that
// share a link) + shortest way out after the last; with a split backward the way out follows I only. Adds to a device's
// work the time that it cannot fill with work before its first backward and after its last forward (device_bound.cc).
// Ignores memory, so that it holds for schedules that do not fit as well. Includes the epilogue. REQUIRES:
// ValidateCosts(costs).ok().
int64_t LowerBoundNs(const PipelineCosts& costs);

// The same for every schedule that fits the capacity of all devices: at least LowerBoundNs, and never less for less
// capacity. An activation is held for at least one round trip, so capacity and round trip limit how far a device can
// run ahead, how much it can postpone, and its rate. nullopt where no schedule fits: one micro-batch alone is too much
// for a device. Equals LowerBoundNs without costs.memory. REQUIRES: ValidateCosts(costs).ok().
std::optional<int64_t> MemoryLowerBoundNs(const PipelineCosts& costs);

}  // namespace geopipe
