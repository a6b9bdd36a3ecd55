// A plan: what is to be run, where, and what it will cost. Plain values that every layer may see.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "optimizer/model/job_spec.h"
#include "optimizer/schedule/schedule.h"

namespace geopipe {

struct StagePlan {
  int32_t index = 0;
  std::string site;
  int32_t node = 0;              // within the site, from 0
  std::vector<int32_t> devices;  // on that node, `tensor` of them
  LayerRange layers;
  int64_t peak_bytes = 0;      // per device, predicted
  int64_t capacity_bytes = 0;  // per device

  friend bool operator==(const StagePlan&, const StagePlan&) = default;
};

struct IdleDevices {
  std::string site;
  int32_t node = 0;
  std::vector<int32_t> devices;

  friend bool operator==(const IdleDevices&, const IdleDevices&) = default;
};

struct Plan {
  ScheduleKind schedule = ScheduleKind::kGeoPipe;
  CommMode comm = CommMode::kNonBlocking;
  int64_t micro_batch_size = 0;
  int64_t sequence_length = 0;
  std::vector<int32_t> delta_n;  // per crossing boundary, ascending
  int32_t micro_batches = 0;
  Recompute recompute = Recompute::kNone;
  std::vector<StagePlan> stages;
  std::vector<IdleDevices> idle;

  friend bool operator==(const Plan&, const Plan&) = default;
};

// The prediction that goes with a plan; fixed before iteration 0.
struct Prediction {
  int64_t iteration_ns = 0;
  double bubble_ratio = 0;
  int64_t lower_bound_ns = 0;  // of every schedule with the plan's b, s and stages; that fits, if the plan does
  double tokens_per_s = 0;
  int64_t wan_bytes_per_iteration = 0;  // all crossings, both directions

  friend bool operator==(const Prediction&, const Prediction&) = default;
};

// Per boundary (stages - 1): delta_n where the two stages live in different sites, else 0.
// REQUIRES: plan.delta_n has one entry per crossing.
std::vector<int32_t> BoundaryDeltaN(const Plan& plan);

}  // namespace geopipe
