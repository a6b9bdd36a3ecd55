#include "optimizer/plan/refine/mixed_recompute.h"

#include <absl/status/status.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "optimizer/model/plan/plan_costs.h"
#include "optimizer/model/plan/plan_memory.h"
#include "optimizer/model/transformer.h"
#include "optimizer/plan/evaluation/prediction.h"
#include "optimizer/plan/refine/grid_search.h"
#include "optimizer/plan/refine/retime.h"
#include "optimizer/plan/refine/rule_plan.h"
#include "optimizer/plan/space/choices.h"
#include "optimizer/plan/space/plan_space.h"
#include "optimizer/plan/space/shapes.h"
#include "optimizer/plan/space/site_ranks.h"
#include "optimizer/schedule/lowering.h"
#include "optimizer/search/genetic_search.h"

namespace geopipe {
namespace {

// Limits of timed actions over all tries, and of genomes for each: a fraction of a second.
constexpr int64_t kMixActions = 12'000'000;
constexpr int64_t kMixSurveyActions = 2'000'000;
constexpr int64_t kMixGenomes = 48;
constexpr int64_t kMixGainPpm = 1'000;
// Number of ranks up to which every rank is changed by itself as well; with more only runs of 1, 2, 4, ... from either
// end of a site are. Also the most numbers of first ranks that are tried.
constexpr int32_t kFewRanks = 8;

class Mixer {
 public:
  Mixer(const PlanRequest& request, const CostSource& source, int64_t best_ns, int64_t actions)
      : request_(request),
        source_(source),
        modes_(RecomputeModes(request.job)),
        best_ns_(best_ns),
        actions_left_(actions) {}

  // Mixes at the shape of the best plan so far, for as long as that helps.
  absl::Status MixBest(const PlanResult& result) {
    plan_is_best_ = true;
    GP_RETURN_IF_ERROR(MixFirst(result.plan, result.schedule));
    for (bool improved = true; improved && !Ended();) {
      improved = false;
      for (const std::vector<Recompute>& modes : Neighbours()) {
        if (Ended()) {
          break;
        }
        GP_ASSIGN_OR_RETURN(improved, Try(modes));
        if (improved) {
          break;
        }
      }
    }
    return absl::OkStatus();
  }

  // Mixes the first ranks with the others at a shape whose bound leaves room.
  absl::Status MixAtShape(const Shape& shape) {
    const JobSpec job = JobOf(request_.job, shape);
    GP_ASSIGN_OR_RETURN(Plan placement, PlaceBySpeed(job, request_.cluster, source_, shape.sites));
    GP_ASSIGN_OR_RETURN(const PlanSpace space,
                        PlanSpace::Create(job, request_.cluster, source_, request_.comm, {}, std::move(placement)));
    const CandidateModel& model = space.model();
    if (model.stages() < 2 || space.SearchedNs() >= WorthNs()) {
      return absl::OkStatus();
    }
    const std::optional<PlanSpace::Guess> guess = space.Quick();
    if (!guess.has_value()) {
      return absl::OkStatus();
    }
    plan_is_best_ = false;
    return MixFirst(model.PlanOf(guess->candidate), model.ScheduleOf(guess->candidate));
  }

  Refinement Take() { return std::move(found_); }

 private:
  // Tries the cheapest modes, and modes of the first ranks, at the shape, b, s and ZeRO stage of `start`.
  absl::Status MixFirst(Plan start, const Schedule& schedule) {
    if (Ended()) {
      return absl::OkStatus();
    }
    plan_ = std::move(start);
    schedule_ = DropCommunication(schedule);
    tried_.clear();
    pinned_ = request_;
    pinned_.job = JobOf(request_.job, ShapeOfPlan(plan_));
    pinned_.job.search.micro_batch_size = {plan_.micro_batch_size};
    pinned_.job.search.sequence_length = {plan_.sequence_length};
    pinned_.job.parallelism.zero_stage = plan_.zero_stage;
    pinned_.job.parallelism.recompute = plan_.pipeline_ranks.front().recompute;
    GP_ASSIGN_OR_RETURN(const std::vector<Recompute> fitting, CheapestThatFit());
    GP_RETURN_IF_ERROR(Try(fitting).status());
    for (const std::vector<Recompute>& modes : Prefixes()) {
      if (Ended()) {
        break;
      }
      GP_RETURN_IF_ERROR(Try(modes).status());
    }
    return absl::OkStatus();
  }

  bool Ended() {
    found_.stopped_early = found_.stopped_early || (request_.should_stop && request_.should_stop());
    return actions_left_ <= 0 || found_.stopped_early;
  }
  int64_t WorthNs() const { return best_ns_ - best_ns_ / 1'000'000 * kMixGainPpm; }

  // The cheapest mode that fits on every rank, under the schedule of the plan.
  absl::StatusOr<std::vector<Recompute>> CheapestThatFit() const {
    std::vector<Recompute> cheapest = RecomputeOfRanks(plan_);
    std::vector<bool> fits(cheapest.size(), false);
    for (const Recompute mode : modes_) {
      Plan plan = plan_;
      plan.SetRecompute(mode);
      GP_ASSIGN_OR_RETURN(PipelineCosts costs, CostsOfPlan(pinned_.job, pinned_.cluster, source_, plan));
      GP_ASSIGN_OR_RETURN(const PlanPrediction prediction,
                          PredictSchedule(pinned_.job, plan, std::move(costs), schedule_));
      for (size_t rank = 0; rank < cheapest.size(); ++rank) {
        if (!fits[rank] && prediction.peak_bytes[rank] <= plan.pipeline_ranks[rank].capacity_bytes) {
          fits[rank] = true;
          cheapest[rank] = mode;
        }
      }
    }
    return cheapest;
  }

  // Mixes in which the first ranks, which have more micro-batches in flight, recompute more than the others.
  std::vector<std::vector<Recompute>> Prefixes() const {
    std::vector<std::vector<Recompute>> prefixes;
    const auto ranks = static_cast<int32_t>(plan_.pipeline_ranks.size());
    const int32_t step = (ranks + kFewRanks - 1) / kFewRanks;
    for (size_t more = 1; more < modes_.size(); ++more) {
      for (size_t less = 0; less < more; ++less) {
        for (int32_t first = step; first < ranks; first += step) {
          std::vector<Recompute>& prefix = prefixes.emplace_back(static_cast<size_t>(ranks), modes_[less]);
          std::fill(prefix.begin(), prefix.begin() + first, modes_[more]);
        }
      }
    }
    return prefixes;
  }

  // Neighbours of the best mix so far.
  std::vector<std::vector<Recompute>> Neighbours() const {
    std::vector<std::vector<Recompute>> neighbours;
    const std::vector<Recompute> own = RecomputeOfRanks(plan_);
    const auto ranks = static_cast<int32_t>(own.size());
    const auto change = [&](int32_t first, int32_t end) {
      for (const Recompute mode : modes_) {
        std::vector<Recompute> changed = own;
        std::fill(changed.begin() + first, changed.begin() + end, mode);
        neighbours.push_back(std::move(changed));
      }
    };
    for (int32_t first = 0, end = 0; first < ranks; first = end) {
      while (end < ranks && plan_.pipeline_ranks[end].site == plan_.pipeline_ranks[first].site) {
        ++end;
      }
      change(first, end);
      for (int32_t length = 1; length < end - first; length *= 2) {
        change(first, first + length);
        change(end - length, end);
      }
    }
    for (int32_t rank = 0; ranks <= kFewRanks && rank < ranks; ++rank) {
      change(rank, rank + 1);
    }
    return neighbours;
  }

  // Tries a mix; true when it is shorter.
  absl::StatusOr<bool> Try(const std::vector<Recompute>& modes) {
    Plan plan = plan_;
    for (size_t rank = 0; rank < modes.size(); ++rank) {
      plan.pipeline_ranks[rank].recompute = modes[rank];
    }
    if (plan.SameRecompute().has_value() || !tried_.insert(modes).second) {
      return false;
    }
    const int64_t before_ns = best_ns_;
    if (plan_is_best_) {
      GP_RETURN_IF_ERROR(TryAsItIs(plan));
    }
    if (plan.StagesPerRank() > 1) {
      const std::vector<LayerRange> layers = SplitLayers(pinned_.job.model, plan.grid.pipeline);
      plan.stages.clear();
      for (int32_t rank = 0; rank < plan.grid.pipeline; ++rank) {
        plan.stages.push_back({.pipeline_rank = rank, .layers = layers[rank]});
      }
      plan.delta_n.assign(plan.Crossings().size(), 0);
    }
    const ScheduleKind kind = pinned_.job.search.schedule;
    if (kind == ScheduleKind::kAuto || RowOf(kind).searched) {
      GP_RETURN_IF_ERROR(TryGenomes(plan));
    }
    if (kind == ScheduleKind::kAuto) {
      GP_ASSIGN_OR_RETURN(Refinement made, RefineSchedule(pinned_, source_, plan, best_ns_, RefineEffort::kSurvey));
      Note(std::move(made));
    } else if (!RowOf(kind).searched) {
      absl::StatusOr<Refinement> made = PlanByRule(pinned_, source_, plan);
      if (made.ok()) {
        Note(*std::move(made));
      }
    }
    return best_ns_ < before_ns;
  }

  // The mix with the best plan's layers and schedule, which the searches below need not come upon.
  absl::Status TryAsItIs(const Plan& plan) {
    GP_ASSIGN_OR_RETURN(RefinedPlan timed, Retime(pinned_, source_, plan, schedule_));
    Refinement made{.better = {}, .evaluations = 1, .stopped_early = false, .rejected = {}};
    if (timed.prediction.fits) {
      made.better = std::move(timed);
    }
    Note(std::move(made));
    return absl::OkStatus();
  }

  absl::Status TryGenomes(const Plan& placement) {
    if (pinned_.job.parallelism.stages_per_rank > 1) {
      return absl::OkStatus();
    }
    GP_ASSIGN_OR_RETURN(const PlanSpace space,
                        PlanSpace::Create(pinned_.job, pinned_.cluster, source_, pinned_.comm, {}, placement));
    if (space.LeastExcessBytes() > 0 || space.LowerBoundNs() >= WorthNs()) {
      return absl::OkStatus();
    }
    const std::optional<PlanSpace::Guess> guess = space.Quick();
    if (!guess.has_value() || guess->iteration_ns >= WorthNs()) {
      return absl::OkStatus();
    }
    const SearchOutcome outcome =
        GeneticSearch(space.Problem(pinned_.parallel_for), {.seed = pinned_.job.search.seed,
                                                            .max_evaluations = kMixGenomes,
                                                            .beat_ns = WorthNs(),
                                                            .should_stop = pinned_.should_stop});
    Refinement made{.better = {}, .evaluations = outcome.evaluations, .stopped_early = false, .rejected = {}};
    if (!outcome.evaluated.empty() && outcome.evaluated.front().fitness.feasible) {
      const Candidate candidate = space.CandidateOf(outcome.evaluated.front().genome);
      RefinedPlan& plan = made.better.emplace(RefinedPlan{space.model().PlanOf(candidate), {}});
      GP_ASSIGN_OR_RETURN(plan.prediction,
                          PredictPlan(space.model().job(), plan.plan, space.model().CostsOf(candidate)));
    }
    Note(std::move(made));
    return absl::OkStatus();
  }

  void Note(Refinement made) {
    actions_left_ -= (1 + made.evaluations) * 3 * std::ssize(plan_.stages) * plan_.micro_batches;
    found_.evaluations += made.evaluations;
    if (!made.better.has_value() || made.better->prediction.prediction.iteration_ns > WorthNs()) {
      return;
    }
    best_ns_ = made.better->prediction.prediction.iteration_ns;
    plan_ = made.better->plan;
    schedule_ = DropCommunication(made.better->prediction.schedule);
    plan_is_best_ = true;
    found_.better = std::move(made.better);
  }

  const PlanRequest& request_;
  const CostSource& source_;
  std::vector<Recompute> modes_;
  // These are of the shape at hand:
  PlanRequest pinned_;
  Plan plan_;                  // the best so far; or one by rule, not of the job's kind perhaps, until one is better
  Schedule schedule_;          // its
  bool plan_is_best_ = false;  // else there is a better one of another shape
  int64_t best_ns_ = 0;
  int64_t actions_left_ = 0;
  std::set<std::vector<Recompute>> tried_;
  Refinement found_;
};

// True when the request wants the modes of ranks to be mixed.
bool MayMix(const PlanRequest& request) {
  return request.refine && request.method == SearchMethod::kGenetic && request.comm == CommMode::kNonBlocking &&
         request.fixed_delta_n.empty() && !request.job.parallelism.recompute.has_value();
}

}  // namespace

absl::StatusOr<Refinement> MixRecompute(const PlanRequest& request, const CostSource& source,
                                        const PlanResult& result) {
  if (!MayMix(request) || result.plan.grid.pipeline < 2) {
    return Refinement{};
  }
  Mixer mixer(request, source, result.prediction.iteration_ns, request.refine_fully ? kMixActions : kMixSurveyActions);
  GP_RETURN_IF_ERROR(mixer.MixBest(result));
  return mixer.Take();
}

absl::StatusOr<Refinement> MixRecomputeAt(const PlanRequest& request, const CostSource& source,
                                          std::span<const Shape> shapes, int64_t iteration_ns) {
  if (!MayMix(request)) {
    return Refinement{};
  }
  Mixer mixer(request, source, iteration_ns, kMixSurveyActions);
  for (const Shape& shape : shapes) {
    GP_RETURN_IF_ERROR(mixer.MixAtShape(shape));
  }
  return mixer.Take();
}

}  // namespace geopipe
