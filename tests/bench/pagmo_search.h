// The planner's search problem given to pagmo's global optimisers, for comparison.
#pragma once

#include <cstdint>

#include "optimizer/plan/space/plan_space.h"

namespace geopipe {

enum class PagmoAlgorithm : uint8_t { kSga, kSade };

// The shortest iteration that the algorithm finds within so many evaluations, its first population included; if it
// finds nothing that fits, twice the time of the genome at rest.
int64_t PagmoBestNs(const PlanSpace& space, PagmoAlgorithm algorithm, int64_t evaluations, uint64_t seed);

}  // namespace geopipe
