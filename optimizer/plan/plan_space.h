// The candidates of one placement and recompute mode, and what each would cost.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "optimizer/model/cluster.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/pipeline_costs.h"
#include "optimizer/model/plan_memory.h"
#include "optimizer/model/plan_params.h"
#include "optimizer/model/profile.h"
#include "optimizer/plan/placement.h"
#include "optimizer/search/genome.h"
#include "optimizer/simulator/simulator.h"

namespace geopipe {

// One point of the space, spelled out. b and s are indices into the job's lists.
struct Candidate {
  ScheduleKind schedule = ScheduleKind::kGeoPipe;
  CommMode comm = CommMode::kNonBlocking;
  int32_t micro_batch = 0;
  int32_t sequence = 0;
  std::vector<int32_t> delta_n;  // one per crossing
};

// The stage that exceeds its capacity by most, or, if none does, comes closest to it.
struct TightestStage {
  int32_t stage = 0;
  int64_t need_bytes = 0;
  int64_t capacity_bytes = 0;

  int64_t excess_bytes() const { return need_bytes - capacity_bytes; }
};

class PlanSpace {
 public:
  // Keeps references to job and cluster: they must outlive the space. `profile` may be null. `fixed_delta_n`: empty, or
  // one number for all crossings, or one per crossing; then ΔN is not part of the genome. Errors as CostsOfPlan's, and
  // InvalidArgument for a fixed ΔN of the wrong length or for a schedule that has none.
  static absl::StatusOr<PlanSpace> Create(const JobSpec& job, const ClusterSpec& cluster, const Profile* profile,
                                          CommMode comm, const std::vector<int32_t>& fixed_delta_n, Placement placement,
                                          Recompute recompute);

  const GenomeSpace& genome_space() const { return genome_space_; }
  // Genomes whose b and s divide tokens_per_iteration.
  int64_t size() const;
  // Seeds: ΔN_k = ceil(2 D_k / t) of every (b, s), cut to memory.
  std::vector<Genome> Seeds() const;
  // All functions refer to this space, which must outlive the problem.
  SearchProblem Problem() const;

  Fitness Evaluate(const Genome& genome) const;
  // Least iteration time of any schedule with an unsplit backward at the genome's b and s; INT64_MAX when they do not
  // divide tokens_per_iteration.
  int64_t LowerBoundNs(int32_t micro_batch, int32_t sequence) const;
  // Lowers ΔN, the largest first, until the memory of every stage suffices or nothing is left to lower.
  void Repair(Genome& genome) const;

  Candidate CandidateOf(const Genome& genome) const;
  bool Divides(int32_t micro_batch, int32_t sequence) const { return PointAt(micro_batch, sequence).has_value(); }
  // REQUIRES of all below: Divides(candidate.micro_batch, candidate.sequence).
  Plan PlanOf(const Candidate& candidate) const;  // peak_bytes filled in
  PipelineCosts CostsOf(const Candidate& candidate) const;
  SimulationResult Run(const Candidate& candidate) const;
  TightestStage Tightest(const Candidate& candidate) const;

  const JobSpec& job() const { return *job_; }
  const Placement& placement() const { return placement_; }
  Recompute recompute() const { return recompute_; }
  int32_t crossings() const { return static_cast<int32_t>(crossing_boundaries_.size()); }
  const std::vector<ScheduleKind>& kinds() const { return kinds_; }

 private:
  // What is the same for all candidates of one b and s. The static bytes in `costs` are those of ΔN = 0.
  struct Point {
    PipelineCosts costs;
    int64_t lower_bound_ns = 0;
    std::vector<StageNeeds> needs;
  };

  PlanSpace(const JobSpec& job, const ClusterSpec& cluster, CommMode comm, Placement placement, Recompute recompute);

  absl::Status ChooseKinds(const std::vector<int32_t>& fixed_delta_n);
  Plan Skeleton(int32_t micro_batch, int32_t sequence) const;
  const std::optional<Point>& PointAt(int32_t micro_batch, int32_t sequence) const;
  std::vector<int32_t> BoundaryDeltaNOf(const Candidate& candidate) const;
  // Peak bytes of every stage in closed form: static, with what its messages take, and in-flight activations.
  std::vector<int64_t> PeakBytes(const Candidate& candidate) const;
  // Micro-batches in flight on every stage.
  std::vector<int64_t> InFlightOf(const Candidate& candidate) const;

  const JobSpec* job_;
  const ClusterSpec* cluster_;
  CommMode comm_;
  Placement placement_;
  Recompute recompute_;
  std::vector<ScheduleKind> kinds_;
  std::vector<int32_t> fixed_delta_n_;        // empty, or one per crossing
  std::vector<int32_t> crossing_boundaries_;  // ascending
  std::vector<std::optional<Point>> points_;  // [micro_batch * sequence choices + sequence]
  GenomeSpace genome_space_;
};

}  // namespace geopipe
