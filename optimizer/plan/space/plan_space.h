// The search space of one placement: its genomes.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "optimizer/model/cluster.h"
#include "optimizer/model/cost_source.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/plan/space/candidate_model.h"
#include "optimizer/plan/space/parallel_for.h"
#include "optimizer/search/genome.h"

namespace geopipe {

// The kind that a search by genome runs for schedules of `kind`: the kind itself, or the closest of those that are
// searched; geopipe for auto.
ScheduleKind SearchedKind(ScheduleKind kind);
// True when that is another kind in place of the job's.
bool IsMadeByRule(const JobSpec& job);

// Genes, in this order: schedule kind, mode, b, s (all choices); the layers of every stage when the job lets
// the search split them (shares; at rest the even split); ΔN of every crossing, unless it is fixed (at rest 0).
class PlanSpace {
 public:
  enum Choice : uint8_t { kKind, kMode, kMicroBatch, kSequence, kChoices };

  // Creates the space as CandidateModel::Create. `fixed_delta_n`: empty, or one number for all crossings, or one per
  // crossing; then ΔN is not part of the genome. InvalidArgument, too, for a fixed ΔN of the wrong length or for a
  // schedule that has none.
  static absl::StatusOr<PlanSpace> Create(const JobSpec& job, const ClusterSpec& cluster, const CostSource& source,
                                          CommMode comm, const std::vector<int32_t>& fixed_delta_n, Plan placement);

  const CandidateModel& model() const { return model_; }
  const std::vector<ScheduleKind>& kinds() const { return kinds_.searched; }
  bool searches_delta_n() const { return kinds_.searches_delta_n; }

  const GenomeSpace& genome_space() const { return genome_space_; }
  // Genomes whose b and s divide tokens_per_iteration.
  int64_t size() const;
  Candidate CandidateOf(const Genome& genome) const;
  // Seeds of every kind, mode, b and s: layers balanced within the memory that the ΔN leaves, and evenly split; ΔN
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
  // Least of all genomes, including those that there would be with the other ZeRO stages.
  int64_t LowerBoundOfZeroStagesNs() const;
  // Lowers ΔN, the largest first, then moves layers to stages that have room, then takes the next modes, until the
  // memory of every stage suffices or no step is left.
  void Repair(Genome& genome) const;

  // A guess at the space's best without any simulation: the least bound of candidates with balanced layers and ΔN that
  // hides the crossings as far as memory allows. nullopt when none of them fits.
  struct Guess {
    int64_t iteration_ns = 0;
    Candidate candidate;
  };
  std::optional<Guess> Quick() const;
  // Estimates the least time of all plans that there may be, including those that no genome describes: the least bound,
  // or less where schedules with several stages on every pipeline rank are estimated to take less.
  int64_t SearchedNs() const;
  // 0 unless memory rules all genomes out, which is known in closed form: the least in flight is the least of
  // everything. Then the bytes by which the tightest stage exceeds its capacity with evenly split layers and the least
  // ΔN, at the most frugal b, s and mode.
  int64_t LeastExcessBytes() const;

 private:
  struct Kinds {
    std::vector<ScheduleKind> searched;
    bool searches_delta_n = true;
    std::vector<int32_t> fixed_delta_n;  // empty, or one per crossing
  };

  PlanSpace(CandidateModel model, Kinds kinds);

  static absl::StatusOr<Kinds> ChooseKinds(const JobSpec& job, size_t crossings,
                                           const std::vector<int32_t>& fixed_delta_n);
  Genome GenomeOf(const Candidate& candidate) const;
  // The genes that decide the costs but for memory: mode, b, s and layers.
  std::span<const int32_t> WorkOf(const Genome& genome) const;
  std::vector<Fitness> EvaluateAll(std::span<const Genome> genomes, const ParallelFor& parallel_for) const;
  // Sets the fitness of those genomes, all of the same work, whose indices are in `run`.
  void EvaluateAlike(std::span<const Genome> genomes, std::span<const size_t> run, std::vector<Fitness>& fitness) const;
  // A candidate with even layers and the least ΔN.
  Candidate FrugalCandidate(ScheduleKind kind, const CandidateModel::Point& point) const;
  void AddSeeds(Candidate candidate, std::vector<Genome>& seeds) const;

  CandidateModel model_;
  Kinds kinds_;
  GenomeSpace genome_space_;
};

}  // namespace geopipe
