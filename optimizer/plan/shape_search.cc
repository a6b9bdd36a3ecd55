#include "optimizer/plan/shape_search.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "optimizer/plan/placement.h"
#include "optimizer/search/exhaustive_search.h"
#include "optimizer/search/genetic_search.h"

namespace geopipe {
namespace {

constexpr int64_t kImpossible = std::numeric_limits<int64_t>::max();
// What is left of the job's evaluations for shapes beyond the first, at least.
constexpr int64_t kLeastEvaluations = 64;
// Of many sites: orders that local search begins with, and shapes that are searched at last.
constexpr size_t kImprovedOrders = 3;
constexpr size_t kSearchedShapes = 8;

// A shape that can be placed, and what is known of it without any simulation.
struct Ranked {
  int64_t rank_ns = 0;
  Shape shape;
  std::optional<Candidate> candidate;  // Quick's
};

class ShapeSearch {
 public:
  ShapeSearch(const PlanRequest& request, const CostSource& source) : request_(request), source_(source) {}

  absl::StatusOr<ShapeFound> Run() {
    const std::vector<SiteOrder> orders = CandidateSiteOrders(request_.job, request_.cluster);
    const bool tries_all = TriesAllOrders(request_.job, request_.cluster);
    std::vector<Ranked> ranked = RankOrders(orders, !tries_all);
    if (ranked.empty()) {
      return first_error_;
    }
    found_.most_frugal = MostFrugal(ranked);
    if (!tries_all) {
      ranked = Improve(std::move(ranked));
    }
    for (const Ranked& next : ranked) {
      if (found_.stopped_early || (tries_all && next.rank_ns >= best_ns_)) {
        break;  // in the order of bounds no later one is better either; among equals the earlier order stays
      }
      GP_RETURN_IF_ERROR(SearchOne(next.shape));
    }
    return std::move(found_);
  }

 private:
  bool Stopped() { return request_.should_stop && request_.should_stop(); }

  absl::StatusOr<PlanSpace> MakeSpace(const JobSpec& job) const {
    GP_ASSIGN_OR_RETURN(Placement placement, PlaceStages(job, request_.cluster, job.placement.sites));
    return PlanSpace::Create(job, request_.cluster, source_, request_.comm, request_.fixed_delta_n,
                             std::move(placement));
  }

  static void SortByRank(std::vector<Ranked>& ranked) {
    std::stable_sort(ranked.begin(), ranked.end(),
                     [](const Ranked& a, const Ranked& b) { return a.rank_ns < b.rank_ns; });
  }

  // A shape with its rank and the number of its genomes, or why it cannot be made.
  struct Made {
    absl::Status status;
    Ranked ranked;
    int64_t genomes = 0;
  };

  Made Rank(const Shape& shape, bool quick) const {
    const absl::StatusOr<PlanSpace> space = MakeSpace(JobOf(request_.job, shape));
    if (!space.ok()) {
      return {.status = space.status(), .ranked = {}, .genomes = 0};
    }
    Made made{absl::OkStatus(), {space->LowerBoundNs(), shape, std::nullopt}, space->size()};
    if (quick) {
      std::optional<PlanSpace::Guess> guess = space->Quick();
      made.ranked.rank_ns = guess.has_value() ? guess->iteration_ns : kImpossible;
      if (guess.has_value()) {
        made.ranked.candidate = std::move(guess->candidate);
      }
    }
    return made;
  }

  // All shapes of the orders that can be placed, by their lower bound or by Quick. Counts their genomes.
  std::vector<Ranked> RankOrders(const std::vector<SiteOrder>& orders, bool quick) {
    std::vector<Ranked> ranked;
    for (const SiteOrder& order : orders) {
      const std::vector<Shape> shapes = ShapesOf(request_.job, request_.cluster, order);
      std::vector<Made> made(shapes.size());
      const auto rank = [&](int64_t i) { made[i] = Rank(shapes[i], quick); };
      if (request_.parallel_for && shapes.size() > 1) {
        request_.parallel_for(std::ssize(shapes), rank);
      } else {
        for (int64_t i = 0; i < std::ssize(shapes); ++i) {
          rank(i);
        }
      }
      for (Made& one : made) {
        if (one.status.ok()) {
          found_.space_size = SaturatingSum(found_.space_size, one.genomes);
          ranked.push_back(std::move(one.ranked));
        } else if (first_error_.ok()) {
          first_error_ = one.status;
        }
      }
      if (!ranked.empty() && Stopped()) {
        break;
      }
    }
    SortByRank(ranked);
    return ranked;
  }

  static Shape MostFrugal(const std::vector<Ranked>& ranked) {
    const auto frugal = [](const Ranked& r) {
      return std::tuple(r.shape.tensor, r.shape.data, r.shape.pipeline == 0, r.shape.sites.size());
    };
    return std::max_element(ranked.begin(), ranked.end(),
                            [&](const Ranked& a, const Ranked& b) { return frugal(a) < frugal(b); })
        ->shape;
  }

  // Local search over orders from the best of `ranked`; then the best shapes of all.
  std::vector<Ranked> Improve(std::vector<Ranked> ranked) {
    std::vector<SiteOrder> improved;
    for (size_t start = 0; start < std::min(kImprovedOrders, ranked.size()) && !Stopped(); ++start) {
      const Ranked& from = ranked[start];
      if (!from.candidate.has_value()) {
        continue;
      }
      const JobSpec probe = ProbeOf(from);
      const auto cost_ns = [&](const SiteOrder& order) {
        JobSpec job = probe;
        job.placement.sites = order;
        const absl::StatusOr<PlanSpace> space = MakeSpace(job);
        const std::optional<PlanSpace::Guess> guess = space.ok() ? space->Quick() : std::nullopt;
        return guess.has_value() ? guess->iteration_ns : kImpossible;
      };
      SiteOrder order = ImproveOrder(request_.cluster, from.shape.sites, cost_ns, [this] { return Stopped(); });
      if (std::find(improved.begin(), improved.end(), order) == improved.end()) {
        improved.push_back(std::move(order));
      }
    }
    for (Ranked& entry : RankOrders(improved, true)) {
      ranked.push_back(std::move(entry));
    }
    SortByRank(ranked);
    ranked.erase(
        std::unique(ranked.begin(), ranked.end(), [](const Ranked& a, const Ranked& b) { return a.shape == b.shape; }),
        ranked.end());
    ranked.resize(std::min(ranked.size(), kSearchedShapes));
    return ranked;
  }

  // The job with the one choice that went best with a shape.
  JobSpec ProbeOf(const Ranked& from) const {
    JobSpec probe = JobOf(request_.job, from.shape);
    probe.search.micro_batch_size = {request_.job.search.micro_batch_size[from.candidate->micro_batch]};
    probe.search.sequence_length = {request_.job.search.sequence_length[from.candidate->sequence]};
    probe.parallelism.recompute = from.candidate->recompute;
    probe.search.schedule = std::string(ScheduleKindName(from.candidate->schedule));
    return probe;
  }

  absl::Status SearchOne(const Shape& shape) {
    GP_ASSIGN_OR_RETURN(PlanSpace made, MakeSpace(JobOf(request_.job, shape)));
    auto space = std::make_unique<PlanSpace>(std::move(made));
    GP_ASSIGN_OR_RETURN(SearchOutcome outcome, SearchSpace(*space));
    found_.evaluations += outcome.evaluations;
    found_.stopped_early = outcome.stopped_early;
    for (const int64_t best_ns : outcome.best_so_far_ns) {
      found_.best_so_far_ns.push_back(std::min(best_ns, best_ns_));
    }
    const bool feasible = !outcome.evaluated.empty() && outcome.evaluated.front().fitness.feasible;
    if (feasible && outcome.evaluated.front().fitness.iteration_ns < best_ns_) {
      best_ns_ = outcome.evaluated.front().fitness.iteration_ns;
      found_.space = std::move(space);
      found_.outcome = std::move(outcome);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<SearchOutcome> SearchSpace(const PlanSpace& space) const {
    const SearchProblem problem = space.Problem(request_.parallel_for);
    if (request_.method == SearchMethod::kExhaustive) {
      ExhaustiveOptions options;
      options.should_stop = request_.should_stop;
      return ExhaustiveSearch(problem, options);
    }
    GeneticOptions options;
    options.seed = request_.job.search.seed;
    options.max_evaluations = std::max(found_.evaluations == 0 ? 1 : kLeastEvaluations,
                                       request_.job.search.max_evaluations - found_.evaluations);
    options.beat_ns = best_ns_;
    options.should_stop = request_.should_stop;
    return GeneticSearch(problem, options);
  }

  const PlanRequest& request_;
  const CostSource& source_;
  absl::Status first_error_;
  int64_t best_ns_ = kImpossible;
  ShapeFound found_;
};

}  // namespace

absl::StatusOr<ShapeFound> SearchShapes(const PlanRequest& request, const CostSource& source) {
  return ShapeSearch(request, source).Run();
}

}  // namespace geopipe
