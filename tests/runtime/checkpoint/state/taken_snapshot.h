// Snapshots of stages whose parameters are at hand.
#pragma once

#include <algorithm>
#include <span>

#include "optimizer/base/status_macros.h"
#include "runtime/checkpoint/state/state_snapshot.h"

namespace geopipe {

// Begins to take a snapshot into memory of the parameters' allocator. REQUIRES: the rank updates some of them.
inline absl::StatusOr<Completion> BeginSnapshot(StateSnapshot& snapshot, const ModelSpec& model,
                                                const LayerRange& layers, std::span<const Parameter> parameters,
                                                const ParameterSharding& sharding = {}) {
  const auto held = std::ranges::find_if(parameters, [](const Parameter& each) { return each.piece.count > 0; });
  return snapshot.Take(model, layers, parameters, sharding, held->master.allocator().host());
}

// Takes one and waits for it.
inline absl::Status TakeSnapshot(StateSnapshot& snapshot, const ModelSpec& model, const LayerRange& layers,
                                 std::span<const Parameter> parameters, const ParameterSharding& sharding = {}) {
  GP_ASSIGN_OR_RETURN(const Completion copied, BeginSnapshot(snapshot, model, layers, parameters, sharding));
  return HostDevice().Wait(copied, DeviceDeadlineNs());
}

}  // namespace geopipe
