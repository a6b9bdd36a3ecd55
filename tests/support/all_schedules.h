// Enumerates the schedules of a tiny pipeline, against which an exact search or a bound is checked.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "optimizer/model/pipeline_costs.h"

namespace geopipe {

// One stage per device, private links, more memory than needed, and no more kept for W than an activation. Small whole
// numbers, so that much happens at one instant; nothing takes no time.
PipelineCosts RandomTinyCosts(std::mt19937_64& random, int32_t devices, int32_t micro_batches, bool split);

struct TriedSchedule {
  int64_t iteration_ns = 0;
  std::vector<int64_t> peak_bytes;  // per device, static memory included
};

// All that run, with one stage per device and micro-batches in line, split where the costs are. Their number grows
// beyond all bounds with three devices and four micro-batches.
std::vector<TriedSchedule> TryAllSchedules(const PipelineCosts& costs);

// The shortest iteration of those that fit, in nanoseconds; the greatest number if none does.
int64_t ShortestWithin(std::span<const TriedSchedule> tried, std::span<const int64_t> capacity_bytes);

}  // namespace geopipe
