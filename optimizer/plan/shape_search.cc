#include "optimizer/plan/shape_search.h"

#include <absl/status/status.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/execution_config.h"
#include "optimizer/model/pipeline_costs.h"
#include "optimizer/plan/bound/cluster_bound.h"
#include "optimizer/plan/space/choices.h"
#include "optimizer/plan/space/placement.h"
#include "optimizer/plan/space/site_ranks.h"
#include "optimizer/plan/space/site_walks.h"
#include "optimizer/search/exhaustive_search.h"
#include "optimizer/search/genetic_search.h"

namespace geopipe {
namespace {

constexpr int64_t kImpossible = std::numeric_limits<int64_t>::max();
// Least evaluations with which a shape beyond the first is worth trying.
constexpr int64_t kMinEvaluations = 64;
// Many sites: orders that local search begins with, shapes that are searched at last, and most of these with the same
// degrees (of equal sites every permutation is as good).
constexpr size_t kImprovedOrders = 3;
constexpr size_t kSearchedShapes = 8;
constexpr int kOrdersOfDegrees = 2;
// Limits on degrees and numbers of sites to try, by the ratio of their bound to the least, and walks for each.
constexpr double kPromisingRatio = 1.2;
constexpr size_t kPromisingChains = 16;
constexpr size_t kWalks = 4;
// Many unlike sites: most walks with degrees and ranks that are tried.
constexpr size_t kPacedShapes = 48;

// A shape that can be placed and may fit, and its figures without any simulation.
struct Ranked {
  int64_t rank_ns = 0;
  int64_t bound_ns = 0;
  int64_t searched_ns = 0;  // about the least with a schedule made to measure
  Shape shape;
  std::optional<Candidate> candidate;  // Quick's
};

class ShapeSearch {
 public:
  ShapeSearch(const PlanRequest& request, const CostSource& source)
      : request_(request), source_(source), classes_(request.cluster) {}

  absl::StatusOr<ShapeFound> Run() {
    const std::vector<SiteOrder> orders = CandidateSiteOrders(request_.job, request_.cluster);
    const bool tries_all = TriesAllOrders(request_.job, request_.cluster);
    if (!tries_all && request_.method == SearchMethod::kExhaustive) {
      return absl::InvalidArgumentError(
          fmt::format("placement.sites is auto, and {} sites have more orders than "
                      "--search exhaustive tries (those of "
                      "{} sites); list placement.sites, or use --search genetic",
                      request_.cluster.SiteNames().size(), kMaxPermutedSites));
    }
    std::vector<Ranked> ranked;
    if (!tries_all) {
      ranked = IsUniform(request_.cluster) ? RankPromising() : RankPaced();
    }
    if (ranked.empty()) {
      ranked = RankOrders(orders, !tries_all);
    }
    if (least_excess_bytes_ == kImpossible) {
      return first_error_;
    }
    if (!tries_all) {
      ranked = Improve(std::move(ranked));
    }
    const size_t searched = tries_all ? ranked.size() : std::min(ranked.size(), kSearchedShapes);
    GP_RETURN_IF_ERROR(SearchInTurn(std::span(ranked).first(searched), tries_all));
    NoteClose(std::move(ranked));
    if (found_.space == nullptr && found_.unproven > 0 && !found_.stopped_early) {
      return too_large_;
    }
    return std::move(found_);
  }

 private:
  bool Stopped() { return request_.should_stop && request_.should_stop(); }

  absl::StatusOr<PlanSpace> MakeSpace(const JobSpec& job) const {
    GP_ASSIGN_OR_RETURN(Plan placement,
                        PlaceBySpeed(job, request_.cluster, source_, job.placement.sites, request_.site_ranks));
    if (!request_.rank_recompute.empty()) {
      GP_CHECK(request_.rank_recompute.size() == placement.pipeline_ranks.size());
      for (size_t rank = 0; rank < placement.pipeline_ranks.size(); ++rank) {
        placement.pipeline_ranks[rank].recompute = request_.rank_recompute[rank];
      }
    }
    return PlanSpace::Create(job, request_.cluster, source_, request_.comm, request_.fixed_delta_n,
                             std::move(placement));
  }

  static void SortByRank(std::vector<Ranked>& ranked) {
    std::stable_sort(ranked.begin(), ranked.end(),
                     [](const Ranked& a, const Ranked& b) { return a.rank_ns < b.rank_ns; });
  }

  // Searches the shapes one after the other, as long as one may beat the best.
  absl::Status SearchInTurn(std::span<const Ranked> ranked, bool tries_all) {
    for (size_t i = 0; i < ranked.size() && !found_.stopped_early; ++i) {
      const auto in_the_race = [&](const Ranked& next) { return !tries_all || next.rank_ns < best_ns_; };
      // No later shape is better either, in the order of bounds; among equals the earlier order stays.
      const bool spent = request_.method == SearchMethod::kGenetic && found_.space != nullptr && Left() <= 0;
      if (spent || !in_the_race(ranked[i])) {
        NoteSlower(ranked.subspan(i));
        break;
      }
      const bool is_last = std::none_of(ranked.begin() + static_cast<std::ptrdiff_t>(i) + 1, ranked.end(), in_the_race);
      GP_RETURN_IF_ERROR(SearchOne(ranked[i], is_last));
    }
    // A bound below the plan's time says nothing.
    std::erase_if(others_, [this](const OtherShape& other) { return other.at_least && other.iteration_ns < best_ns_; });
    const auto best = std::min_element(others_.begin(), others_.end(), [](const OtherShape& a, const OtherShape& b) {
      return std::tie(a.iteration_ns, a.at_least) < std::tie(b.iteration_ns, b.at_least);
    });
    if (best != others_.end()) {
      found_.other = *best;
    }
    return absl::OkStatus();
  }

  // A shape with its rank and the number of its genomes, or the reason why it cannot be made. Without a rank if it
  // exceeds its memory.
  struct Made {
    absl::Status status;
    int64_t excess_bytes = 0;
    Ranked ranked;
    int64_t genomes = 0;
  };

  // Ranks a shape with one ZeRO stage for all that the job leaves open, the first that fits: those that hold more do
  // not fit then, and those that hold less take no less time but for their update.
  Made Rank(const Shape& shape, bool quick) const {
    JobSpec job = JobOf(request_.job, shape);
    const std::vector<int32_t> zero_stages = ZeroStages(job);
    Made made;
    for (const int32_t zero_stage : {1, 2, 3}) {
      if (zero_stages.size() > 1) {
        job.parallelism.zero_stage = zero_stage;
      }
      Made here = RankAs(job, shape, quick);
      if (zero_stage == 1 || here.excess_bytes < made.excess_bytes) {
        made = std::move(here);
      }
      if (zero_stages.size() == 1 || !made.status.ok() || made.excess_bytes == 0) {
        break;
      }
    }
    made.genomes = SaturatingProduct(made.genomes, std::ssize(zero_stages));
    return made;
  }

  Made RankAs(const JobSpec& job, const Shape& shape, bool quick) const {
    const absl::StatusOr<PlanSpace> space = MakeSpace(job);
    if (!space.ok()) {
      return {.status = space.status(), .excess_bytes = 0, .ranked = {}, .genomes = 0};
    }
    Made made;
    made.excess_bytes = space->LeastExcessBytes();
    made.genomes = space->size();
    made.ranked.shape = shape;
    if (made.excess_bytes > 0) {
      return made;
    }
    const bool stands_for_others = job.parallelism.zero_stage != request_.job.parallelism.zero_stage;
    made.ranked.bound_ns = stands_for_others ? space->LowerBoundOfZeroStagesNs() : space->LowerBoundNs();
    made.ranked.rank_ns = made.ranked.bound_ns;
    made.ranked.searched_ns = space->SearchedNs();
    if (quick) {
      std::optional<PlanSpace::Guess> guess = space->Quick();
      made.ranked.rank_ns = guess.has_value() ? guess->iteration_ns : kImpossible;
      if (guess.has_value()) {
        made.ranked.candidate = std::move(guess->candidate);
      }
    }
    return made;
  }

  // True when orders that cost the same are as good as each other.
  bool IsOpen() const { return source_.profile() == nullptr && request_.job.placement.sites.empty(); }
  bool IsNew(const SiteOrder& order) {
    return ranked_orders_.insert(order).second && (!IsOpen() || classes_.IsNew(order));
  }

  // Ranks the shapes that can be placed and may fit, by their lower bound or Quick's. Counts the genomes of all that
  // can be placed. Skips shapes that were ranked before.
  void RankShapes(std::vector<Shape> shapes, bool quick, std::vector<Ranked>& ranked) {
    std::erase_if(shapes, [&](const Shape& shape) {
      return !ranked_shapes_.insert({shape.sites, {shape.tensor, shape.pipeline, shape.data}}).second;
    });
    std::vector<Made> made(shapes.size());
    InParallel(request_.parallel_for, std::ssize(shapes), [&](int64_t i) { made[i] = Rank(shapes[i], quick); });
    for (Made& one : made) {
      Take(std::move(one), ranked);
    }
  }

  // Ranks all shapes of the orders, by their lower bound or by Quick. Skips orders that were ranked before.
  std::vector<Ranked> RankOrders(const std::vector<SiteOrder>& orders, bool quick) {
    std::vector<Ranked> ranked;
    for (const SiteOrder& order : orders) {
      if (!IsNew(order)) {
        continue;
      }
      RankShapes(ShapesOf(request_.job, request_.cluster, order), quick, ranked);
      // The search must look at all shapes before it may say that none fits.
      if (least_excess_bytes_ == 0 && Stopped()) {
        break;
      }
    }
    SortByRank(ranked);
    return ranked;
  }

  // Ranks, for many sites, the degrees and numbers of sites with the least bounds, on the shortest walks over that many
  // sites.
  std::vector<Ranked> RankPromising() {
    std::vector<Ranked> ranked;
    std::vector<ChainBound> chains = ChainBounds(request_, source_, kPromisingRatio);
    chains.resize(std::min(chains.size(), kPromisingChains));
    for (const ChainBound& chain : chains) {
      const JobSpec job = JobOf(request_.job, {.sites = {},
                                               .tensor = chain.degrees.tensor,
                                               .pipeline = request_.job.parallelism.pipeline,
                                               .data = chain.degrees.data});
      std::set<SiteOrder> walks;
      for (const SiteOrder& walk : ShortestWalks(job, request_.cluster, chain.sites)) {
        if (walks.size() == kWalks || (least_excess_bytes_ == 0 && Stopped())) {
          break;
        }
        const SiteOrder order = IsOpen() ? classes_.FirstLike(walk) : walk;
        if (walks.insert(order).second) {
          RankShapes(ShapesOf(job, request_.cluster, order), true, ranked);
        }
      }
    }
    SortByRank(ranked);
    return ranked;
  }

  // Ranks, for many unlike sites, walks with links and devices of about the same pace, with the degrees that are
  // estimated to be best for them.
  std::vector<Ranked> RankPaced() {
    SiteOrder all;
    for (const SiteSpec& site : request_.cluster.sites) {
      all.push_back(site.name);
    }
    const std::vector<Degrees> degrees = DegreesOf(request_.job, request_.cluster, all, /*all_sites=*/false);
    std::vector<std::vector<PacedWalk>> walks(degrees.size());
    InParallel(request_.parallel_for, std::ssize(degrees), [&](int64_t i) {
      const Shape shape{{}, degrees[i].tensor, request_.job.parallelism.pipeline, degrees[i].data};
      walks[i] = FindPacedWalks(JobOf(request_.job, shape), request_.cluster, source_, kWalks);
    });
    std::vector<std::pair<int64_t, Shape>> estimated;
    for (size_t i = 0; i < walks.size(); ++i) {
      for (const PacedWalk& walk : walks[i]) {
        const SiteOrder order = IsOpen() ? classes_.FirstLike(walk.sites) : walk.sites;
        estimated.push_back({walk.iteration_ns, {order, degrees[i].tensor, walk.ranks, degrees[i].data}});
      }
    }
    std::ranges::stable_sort(estimated, {}, &std::pair<int64_t, Shape>::first);
    std::vector<Ranked> ranked;
    for (size_t i = 0; i < estimated.size() && ranked.size() < kPacedShapes; ++i) {
      if (least_excess_bytes_ == 0 && Stopped()) {
        break;
      }
      const Shape& shape = estimated[i].second;
      std::vector<Shape> shapes{shape};
      const int64_t most = request_.job.model.num_hidden_layers / MinStagesPerRank(request_.job);
      for (const int64_t more : {std::min(most, shape.pipeline + (shape.pipeline + 7) / 8), int64_t{0}}) {
        shapes.push_back(shape);
        shapes.back().pipeline = more;
      }
      shapes.resize(request_.job.parallelism.pipeline > 0 ? 1 : shapes.size());
      RankShapes(std::move(shapes), true, ranked);
    }
    SortByRank(ranked);
    return ranked;
  }

  void Take(Made made, std::vector<Ranked>& ranked) {
    if (!made.status.ok()) {
      first_error_ = first_error_.ok() ? made.status : first_error_;
      return;
    }
    found_.space_size = SaturatingSum(found_.space_size, made.genomes);
    if (made.excess_bytes < least_excess_bytes_) {
      least_excess_bytes_ = made.excess_bytes;
      found_.most_frugal = made.ranked.shape;
    }
    if (made.excess_bytes == 0) {
      ranked.push_back(std::move(made.ranked));
    }
  }

  // Time for which the slowest link of an order is busy, one way, with the messages of the job's one choice.
  int64_t LinksNs(const JobSpec& job, const SiteOrder& order) const {
    const ExecutionConfig config =
        MakeExecutionConfig(job, job.search.micro_batch_size.front(), job.search.sequence_length.front(),
                            *job.parallelism.recompute, ZeroStages(job).front());
    const double bytes = static_cast<double>(BoundaryMessageBytes(job.model, config)) *
                         static_cast<double>(job.training.tokens_per_iteration) / static_cast<double>(config.tokens());
    double seconds = 0;
    for (size_t i = 1; i < order.size(); ++i) {
      const LinkSpec& link = *request_.cluster.FindLink(order[i - 1], order[i]);
      seconds = link.inside() ? seconds : std::max(seconds, bytes / link.bandwidth_bytes_per_s);
    }
    return SecondsToNs(std::min(seconds, 1e6));
  }

  // Quick's time of the job's one choice on these sites.
  int64_t QuickNs(JobSpec job, const SiteOrder& order) const {
    job.placement.sites = order;
    const absl::StatusOr<PlanSpace> space = MakeSpace(job);
    const std::optional<PlanSpace::Guess> guess = space.ok() ? space->Quick() : std::nullopt;
    return guess.has_value() ? guess->iteration_ns : kImpossible;
  }

  // Searches locally over orders from the best of `ranked`; then ranks those shapes, too.
  std::vector<Ranked> Improve(std::vector<Ranked> ranked) {
    std::vector<Shape> starts;  // pipeline as the job says
    for (const Ranked& from : ranked) {
      Shape start = from.shape;
      start.pipeline = request_.job.parallelism.pipeline;
      if (starts.size() == kImprovedOrders || Stopped()) {
        break;
      }
      if (!from.candidate.has_value() || std::ranges::find(starts, start) != starts.end()) {
        continue;
      }
      starts.push_back(start);
    }
    for (Shape& start : starts) {
      const auto from = std::ranges::find_if(ranked, [&](const Ranked& each) {
        return each.candidate.has_value() && each.shape.sites == start.sites && each.shape.tensor == start.tensor &&
               each.shape.data == start.data;
      });
      const JobSpec probe = ProbeOf(*from);
      OrderClasses classes(request_.cluster);
      int64_t least_ns = kImpossible;
      const auto cost_ns = [&](const SiteOrder& order) {
        if ((IsOpen() && !classes.IsNew(order)) || LinksNs(probe, order) >= least_ns) {
          return kImpossible;
        }
        const int64_t order_ns = QuickNs(probe, order);
        least_ns = std::min(least_ns, order_ns);
        return order_ns;
      };
      start.sites = ImproveOrder(request_.cluster, start.sites, cost_ns, [this] { return Stopped(); });
    }
    for (Shape& start : starts) {
      start.sites = IsOpen() ? classes_.FirstLike(start.sites) : start.sites;
      RankShapes(ShapesOf(JobOf(request_.job, start), request_.cluster, start.sites), true, ranked);
    }
    SortByRank(ranked);
    std::map<std::tuple<int64_t, int64_t, int64_t>, int> orders;
    std::erase_if(ranked, [&](const Ranked& r) {
      return ++orders[{r.shape.tensor, r.shape.pipeline, r.shape.data}] > kOrdersOfDegrees;
    });
    return ranked;
  }

  // The job with the one choice that was best for a shape.
  JobSpec ProbeOf(const Ranked& from) const {
    JobSpec probe = JobOf(request_.job, from.shape);
    probe.search.micro_batch_size = {request_.job.search.micro_batch_size[from.candidate->micro_batch]};
    probe.search.sequence_length = {request_.job.search.sequence_length[from.candidate->sequence]};
    probe.parallelism.recompute = from.candidate->mode.recompute;
    probe.parallelism.zero_stage = from.candidate->mode.zero_stage;
    probe.search.schedule = from.candidate->schedule;
    return probe;
  }

  int64_t Left() const { return request_.job.search.max_evaluations - found_.evaluations; }

  // Evaluations that the next shape may spend.
  int64_t ShareOfLeft(bool is_last) const {
    const int64_t share = is_last ? Left() : std::max(Left() / 2, std::min(Left(), kMinEvaluations));
    return found_.evaluations == 0 ? std::max<int64_t>(1, share)
                                   : std::max(share, found_.space == nullptr ? kMinEvaluations : 1);
  }

  Shape SpelledOut(Shape shape) const {
    const absl::StatusOr<Plan> placement =
        PlaceBySpeed(JobOf(request_.job, shape), request_.cluster, source_, shape.sites, request_.site_ranks);
    shape.pipeline = placement.ok() ? std::ssize(placement->stages) : shape.pipeline;
    return shape;
  }

  void NoteClose(std::vector<Ranked> ranked) {
    if (found_.space == nullptr) {
      return;
    }
    std::ranges::stable_sort(ranked, {}, &Ranked::searched_ns);
    const double most_ns = ShapeFound::kCloseRatio * static_cast<double>(best_ns_);
    for (const Ranked& each : ranked) {
      Shape shape = SpelledOut(each.shape);
      if (static_cast<double>(each.searched_ns) > most_ns || found_.close.size() >= ShapeFound::kMaxClose) {
        return;
      }
      if (shape != found_.shape) {
        found_.close.push_back(std::move(shape));
      }
    }
  }

  void Note(OtherShape other) { others_.push_back(std::move(other)); }

  // Notes, of the shapes that are not searched, the one with the least bound that rules it out.
  void NoteSlower(std::span<const Ranked> ranked) {
    const auto slower = [this](const Ranked& r) { return r.bound_ns >= best_ns_; };
    const auto least = std::min_element(ranked.begin(), ranked.end(), [&](const Ranked& a, const Ranked& b) {
      return std::tuple(!slower(a), a.bound_ns) < std::tuple(!slower(b), b.bound_ns);
    });
    if (least != ranked.end() && slower(*least)) {
      Note({SpelledOut(least->shape), least->bound_ns, true});
    }
  }

  absl::Status SearchOne(const Ranked& ranked, bool is_last) {
    GP_ASSIGN_OR_RETURN(PlanSpace made, MakeSpace(JobOf(request_.job, ranked.shape)));
    auto space = std::make_unique<PlanSpace>(std::move(made));
    absl::StatusOr<SearchOutcome> searched = SearchSpace(*space, is_last);
    Shape shape = SpelledOut(ranked.shape);
    if (absl::IsInvalidArgument(searched.status())) {
      too_large_ = searched.status();
      ++found_.unproven;
      return absl::OkStatus();
    }
    GP_ASSIGN_OR_RETURN(SearchOutcome outcome, std::move(searched));
    found_.evaluations += outcome.evaluations;
    found_.stopped_early = outcome.stopped_early;
    for (const int64_t best_ns : outcome.best_so_far_ns) {
      found_.best_so_far_ns.push_back(std::min(best_ns, best_ns_));
    }
    const bool feasible = !outcome.evaluated.empty() && outcome.evaluated.front().fitness.feasible;
    const int64_t iteration_ns = feasible ? outcome.evaluated.front().fitness.iteration_ns : ranked.bound_ns;
    if (request_.progress) {
      const int64_t best_ns = feasible ? std::min(best_ns_, iteration_ns) : best_ns_;
      // A kind that stands in for the job's does not tell what the job's takes.
      request_.progress(found_.evaluations, best_ns == kImpossible || IsMadeByRule(request_.job) ? 0 : best_ns);
    }
    if (!feasible || iteration_ns >= best_ns_) {
      Note({std::move(shape), iteration_ns, !feasible});
      return absl::OkStatus();
    }
    if (found_.space != nullptr) {
      Note({found_.shape, best_ns_, false});
    }
    best_ns_ = iteration_ns;
    found_.space = std::move(space);
    found_.shape = std::move(shape);
    found_.outcome = std::move(outcome);
    return absl::OkStatus();
  }

  absl::StatusOr<SearchOutcome> SearchSpace(const PlanSpace& space, bool is_last) const {
    const SearchProblem problem = space.Problem(request_.parallel_for);
    if (request_.method == SearchMethod::kExhaustive) {
      ExhaustiveOptions options;
      options.beat_ns = best_ns_;
      options.should_stop = request_.should_stop;
      return ExhaustiveSearch(problem, options);
    }
    GeneticOptions options;
    options.seed = request_.job.search.seed;
    options.max_evaluations = ShareOfLeft(is_last);
    options.beat_ns = best_ns_;
    options.should_stop = request_.should_stop;
    return GeneticSearch(problem, options);
  }

  const PlanRequest& request_;
  const CostSource& source_;
  absl::Status first_error_;
  absl::Status too_large_;
  std::set<SiteOrder> ranked_orders_;
  std::set<std::pair<SiteOrder, std::array<int64_t, 3>>> ranked_shapes_;
  OrderClasses classes_;
  int64_t least_excess_bytes_ = kImpossible;  // of all shapes; kImpossible: none can be placed
  int64_t best_ns_ = kImpossible;
  std::vector<OtherShape> others_;
  ShapeFound found_;
};

}  // namespace

absl::StatusOr<ShapeFound> SearchShapes(const PlanRequest& request, const CostSource& source) {
  return ShapeSearch(request, source).Run();
}

}  // namespace geopipe
