// The lowering of one device's list, shared by the lowering and by the validator that checks against it.
#pragma once

#include <span>
#include <vector>

#include "optimizer/schedule/schedule.h"

namespace geopipe {

// REQUIRES: ValidateShape(shape).ok(); `actions` are compute actions.
std::vector<Action> LowerDevice(const PipelineShape& shape, std::span<const Action> actions);

}  // namespace geopipe
