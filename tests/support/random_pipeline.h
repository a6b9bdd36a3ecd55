// Random pipelines for property tests: costs with ties on purpose, and schedules that can run by construction.
#pragma once

#include <cstdint>
#include <random>

#include "optimizer/model/pipeline_costs.h"
#include "optimizer/schedule/schedule.h"

namespace geopipe {

// Uniform in [low, high]; the same on every platform, unlike std::uniform_int_distribution.
inline int64_t Draw(std::mt19937_64& random, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
}

// Draws up to 5 devices, 8 stages placed anywhere, 6 micro-batches.
PipelineShape RandomShape(std::mt19937_64& random);

// Small durations, some zero, so that much happens at one instant; private, shared and no links; any mode; sometimes a
// backward that can be split, sometimes memory. Valid.
PipelineCosts RandomCosts(std::mt19937_64& random, const PipelineShape& shape);

// Complete, ordered and free of deadlock: written down while running actions at random as soon as they may run.
// Forwards come in any order; with `split`, some backwards are split and their weight gradients delayed.
Schedule RandomSchedule(std::mt19937_64& random, const PipelineShape& shape, bool split);

}  // namespace geopipe
