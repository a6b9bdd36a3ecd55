// A plan: what runs where, and its predicted cost. Plain values that every layer may see.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "optimizer/model/job_spec.h"
#include "optimizer/model/process_grid.h"
#include "optimizer/schedule/schedule_table.h"

namespace geopipe {

// One place in the pipeline: a device for each data and tensor coordinate, all at one site. Runs one or several stages.
struct PipelineRankPlan {
  std::string site;                        // or the group of its nodes (SiteOfGroup)
  int64_t peak_bytes = 0;                  // per device, predicted
  int64_t capacity_bytes = 0;              // per device
  Recompute recompute = Recompute::kNone;  // of its stages

  friend bool operator==(const PipelineRankPlan&, const PipelineRankPlan&) = default;
};

// A run of layers, named by actions.
struct StagePlan {
  int32_t pipeline_rank = 0;
  LayerRange layers;

  friend bool operator==(const StagePlan&, const StagePlan&) = default;
};

// A device's place within the site of its pipeline rank, or within the rank's group of nodes.
struct DevicePlace {
  int32_t node = 0;    // from 0
  int32_t device = 0;  // on that node

  friend bool operator==(const DevicePlace&, const DevicePlace&) = default;
};

struct IdleDevices {
  std::string site;  // as a pipeline rank's
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
  int32_t zero_stage = 0;  // 0 where there is one replica
  ProcessGrid grid;
  std::vector<PipelineRankPlan> pipeline_ranks;  // grid.pipeline of them
  std::vector<StagePlan> stages;                 // in the order of their layers
  std::vector<DevicePlace> devices;              // by index of rank (ProcessGrid::IndexOf)
  std::vector<IdleDevices> idle;

  // Appends a pipeline rank that runs one stage, on the devices of `node` from `first_device` on.
  void Append(PipelineRankPlan rank, const LayerRange& layers, int32_t node = 0, int32_t first_device = 0);
  // The same on these devices. REQUIRES: one for each data and tensor coordinate.
  void Append(PipelineRankPlan rank, const LayerRange& layers, std::span<const DevicePlace> places);

  const std::string& SiteOf(int32_t stage) const { return pipeline_ranks[stages[stage].pipeline_rank].site; }
  Recompute RecomputeOf(int32_t stage) const { return pipeline_ranks[stages[stage].pipeline_rank].recompute; }
  // The mode of all pipeline ranks; nullopt: they differ.
  std::optional<Recompute> SameRecompute() const;
  void SetRecompute(Recompute recompute);  // of all pipeline ranks
  const std::string& SiteOfRank(int32_t rank) const { return pipeline_ranks[grid.At(rank).pipeline].site; }
  // Boundaries (the stage below) whose two stages are at different sites, ascending.
  std::vector<int32_t> Crossings() const;
  // The devices of a pipeline rank, by data and tensor coordinate.
  std::span<const DevicePlace> DevicesOf(int32_t pipeline_rank) const;
  PipelineShape Shape() const;
  int32_t StagesPerRank() const { return static_cast<int32_t>(stages.size()) / grid.pipeline; }

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

// ΔN of each boundary (stages - 1): delta_n at the crossings, else 0. REQUIRES: plan.delta_n has one entry per
// crossing.
std::vector<int32_t> BoundaryDeltaN(const Plan& plan);

}  // namespace geopipe
