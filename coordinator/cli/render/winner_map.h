// Shows which alternative is fastest at each point of a sweep, as text. Local steps, which change the training, do not
// compete.
#pragma once

#include <string>
#include <string_view>

#include "optimizer/plan/sweep.h"
#include "runtime/base/wrap.h"

namespace geopipe {

// Smallest lead that means something: models are no more accurate than that.
inline constexpr double kClearLead = 0.01;

// One axis: the iteration of every alternative at each point, the fastest and by how much, and from where to where each
// is the fastest. Two axes: a map of letters, the first axis upwards and the last one to the right, with a legend; at
// most 100 columns, in wider sweeps every second point or fewer. Empty for sweeps without alternatives.
std::string WinnersText(const Sweep& sweep, int32_t columns = kAnyColumns);

}  // namespace geopipe
