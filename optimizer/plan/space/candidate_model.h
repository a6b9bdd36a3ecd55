// The candidates of one job on one placement, and their costs.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "optimizer/model/cluster.h"
#include "optimizer/model/cost_source.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/pipeline_costs.h"
#include "optimizer/model/plan/plan_costs.h"
#include "optimizer/model/plan/plan_memory.h"
#include "optimizer/model/plan/plan_params.h"
#include "optimizer/plan/space/choices.h"
#include "optimizer/plan/space/layer_split.h"
#include "optimizer/simulator/simulator.h"

namespace geopipe {

// One plan that could be made, spelled out. b and s are indices into the job's lists.
struct Candidate {
  ScheduleKind schedule = ScheduleKind::kGeoPipe;
  CommMode comm = CommMode::kNonBlocking;
  MemoryMode mode = {};
  int32_t micro_batch = 0;
  int32_t sequence = 0;
  std::vector<int32_t> layers;   // one per stage
  std::vector<int32_t> delta_n;  // one per crossing
};

// The stage that exceeds its capacity by most, or, if none does, comes closest to it.
struct TightestStage {
  int32_t stage = 0;
  int64_t need_bytes = 0;
  int64_t capacity_bytes = 0;

  int64_t excess_bytes() const { return need_bytes - capacity_bytes; }
};

class CandidateModel {
 public:
  // The part that is the same for all candidates of one mode, b and s.
  struct Point {
    MemoryMode mode;
    int32_t micro_batch = 0;
    int32_t sequence = 0;
    PlanParts parts;
    PlanMemoryModel memory;
    std::vector<StageLoad> loads;  // not limited by memory
    int64_t least_ns = 0;          // of any layers, any schedule kind and any ΔN
  };

  // Keeps a copy of the job, whose tensor and data degrees are taken as they are (auto is 1). The source is of the same
  // cluster and is not kept. Errors as CostsOfPlan's.
  static absl::StatusOr<CandidateModel> Create(const JobSpec& job, const ClusterSpec& cluster, const CostSource& source,
                                               CommMode comm, Plan placement);

  const JobSpec& job() const { return job_; }
  CommMode comm() const { return comm_; }
  const Plan& placement() const { return placement_; }
  int32_t stages() const { return static_cast<int32_t>(placement_.stages.size()); }
  const std::vector<int32_t>& crossing_boundaries() const { return crossing_boundaries_; }  // ascending
  int32_t crossings() const { return static_cast<int32_t>(crossing_boundaries_.size()); }
  const std::vector<MemoryMode>& modes() const { return modes_; }
  // The greatest ΔN of a candidate: the job's, or where it leaves that open enough to hide every crossing, up to 64.
  int32_t max_delta_n() const { return max_delta_n_; }
  bool splits_layers() const;  // whether the job lets the planner split them otherwise than evenly
  std::vector<int32_t> EvenLayers() const;

  // Points whose b and s divide tokens_per_iteration, by mode, then b, then s.
  const std::vector<Point>& points() const { return points_; }
  // Null when b and s do not divide tokens_per_iteration. REQUIRES: `mode` is one of modes().
  const Point* FindPoint(const MemoryMode& mode, int32_t micro_batch, int32_t sequence) const;
  bool Divides(int32_t micro_batch, int32_t sequence) const {
    return FindPoint(modes_.front(), micro_batch, sequence) != nullptr;
  }
  // Least time of any candidate at this point whose first stages have these layers.
  int64_t PartialBoundNs(const Point& point, std::span<const int32_t> layers) const;
  // Estimated time of a schedule with several stages on every pipeline rank, as many as are best and the job allows:
  // balanced work, a round trip of one micro-batch over as many rounds, the busiest link. nullopt: none may be.
  std::optional<int64_t> ManyStagesNs(const Point& point) const;

  // Most time by which another ZeRO stage could be shorter than the point's: a micro-batch takes no less with 2 and 3
  // and the same with 0, so only the time after the last one can differ.
  int64_t ZeroStageGainNs(const Point& point) const;

  // REQUIRES of all below: the candidate's mode, b and s are a point.
  const Point& PointOf(const Candidate& candidate) const;
  Plan PlanOf(const Candidate& candidate) const;  // peak_bytes filled in
  PipelineCosts CostsOf(const Candidate& candidate) const;
  Schedule ScheduleOf(const Candidate& candidate) const;
  SimulationResult Run(const Candidate& candidate) const;
  TightestStage Tightest(const Candidate& candidate) const;
  int64_t BoundNs(const Candidate& candidate) const;
  // Most micro-batches in flight on every stage.
  std::vector<int64_t> InFlightOf(const Candidate& candidate) const;

 private:
  CandidateModel(const JobSpec& job, CommMode comm, Plan placement);

  // ceil(2 D_k / t) of the crossing that needs most, with evenly split layers.
  int64_t HidingDeltaN(const Point& point) const;
  absl::Status AddPoint(const ClusterSpec& cluster, const CostSource& source, const MemoryMode& mode,
                        int32_t micro_batch, int32_t sequence);
  Plan Skeleton(const MemoryMode& mode, int32_t micro_batch, int32_t sequence) const;
  std::vector<int32_t> BoundaryDeltaNOf(const Candidate& candidate) const;
  // Peak bytes of every stage in closed form: static, with what its messages take, and in-flight activations.
  std::vector<int64_t> PeakBytes(const Candidate& candidate) const;

  JobSpec job_;
  CommMode comm_;
  Plan placement_;  // only the ranks and their stages
  std::vector<MemoryMode> modes_;
  std::vector<int32_t> crossing_boundaries_;
  int32_t max_delta_n_;
  std::vector<Point> points_;
  std::vector<int32_t> index_;  // [(mode * b choices + b) * s choices + s], of a point; -1: there is none
};

}  // namespace geopipe
