// The next epoch, or what takes its place.
#pragma once

#include "coordinator/core/life/decision.h"

namespace geopipe {

Answer Begin(const Situation& situation);

}  // namespace geopipe
