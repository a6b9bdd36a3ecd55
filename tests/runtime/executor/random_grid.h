// Grids of ranks at random, and which of them train alike.
#pragma once

#include <cstdint>
#include <random>
#include <tuple>
#include <vector>

#include "tests/runtime/executor/grid_run.h"

namespace geopipe {

// One process: 6 layers, 10 iterations. `variant`: of the family (tests/runtime/model/small_models.h).
GridOptions SmallGrid(bool tied, int64_t kv_heads, int variant = 0);

// Makes it any grid of up to 8 ranks, with any schedule and whatever else divides or orders the work.
void Randomise(std::mt19937_64& random, GridOptions& options);

// Grids with equal orders of sums must have the same bits.
using SumOrder = std::tuple<int32_t, int32_t, bool, int64_t, bool>;
SumOrder OrderOf(const GridOptions& options);

// The greatest relative difference of two lists; 1 where they are of different lengths.
double Farthest(const std::vector<double>& values, const std::vector<double>& expected);

}  // namespace geopipe
