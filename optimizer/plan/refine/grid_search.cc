#include "optimizer/plan/refine/grid_search.h"

#include <absl/status/status.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/plan/plan_costs.h"
#include "optimizer/model/plan/plan_memory.h"
#include "optimizer/model/transformer.h"
#include "optimizer/plan/evaluation/schedule_bound.h"
#include "optimizer/plan/refine/grids.h"
#include "optimizer/plan/refine/recompute_mixes.h"
#include "optimizer/plan/refine/rule_plan.h"
#include "optimizer/plan/refine/schedule_points.h"
#include "optimizer/plan/space/choices.h"
#include "optimizer/plan/space/fastest_costs.h"
#include "optimizer/plan/space/layer_limits.h"
#include "optimizer/plan/space/layer_split.h"
#include "optimizer/plan/space/placement.h"
#include "optimizer/plan/space/plan_space.h"
#include "optimizer/plan/space/splits.h"
#include "optimizer/scheduler/relaxed_bound.h"
#include "optimizer/search/exhaustive_search.h"
#include "optimizer/search/genetic_search.h"
#include "optimizer/simulator/lower_bound.h"

namespace geopipe {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
// Limits of a small problem: layers, and micro-batches times layers.
constexpr int64_t kMaxLayers = 64;
constexpr int64_t kMaxWork = 4'096;
// Limits of the search of all grids: timed actions, splits bounded, genomes evaluated.
constexpr int64_t kActions = 300'000'000;
constexpr int64_t kSplits = 1'000'000;
constexpr int64_t kGenomes = 20'000;
constexpr int64_t kGenomesOfGrid = 1'024;
// The same, at least, for those whose ranks recompute differently.
constexpr int64_t kMixedActions = 60'000'000;
constexpr int64_t kMixedSplits = 200'000;
constexpr int64_t kMixes = 200'000;  // and beginnings of them
// Timed actions in the search of one schedule: of a balanced split, and of every other.
constexpr int64_t kFirstActions = 30'000;
constexpr int64_t kEachActions = 300'000;
// The same to prove that none is short enough.
constexpr int64_t kProofActions = 60'000;
// Most splits of one grid that are all looked at; of more, only those within one layer of the balanced one.
constexpr int64_t kMaxSplits = 1'000;
// Cost, in timed actions, of each action of a rule that times its actions to place W.
constexpr int64_t kActionsOfTimedRule = 32;
constexpr size_t kMaxAdvances = 512;  // choices of ΔN
constexpr int64_t kGainPpm = 1'000;

// A grid with the parts that its splits share.
struct SplitGrid {
  struct Mode {
    Recompute recompute = Recompute::kNone;
    PlanParts parts;  // with that on all ranks
    PlanMemoryModel memory;
  };

  PlanRequest request;
  Plan plan;                // with some layers, and the first mode
  std::vector<Mode> modes;  // that its ranks may have

  // Costs with one micro-batch in flight, with each mode.
  std::vector<PipelineCosts> CostsOf(std::span<const int32_t> layers) const {
    std::vector<PipelineCosts> costs;
    const std::vector<int64_t> one(layers.size(), 1);
    for (const Mode& mode : modes) {
      costs.push_back(ComposeCosts(mode.parts, mode.memory, RangesOf(layers), one, plan.comm));
    }
    return costs;
  }

  RecomputeMixes MixesOf(std::span<const int32_t> layers) const {
    const std::vector<int64_t> all(layers.size(), plan.micro_batches);
    const PipelineCosts full =
        ComposeCosts(modes.front().parts, modes.front().memory, RangesOf(layers), all, plan.comm);
    const MemoryCosts& memory = *full.memory;
    std::vector<int64_t> bytes = memory.static_bytes;  // with all micro-batches in flight
    for (size_t stage = 0; stage < layers.size(); ++stage) {
      bytes[full.shape.placement[stage]] +=
          plan.micro_batches * std::max(memory.activation_bytes[stage], memory.wgrad_bytes[stage]);
    }
    std::vector<bool> binds;
    for (size_t rank = 0; rank < bytes.size(); ++rank) {
      binds.push_back(bytes[rank] > memory.capacity_bytes[rank]);
    }
    return {CostsOf(layers), std::move(binds)};
  }
};

struct Split {
  int64_t bound_ns = 0;
  int64_t number = 0;  // of all of them, in the order in which they came up
  std::shared_ptr<const SplitGrid> grid;
  std::vector<int32_t> layers;  // of its stages
};

class GridSearch {
 public:
  GridSearch(const PlanRequest& request, const CostSource& source, int64_t iteration_ns)
      : request_(request), source_(source), kind_(request.job.search.schedule), best_ns_(iteration_ns) {}

  absl::StatusOr<Refinement> Run() {
    if (!IsSmall()) {
      return Refinement{};
    }
    if (!AddGrids(request_)) {
      found_.cut_short = true;
      return std::move(found_);
    }
    GP_RETURN_IF_ERROR(TryBalanced());
    if (!RowOf(kind_).searched) {
      GP_RETURN_IF_ERROR(TrySplits());
    }
    const std::vector<Recompute> modes = RecomputeModes(request_.job);
    if (modes.size() > 1) {
      NoteLimits();
      GP_RETURN_IF_ERROR(TryMixes(modes.front()));
    }
    NoteLimits();
    return std::move(found_);
  }

 private:
  bool IsSmall() const {
    const JobSpec& job = request_.job;
    const auto least = [](const std::vector<int64_t>& values) { return *std::ranges::min_element(values); };
    const int64_t micro_batches =
        job.training.tokens_per_iteration / least(job.search.micro_batch_size) / least(job.search.sequence_length);
    return request_.refine && request_.method == SearchMethod::kGenetic && request_.comm == CommMode::kNonBlocking &&
           request_.fixed_delta_n.empty() && TriesAllOrders(job, request_.cluster) &&
           job.model.num_hidden_layers <= kMaxLayers && micro_batches * job.model.num_hidden_layers <= kMaxWork;
  }

  // Adds the grids; false: there are too many.
  bool AddGrids(const PlanRequest& request) {
    std::optional<std::vector<Grid>> grids = GridsWithin(request, source_, WorthNs(), [this] { return Stopped(); });
    grids_.clear();
    if (!grids.has_value()) {
      return false;
    }
    grids_ = *std::move(grids);
    std::ranges::stable_sort(grids_, {}, &Grid::bound_ns);
    return true;
  }

  // Tries different modes on the ranks. The best plan with the same mode on all rules out most of them. `fastest`
  // stands for all modes where only time counts.
  absl::Status TryMixes(Recompute fastest) {
    PlanRequest request = request_;
    request.job.parallelism.recompute = fastest;
    actions_left_ = std::max(actions_left_, kMixedActions);
    splits_left_ = std::max(splits_left_, kMixedSplits);
    mixes_ = true;
    AddGrids(request);
    return TrySplits();
  }

  bool Stopped() {
    found_.stopped_early = found_.stopped_early || (request_.should_stop && request_.should_stop());
    return found_.stopped_early;
  }
  void NoteLimits() { found_.cut_short |= std::min({actions_left_, splits_left_, genomes_left_, mixes_left_}) <= 0; }
  bool Ended() { return actions_left_ <= 0 || Stopped(); }

  // Iteration time that a plan must beat to replace the best so far.
  int64_t WorthNs() const { return best_ns_ == kNever ? kNever : best_ns_ - best_ns_ / 1'000'000 * kGainPpm; }

  // --- Plans of a grid -------------------------------------------------------------------------------------------

  PlanRequest RequestOf(const Grid& grid) const {
    PlanRequest request = request_;
    request.job =
        JobOf(request_.job, {grid.sites, grid.degrees.tensor, request_.job.parallelism.pipeline, grid.degrees.data});
    request.job.search.micro_batch_size = {grid.micro_batch_size};
    request.job.search.sequence_length = {grid.sequence_length};
    request.job.parallelism.recompute = grid.mode.recompute;
    request.job.parallelism.zero_stage = grid.mode.zero_stage;
    return request;
  }

  // The plan with one stage on every rank and no b and s.
  Plan PlacementOf(const Grid& grid) const {
    const int64_t ranks = std::accumulate(grid.ranks.begin(), grid.ranks.end(), int64_t{0});
    const std::vector<LayerRange> layers = SplitLayers(request_.job.model, ranks);
    Plan plan;
    plan.grid.tensor = static_cast<int32_t>(grid.degrees.tensor);
    plan.grid.data = static_cast<int32_t>(grid.degrees.data);
    for (size_t i = 0; i < grid.sites.size(); ++i) {
      PlaceOnSite(*request_.cluster.FindSite(grid.sites[i]), grid.ranks[i], layers, plan);
    }
    plan.SetRecompute(grid.mode.recompute);
    return plan;
  }

  // The grid's points with the layers that balance it (schedule_points.h): one, or none if a link back is missing.
  absl::StatusOr<std::vector<SchedulePoint>> PointsOf(const Grid& grid, const PlanRequest& request) const {
    Plan plan = PlacementOf(grid);
    plan.comm = request_.comm;
    if (grid.stages.layout == StageLayout::kLinear) {
      Plan sized = plan;
      sized.micro_batch_size = grid.micro_batch_size;
      sized.sequence_length = grid.sequence_length;
      sized.micro_batches = MicroBatchesOf(request.job, grid.micro_batch_size, grid.sequence_length);
      sized.zero_stage = grid.mode.zero_stage;
      sized.delta_n.assign(sized.Crossings().size(), 0);
      plan.delta_n = sized.delta_n;
      if (request.job.parallelism.layers == LayerSplit::kAuto) {
        const absl::StatusOr<PlanParts> parts = PartsOfPlan(request.job, request_.cluster, source_, sized);
        if (absl::IsInvalidArgument(parts.status())) {
          return std::vector<SchedulePoint>{};  // a site lacks a figure that these degrees need
        }
        GP_RETURN_IF_ERROR(parts.status());
        const int64_t layers = request.job.model.num_hidden_layers;
        const auto balanced = BalanceLayers(LoadsOf(*parts, layers), layers);
        GP_CHECK(balanced.has_value());
        SetLayers(*balanced, plan);
      }
    }
    const std::array work{WorkChoice{grid.mode, grid.micro_batch_size, grid.sequence_length}};
    absl::StatusOr<std::vector<SchedulePoint>> points =
        SchedulePoints(request, source_, std::move(plan), kind_, grid.stages, work);
    return absl::IsInvalidArgument(points.status()) ? std::vector<SchedulePoint>{} : std::move(points);
  }

  static void SetLayers(std::span<const int32_t> layers, Plan& plan) {
    const std::vector<LayerRange> ranges = RangesOf(layers);
    for (size_t stage = 0; stage < ranges.size(); ++stage) {
      plan.stages[stage].layers = ranges[stage];
    }
  }

  absl::Status TryBalanced() {
    for (const Grid& grid : grids_) {
      if (grid.bound_ns >= WorthNs()) {
        continue;
      }
      if (Ended()) {
        break;
      }
      const PlanRequest request = RequestOf(grid);
      if (RowOf(kind_).searched) {
        GP_RETURN_IF_ERROR(TryGenomes(grid, request));
        continue;
      }
      GP_ASSIGN_OR_RETURN(std::vector<SchedulePoint> points, PointsOf(grid, request));
      for (SchedulePoint& point : points) {
        GP_RETURN_IF_ERROR(TryPoint(request, std::move(point), kFirstActions));
      }
    }
    return absl::OkStatus();
  }

  // Searches by branch and bound if that gets through, else by genome.
  absl::StatusOr<SearchOutcome> SearchGenomes(const PlanSpace& space, int64_t beat_ns) const {
    const SearchProblem problem = space.Problem(request_.parallel_for);
    const int64_t most = std::min(genomes_left_, kGenomesOfGrid);
    absl::StatusOr<SearchOutcome> exact = ExhaustiveSearch(
        problem,
        {.max_evaluations = most, .whole_space_up_to = 0, .beat_ns = beat_ns, .should_stop = request_.should_stop});
    if (!absl::IsInvalidArgument(exact.status())) {
      return exact;
    }
    return GeneticSearch(problem, {.seed = request_.job.search.seed,
                                   .max_evaluations = most,
                                   .beat_ns = beat_ns,
                                   .should_stop = request_.should_stop});
  }

  // Tries layers and ΔN of a kind that is searched by genome.
  absl::Status TryGenomes(const Grid& grid, const PlanRequest& request) {
    const absl::StatusOr<PlanSpace> made =
        PlanSpace::Create(request.job, request_.cluster, source_, request_.comm, {}, PlacementOf(grid));
    if (absl::IsInvalidArgument(made.status())) {
      return absl::OkStatus();  // a site lacks a figure that these degrees need
    }
    GP_RETURN_IF_ERROR(made.status());
    const PlanSpace& space = *made;
    if (space.LeastExcessBytes() > 0 || space.LowerBoundNs() >= WorthNs() || genomes_left_ <= 0) {
      return absl::OkStatus();
    }
    GP_ASSIGN_OR_RETURN(const SearchOutcome outcome, SearchGenomes(space, WorthNs()));
    genomes_left_ -= outcome.evaluations;
    found_.evaluations += outcome.evaluations;
    if (outcome.evaluated.empty() || !outcome.evaluated.front().fitness.feasible) {
      return absl::OkStatus();
    }
    const Candidate candidate = space.CandidateOf(outcome.evaluated.front().genome);
    RefinedPlan plan{space.model().PlanOf(candidate), {}};
    GP_ASSIGN_OR_RETURN(plan.prediction, PredictPlan(space.model().job(), plan.plan, space.model().CostsOf(candidate)));
    Take({.better = std::move(plan), .evaluations = 0, .stopped_early = false, .rejected = {}});
    return absl::OkStatus();
  }

  absl::Status TryPoint(const PlanRequest& request, SchedulePoint point, int64_t actions) {
    const int64_t worth_ns = WorthNs();
    if (point.lower_bound_ns >= worth_ns) {
      return absl::OkStatus();
    }
    const int64_t per_evaluation = int64_t{3} * point.costs.shape.stages * point.costs.shape.micro_batches;
    Refinement made;
    if (kind_ == ScheduleKind::kAuto) {
      if (best_ns_ != kNever && StatesCanBeSearched(point.costs)) {
        const int64_t known_ns = worth_ns - point.costs.epilogue_ns;
        const RelaxedBound proved = FindRelaxedBound(
            point.costs, {.known_ns = known_ns, .actions = kProofActions, .stop = request_.should_stop});
        actions_left_ -= proved.actions;
        if (proved.bound_ns >= known_ns) {
          return absl::OkStatus();
        }
      }
      GP_ASSIGN_OR_RETURN(
          made, SearchScheduleAt(request, source_, point, worth_ns, std::clamp<int64_t>(actions_left_, 1, actions)));
    } else {
      point.delta_n_choices = Advances(point.plan);
      const int64_t made_by_time = RowOf(kind_).splits_backward ? kActionsOfTimedRule : 1;
      actions_left_ -= std::ssize(point.delta_n_choices) * per_evaluation * made_by_time;
      absl::StatusOr<Refinement> by_rule = PlanByRuleAt(request, std::move(point));
      if (!by_rule.ok()) {
        return absl::OkStatus();  // it is not defined here, does not fit or was stopped
      }
      made = *std::move(by_rule);
    }
    actions_left_ -= kind_ == ScheduleKind::kAuto ? made.evaluations * per_evaluation : 0;
    found_.evaluations += std::exchange(made.evaluations, 0);
    Take(std::move(made));
    return absl::OkStatus();
  }

  // Every ΔN; with many crossings those that are the same at each.
  std::vector<std::vector<int32_t>> Advances(const Plan& plan) const {
    const size_t crossings = plan.delta_n.size();
    if (!RowOf(kind_).uses_delta_n || crossings == 0) {
      return {plan.delta_n};
    }
    const auto values = static_cast<size_t>(MaxDeltaN(request_.job)) + 1;
    size_t count = 1;
    for (size_t i = 0; i < crossings && count <= kMaxAdvances; ++i) {
      count *= values;
    }
    std::vector<std::vector<int32_t>> all;
    if (count > kMaxAdvances) {
      for (size_t value = 0; value < values; ++value) {
        all.emplace_back(crossings, static_cast<int32_t>(value));
      }
      return all;
    }
    for (size_t index = 0; index < count; ++index) {
      std::vector<int32_t>& delta_n = all.emplace_back();
      for (size_t i = 0, left = index; i < crossings; ++i, left /= values) {
        delta_n.push_back(static_cast<int32_t>(left % values));
      }
    }
    return all;
  }

  void Take(Refinement made) {
    if (!made.better.has_value() || made.better->prediction.prediction.iteration_ns >= WorthNs()) {
      return;
    }
    best_ns_ = made.better->prediction.prediction.iteration_ns;
    found_.better = std::move(made.better);
  }

  // --- Every split of the layers ---------------------------------------------------------------------------------

  absl::Status TrySplits() {
    if (request_.job.parallelism.layers == LayerSplit::kEven && !mixes_) {
      return absl::OkStatus();
    }
    // The heap yields the least bound first, of grids that are not looked into yet and of splits.
    std::vector<Split> splits;
    const auto is_later = [](const Split& a, const Split& b) {
      return std::tie(a.bound_ns, a.number) > std::tie(b.bound_ns, b.number);
    };
    for (size_t next = 0; !Ended();) {
      const int64_t grid_ns = next < grids_.size() && splits_left_ > 0 ? grids_[next].bound_ns : kNever;
      const int64_t split_ns = splits.empty() ? kNever : splits.front().bound_ns;
      if (std::min(grid_ns, split_ns) >= WorthNs()) {
        break;
      }
      if (grid_ns <= split_ns) {
        const size_t known = splits.size();
        GP_RETURN_IF_ERROR(AddSplits(grids_[next++], splits));
        for (size_t end = known + 1; end <= splits.size(); ++end) {
          splits[end - 1].number = number_++;
          std::push_heap(splits.begin(), splits.begin() + static_cast<std::ptrdiff_t>(end), is_later);
        }
        continue;
      }
      std::pop_heap(splits.begin(), splits.end(), is_later);
      const Split split = std::move(splits.back());
      splits.pop_back();
      GP_RETURN_IF_ERROR(mixes_ ? TryMixesOf(split) : TrySplit(split, {}));
    }
    return absl::OkStatus();
  }

  // Tries a split. `mix`: the mode of each rank, of the split's; empty: the plan's.
  absl::Status TrySplit(const Split& split, const std::vector<size_t>& mix) {
    Plan plan = split.grid->plan;
    SetLayers(split.layers, plan);
    for (size_t rank = 0; rank < mix.size(); ++rank) {
      plan.pipeline_ranks[rank].recompute = split.grid->modes[mix[rank]].recompute;
    }
    if (RowOf(kind_).searched) {
      return TryAdvances(split.grid->request, std::move(plan));
    }
    GP_ASSIGN_OR_RETURN(SchedulePoint point, SchedulePointOf(split.grid->request, source_, std::move(plan)));
    return TryPoint(split.grid->request, std::move(point), kEachActions);
  }

  absl::Status TryMixesOf(const Split& split) {
    absl::Status status;
    const auto worth_ns = [&] { return !status.ok() || Ended() ? 0 : WorthNs(); };
    split.grid->MixesOf(split.layers).ForEach(worth_ns, mixes_left_, [&](const std::vector<size_t>& mix) {
      status = TrySplit(split, mix);
    });
    return status;
  }

  // Tries every ΔN of a kind that is searched by genome.
  absl::Status TryAdvances(const PlanRequest& request, Plan plan) {
    for (const std::vector<int32_t>& delta_n : Advances(plan)) {
      plan.delta_n = delta_n;
      GP_ASSIGN_OR_RETURN(PipelineCosts costs, CostsOfPlan(request.job, request_.cluster, source_, plan));
      if (ScheduleBoundNs(kind_, costs, BoundaryDeltaN(plan)) >= WorthNs()) {
        continue;
      }
      ++found_.evaluations;
      actions_left_ -= int64_t{3} * costs.shape.stages * costs.shape.micro_batches;
      GP_ASSIGN_OR_RETURN(PlanPrediction prediction, PredictPlan(request.job, plan, std::move(costs)));
      if (prediction.fits) {
        Take({.better = RefinedPlan{plan, std::move(prediction)},
              .evaluations = 0,
              .stopped_early = false,
              .rejected = {}});
      }
    }
    return absl::OkStatus();
  }

  // The parts with the grid's mode, or if modes are mixed with each that ranks may have.
  absl::StatusOr<SplitGrid> SplitGridOf(const Grid& grid, Plan plan) const {
    SplitGrid split_grid{RequestOf(grid), std::move(plan), {}};
    for (const Recompute mode : mixes_ ? RecomputeModes(request_.job) : std::vector{grid.mode.recompute}) {
      Plan with_mode = split_grid.plan;
      with_mode.SetRecompute(mode);
      GP_ASSIGN_OR_RETURN(PlanParts parts, PartsOfPlan(split_grid.request.job, request_.cluster, source_, with_mode));
      PlanMemoryModel memory = parts.MemoryModel(split_grid.request.job);
      split_grid.modes.push_back({mode, std::move(parts), std::move(memory)});
    }
    return split_grid;
  }

  absl::Status AddSplits(const Grid& at, std::vector<Split>& splits) {
    GP_ASSIGN_OR_RETURN(std::vector<SchedulePoint> points, PointsOf(at, RequestOf(at)));
    if (points.empty()) {
      return absl::OkStatus();
    }
    GP_ASSIGN_OR_RETURN(SplitGrid made, SplitGridOf(at, std::move(points.front().plan)));
    const auto grid = std::make_shared<const SplitGrid>(std::move(made));
    const int64_t layers = request_.job.model.num_hidden_layers;
    std::vector<LayerLimits> limits;  // by mode; time is that of the first
    std::vector<int64_t> most(grid->plan.stages.size(), 0);
    for (const SplitGrid::Mode& mode : grid->modes) {
      limits.emplace_back(grid->plan, mode.parts, mode.memory, layers);
      std::ranges::transform(most, limits.back().Most(), most.begin(),
                             [](int64_t a, int64_t b) { return std::max(a, b); });
    }
    if (std::accumulate(most.begin(), most.end(), int64_t{0}) < layers || *std::ranges::min_element(most) == 0) {
      return absl::OkStatus();
    }
    const auto add = [&](const std::vector<int64_t>& split) {
      if (limits.front().WorkNs(split) >= WorthNs() || (!mixes_ && !limits.front().HasRoom(split)) ||
          --splits_left_ < 0) {
        return;
      }
      const std::vector<int32_t> counts(split.begin(), split.end());
      const PipelineCosts costs = grid->CostsOf(counts).front();
      if (LowerBoundNs(costs) >= WorthNs()) {
        return;
      }
      // kNever: one micro-batch on every stage is too much for a device.
      const int64_t bound_ns = mixes_ ? grid->MixesOf(counts).BoundNs() : MemoryLowerBoundNs(costs).value_or(kNever);
      if (bound_ns < WorthNs()) {
        splits.push_back({.bound_ns = bound_ns, .grid = grid, .layers = counts});
      }
    };
    const bool is_even = request_.job.parallelism.layers == LayerSplit::kEven;
    if (!is_even && SplitCount(layers, std::ssize(most), kMaxSplits) <= kMaxSplits) {
      ForEachSplit(layers, most, add);
      return absl::OkStatus();
    }
    std::vector<int64_t> moved;
    for (const StagePlan& stage : grid->plan.stages) {
      moved.push_back(stage.layers.count());
    }
    add(moved);
    for (size_t from = 0; !is_even && from < moved.size(); ++from) {
      for (size_t to = 0; to < moved.size(); ++to) {
        if (from != to && moved[from] > 1) {
          --moved[from];
          ++moved[to];
          add(moved);
          ++moved[from];
          --moved[to];
        }
      }
    }
    return absl::OkStatus();
  }

  const PlanRequest& request_;
  const CostSource& source_;
  const ScheduleKind kind_;
  int64_t best_ns_ = 0;
  int64_t actions_left_ = kActions;
  int64_t splits_left_ = kSplits;
  int64_t number_ = 0;
  int64_t genomes_left_ = kGenomes;
  bool mixes_ = false;  // of modes of recomputation
  int64_t mixes_left_ = kMixes;
  std::vector<Grid> grids_;
  Refinement found_;
};

}  // namespace

absl::StatusOr<Refinement> SearchGrids(const PlanRequest& request, const CostSource& source, int64_t iteration_ns) {
  return GridSearch(request, source, iteration_ns).Run();
}

Shape ShapeOfPlan(const Plan& plan) {
  Shape shape{.sites = {}, .tensor = plan.grid.tensor, .pipeline = plan.grid.pipeline, .data = plan.grid.data};
  for (int32_t rank = 0; rank < plan.grid.pipeline; ++rank) {
    const std::string& site = plan.pipeline_ranks[rank].site;
    if (shape.sites.empty() || shape.sites.back() != site) {
      shape.sites.push_back(site);
      shape.ranks.push_back(0);
    }
    ++shape.ranks.back();
  }
  return shape;
}

}  // namespace geopipe
