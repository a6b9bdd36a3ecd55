// The candidates of one placement, and what each would cost.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "optimizer/model/cluster.h"
#include "optimizer/model/cost_source.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/pipeline_costs.h"
#include "optimizer/model/plan_costs.h"
#include "optimizer/model/plan_memory.h"
#include "optimizer/model/plan_params.h"
#include "optimizer/plan/space/layer_split.h"
#include "optimizer/plan/space/parallel_for.h"
#include "optimizer/search/genome.h"
#include "optimizer/simulator/simulator.h"

namespace geopipe {

// One point of the space, spelled out. b and s are indices into the job's lists.
struct Candidate {
  ScheduleKind schedule = ScheduleKind::kGeoPipe;
  CommMode comm = CommMode::kNonBlocking;
  Recompute recompute = Recompute::kNone;
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

// Genes, in this order: schedule kind, recompute mode, b, s (all choices); the layers of every stage when the job lets
// the search split them (shares; at rest the even split); ΔN of every crossing, unless it is fixed (at rest 0).
class PlanSpace {
 public:
  enum Choice : uint8_t { kKind, kRecompute, kMicroBatch, kSequence, kChoices };

  // Keeps a copy of the job, whose tensor and data degrees are taken as they are (auto is 1). The source is of the same
  // cluster and is not kept.
  // `fixed_delta_n`: empty, or one number for all crossings, or one per crossing; then ΔN is not part of the genome.
  // Errors as CostsOfPlan's, and InvalidArgument for a fixed ΔN of the wrong length or for a schedule that has none.
  static absl::StatusOr<PlanSpace> Create(const JobSpec& job, const ClusterSpec& cluster, const CostSource& source,
                                          CommMode comm, const std::vector<int32_t>& fixed_delta_n, Plan placement);

  const GenomeSpace& genome_space() const { return genome_space_; }
  // Genomes whose b and s divide tokens_per_iteration.
  int64_t size() const;
  // Of every kind, recompute mode, b and s: layers balanced with the memory that the ΔN leaves, and evenly split; ΔN
  // none, ceil(2 D_k / t), and as much of that as lowers the bound.
  std::vector<Genome> Seeds() const;
  // All functions refer to this space, which must outlive the problem. `parallel_for` may be empty.
  SearchProblem Problem(const ParallelFor& parallel_for = {}) const;

  Fitness Evaluate(const Genome& genome) const;
  // Least iteration time of any genome that begins so (see SearchProblem); INT64_MAX when b and s do not divide
  // tokens_per_iteration.
  int64_t LowerBoundNs(std::span<const int32_t> genes) const;
  // Least of all genomes.
  int64_t LowerBoundNs() const;
  // Least at one mode, b and s (indices) of any layers, any schedule kind and any ΔN, also others than a fixed one.
  // REQUIRES: Divides(micro_batch, sequence).
  int64_t LowerBoundAtNs(int32_t mode, int32_t micro_batch, int32_t sequence) const {
    return PointAt(modes_[mode], micro_batch, sequence)->least_ns;
  }
  // A guess at the space's best without any simulation: the least bound of candidates with balanced layers and ΔN that
  // hides the crossings as far as memory allows. nullopt when none of them fits.
  struct Guess {
    int64_t iteration_ns = 0;
    Candidate candidate;
  };
  std::optional<Guess> Quick() const;
  // 0 unless memory rules all genomes out, which it does in closed form: least in flight is least of everything. Then
  // by how much the tightest stage exceeds its capacity with evenly split layers and the least ΔN, at the most frugal
  // b, s and recompute mode.
  int64_t LeastExcessBytes() const;
  // Lowers ΔN, the largest first, then moves layers to stages that have room, then recomputes more, until the memory of
  // every stage suffices or nothing is left to do.
  void Repair(Genome& genome) const;

  Candidate CandidateOf(const Genome& genome) const;
  bool Divides(int32_t micro_batch, int32_t sequence) const {
    return PointAt(modes_.front(), micro_batch, sequence).has_value();
  }
  std::vector<int32_t> EvenLayers() const;
  // REQUIRES of all below: Divides(candidate.micro_batch, candidate.sequence); recompute is one of modes().
  // The split with the least largest stage time under the candidate's ΔN; the even one when the job wants that or none
  // fits.
  std::vector<int32_t> BalancedLayers(const Candidate& candidate) const;
  Plan PlanOf(const Candidate& candidate) const;  // peak_bytes filled in
  PipelineCosts CostsOf(const Candidate& candidate) const;
  SimulationResult Run(const Candidate& candidate) const;
  TightestStage Tightest(const Candidate& candidate) const;
  int64_t BoundNs(const Candidate& candidate) const;
  // Lowers ΔN alone until the candidate fits or nothing is left that could help; whether it fits. From the last stage
  // to the first, each as far as it needs, of the ΔN that bear on it the largest first.
  bool LowerDeltaN(Candidate& candidate) const;

  const JobSpec& job() const { return job_; }
  const Plan& placement() const { return placement_; }
  int32_t stages() const { return static_cast<int32_t>(placement_.stages.size()); }
  int32_t crossings() const { return static_cast<int32_t>(crossing_boundaries_.size()); }
  const std::vector<ScheduleKind>& kinds() const { return kinds_; }
  const std::vector<Recompute>& modes() const { return modes_; }
  bool searches_layers() const { return searches_layers_; }
  bool searches_delta_n() const { return searches_delta_n_; }

 private:
  // What is the same for all candidates of one recompute mode, b and s.
  struct Point {
    PlanParts parts;
    PlanMemoryModel memory;
    std::vector<StageLoad> loads;  // not limited by memory
    int64_t least_ns = 0;          // of any layers and ΔN
  };

  PlanSpace(const JobSpec& job, CommMode comm, Plan placement);

  absl::Status ChooseKinds(const std::vector<int32_t>& fixed_delta_n);
  absl::Status AddPoint(const ClusterSpec& cluster, const CostSource& source, Recompute recompute, int32_t micro_batch,
                        int32_t sequence);
  void MakeGenes();
  // The genes that decide what the costs are but for memory: recompute mode, b, s and layers.
  std::span<const int32_t> WorkOf(const Genome& genome) const;
  std::vector<Fitness> EvaluateAll(std::span<const Genome> genomes, const ParallelFor& parallel_for) const;
  // Sets the fitness of those genomes, all of the same work, whose indices are in `run`.
  void EvaluateAlike(std::span<const Genome> genomes, std::span<const size_t> run, std::vector<Fitness>& fitness) const;
  Plan Skeleton(Recompute recompute, int32_t micro_batch, int32_t sequence) const;
  const std::optional<Point>& PointAt(Recompute recompute, int32_t micro_batch, int32_t sequence) const;
  const Point& PointOf(const Candidate& candidate) const;
  Genome GenomeOf(const Candidate& candidate) const;
  std::vector<int32_t> BoundaryDeltaNOf(const Candidate& candidate) const;
  // Most micro-batches in flight on every stage.
  std::vector<int64_t> InFlightOf(const Candidate& candidate) const;
  // Peak bytes of every stage in closed form: static, with what its messages take, and in-flight activations.
  std::vector<int64_t> PeakBytes(const Candidate& candidate) const;
  std::vector<StageLoad> LoadsOf(const PlanParts& parts) const;
  // Sets `most` of every load.
  void LimitByMemory(const Candidate& candidate, std::vector<StageLoad>& loads) const;
  int64_t PartialBoundNs(const Point& point, std::span<const int32_t> layers) const;
  std::vector<int32_t> HidingDeltaN(const Candidate& candidate) const;
  // With even layers and the least ΔN, and of the kind that has least in flight.
  Candidate FrugalCandidate(Recompute recompute, int32_t micro_batch, int32_t sequence) const;
  // Whether some split of the layers may fit, for this candidate's other choices.
  bool MayFit(const Candidate& candidate) const;
  bool LowerDeltaNFor(Candidate& candidate, int32_t stage, const LayerRange& layers) const;
  bool MoveOneLayer(Candidate& candidate, int32_t tightest_stage) const;
  void AddSeeds(Candidate candidate, std::vector<Genome>& seeds) const;

  JobSpec job_;
  CommMode comm_;
  Plan placement_;  // nothing but who runs what
  std::vector<ScheduleKind> kinds_;
  std::vector<Recompute> modes_;
  bool searches_layers_ = false;
  bool searches_delta_n_ = true;
  std::vector<int32_t> fixed_delta_n_;        // empty, or one per crossing
  std::vector<int32_t> crossing_boundaries_;  // ascending
  std::vector<std::optional<Point>> points_;  // [(mode * b choices + b) * s choices + s]
  GenomeSpace genome_space_;
};

}  // namespace geopipe
