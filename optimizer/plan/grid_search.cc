#include "optimizer/plan/grid_search.h"

#include <absl/status/status.h>

#include <algorithm>
#include <limits>
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
#include "optimizer/model/plan_costs.h"
#include "optimizer/model/plan_memory.h"
#include "optimizer/model/transformer.h"
#include "optimizer/plan/rule_plan.h"
#include "optimizer/plan/schedule_points.h"
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
// A small problem: layers, micro-batches of a layer, and grids that may be looked at.
constexpr int64_t kMaxLayers = 64;
constexpr int64_t kMaxWork = 4'096;
constexpr int64_t kMaxGrids = 200'000;
// What the search of all of them may cost: timed actions, splits bounded, genomes evaluated.
constexpr int64_t kActions = 300'000'000;
constexpr int64_t kSplits = 1'000'000;
constexpr int64_t kGenomes = 20'000;
constexpr int64_t kGenomesOfGrid = 1'024;
// Timed actions in the search of one schedule, of a balanced split and of every other.
constexpr int64_t kFirstActions = 30'000;
constexpr int64_t kEachActions = 300'000;
// The same to prove that none is short enough.
constexpr int64_t kProofActions = 60'000;
// More splits of one grid are not all looked at: only those within one layer of the balanced one.
constexpr int64_t kMaxSplits = 1'000;
// What a rule that times its actions to place W does for each, in timed actions.
constexpr int64_t kActionsOfTimedRule = 32;
constexpr size_t kMaxAdvances = 512;  // choices of ΔN
constexpr int64_t kGainPpm = 1'000;
constexpr double kLongestMessageS = 1e4;

struct Grid {
  int64_t bound_ns = 0;
  SiteOrder sites;
  std::vector<int64_t> ranks;  // on each of them
  Degrees degrees;
  MemoryMode mode = {};
  int64_t micro_batch_size = 0;
  int64_t sequence_length = 0;
  StageChoice stages = {};
};

// A grid with layers.
struct Split {
  int64_t bound_ns = 0;
  int64_t number = 0;  // of all of them, in the order in which they came up
  size_t grid = 0;
  std::shared_ptr<const Plan> plan;  // with other layers
  std::vector<int32_t> layers;       // of its stages
};

int64_t Whole(const PartCosts& part) { return part.forward_ns + part.input_grad_ns + part.weight_grad_ns; }

class GridSearch {
 public:
  GridSearch(const PlanRequest& request, const CostSource& source, int64_t iteration_ns)
      : request_(request), source_(source), kind_(request.job.search.schedule), best_ns_(iteration_ns) {}

  absl::StatusOr<Refinement> Run() {
    if (!IsSmall()) {
      return Refinement{};
    }
    AddGrids();
    if (too_many_) {
      return Refinement{};
    }
    std::ranges::stable_sort(grids_, {}, &Grid::bound_ns);
    GP_RETURN_IF_ERROR(TryBalanced());
    if (!RowOf(kind_).searched) {
      GP_RETURN_IF_ERROR(TrySplits());
    }
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

  bool Stopped() {
    found_.stopped_early = found_.stopped_early || (request_.should_stop && request_.should_stop());
    return found_.stopped_early;
  }
  bool Ended() { return actions_left_ <= 0 || Stopped(); }

  // A plan must be shorter to take the place of the best so far.
  int64_t WorthNs() const { return best_ns_ == kNever ? kNever : best_ns_ - best_ns_ / 1'000'000 * kGainPpm; }

  // --- All grids by their bound ----------------------------------------------------------------------------------

  void AddGrids() {
    OrderClasses classes(request_.cluster);
    const bool is_open = source_.profile() == nullptr && request_.job.placement.sites.empty();
    for (const SiteOrder& order : CandidateSiteOrders(request_.job, request_.cluster)) {
      if (is_open && !classes.IsNew(order)) {
        continue;
      }
      for (const Degrees& degrees : DegreesOf(request_.job, request_.cluster, order)) {
        const JobSpec job =
            JobOf(request_.job, {order, degrees.tensor, request_.job.parallelism.pipeline, degrees.data});
        std::vector<int64_t> slots;
        for (const std::string& name : order) {
          const SiteSpec* site = request_.cluster.FindSite(name);
          const absl::StatusOr<int64_t> count = site == nullptr ? absl::StatusOr<int64_t>(0) : StageSlots(job, *site);
          slots.push_back(count.ok() ? *count : 0);
        }
        if (*std::ranges::min_element(slots) > 0 && Linked(request_.cluster, order)) {
          AddModes(job, degrees, slots);
        }
        if (too_many_ || Stopped()) {
          return;
        }
      }
    }
  }

  void AddModes(const JobSpec& job, const Degrees& degrees, const std::vector<int64_t>& slots) {
    const std::vector<StageChoice> choices = StageChoices(job, std::ssize(slots));
    for (const MemoryMode& mode : MemoryModes(job)) {
      for (const int64_t b : job.search.micro_batch_size) {
        for (const int64_t s : job.search.sequence_length) {
          const std::vector<ModelCosts> costs =
              MicroBatchesOf(job, b, s) == 0 ? std::vector<ModelCosts>{} : CostsOnSites(job, mode, b, s);
          for (size_t i = 0; i < choices.size() && !costs.empty(); ++i) {
            AddRanks(job, slots, costs, {0, job.placement.sites, {}, degrees, mode, b, s, choices[i]});
          }
        }
      }
    }
  }

  // On each of the job's sites. Empty where a device figure is missing.
  std::vector<ModelCosts> CostsOnSites(const JobSpec& job, const MemoryMode& mode, int64_t b, int64_t s) const {
    const ExecutionConfig config = MakeExecutionConfig(job, b, s, mode.recompute, mode.zero_stage);
    std::vector<ModelCosts> of_sites;
    for (const std::string& name : job.placement.sites) {
      const std::optional<ModelCosts> costs =
          FastestCosts(job.model, source_, config, *request_.cluster.FindSite(name));
      if (!costs.has_value()) {
        return {};
      }
      of_sites.push_back(*costs);
    }
    return of_sites;
  }

  void AddRanks(const JobSpec& job, const std::vector<int64_t>& slots, const std::vector<ModelCosts>& costs,
                Grid grid) {
    const int64_t asked = job.parallelism.pipeline;
    const int64_t most = std::min(job.model.num_hidden_layers / grid.stages.per_rank,
                                  std::accumulate(slots.begin(), slots.end(), int64_t{0}));
    const int64_t micro_batches = MicroBatchesOf(job, grid.micro_batch_size, grid.sequence_length);
    const int64_t links_ns = LinksNs(job, grid, micro_batches);
    if (links_ns >= WorthNs()) {
      return;
    }
    for (int64_t ranks = std::max(asked, std::ssize(slots)); ranks <= (asked > 0 ? std::min(asked, most) : most);
         ++ranks) {
      if (FastestBoundNs(slots, costs, ranks, micro_batches) >= WorthNs()) {
        continue;
      }
      if (SplitCount(ranks, std::ssize(slots), kMaxGrids) > kMaxGrids) {
        too_many_ = true;
        return;
      }
      ForEachSplit(ranks, slots, [&](const std::vector<int64_t>& of_sites) {
        grid.ranks = of_sites;
        grid.bound_ns = std::max(links_ns, BoundNs(grid, costs, micro_batches));
        if (grid.bound_ns < WorthNs() && !too_many_) {
          grids_.push_back(grid);
          too_many_ = std::ssize(grids_) > kMaxGrids;
        }
      });
    }
  }

  // How long the busiest link between its sites is busy at least, one way: with a message of every micro-batch for each
  // stage of a rank.
  int64_t LinksNs(const JobSpec& job, const Grid& grid, int64_t micro_batches) const {
    const ExecutionConfig config = MakeExecutionConfig(job, grid.micro_batch_size, grid.sequence_length,
                                                       grid.mode.recompute, grid.mode.zero_stage);
    const double bytes =
        static_cast<double>(BoundaryMessageBytes(job.model, config)) * static_cast<double>(grid.degrees.data);
    double message_s = 0;
    for (size_t i = 1; i < grid.sites.size(); ++i) {
      const LinkSpec& link = *request_.cluster.FindLink(grid.sites[i - 1], grid.sites[i]);
      message_s = link.inside() ? message_s : std::max(message_s, bytes / link.bandwidth_bytes_per_s);
    }
    return micro_batches * grid.stages.per_rank * SecondsToNs(std::min(message_s, kLongestMessageS));
  }

  // What the layers take at least on so many ranks, those where a layer takes the least time.
  int64_t FastestBoundNs(const std::vector<int64_t>& slots, const std::vector<ModelCosts>& costs, int64_t ranks,
                         int64_t micro_batches) const {
    std::vector<StageLoad> loads;
    for (size_t i = 0; i < slots.size(); ++i) {
      const StageLoad load{.fixed_ns = 0, .layer_ns = micro_batches * Whole(costs[i].block), .most = 0};
      loads.insert(loads.end(), static_cast<size_t>(std::min(slots[i], ranks)), load);
    }
    std::ranges::stable_sort(loads, {}, &StageLoad::layer_ns);
    loads.resize(static_cast<size_t>(ranks));
    return LeastStageTimeNs(loads, request_.job.model.num_hidden_layers);
  }

  // All the work of a rank at the best split of the layers, after the first micro-batch has come through one layer of
  // each rank before it.
  int64_t BoundNs(const Grid& grid, const std::vector<ModelCosts>& costs, int64_t micro_batches) const {
    const int64_t ranks = std::accumulate(grid.ranks.begin(), grid.ranks.end(), int64_t{0});
    std::vector<StageLoad> loads;
    int64_t way_ns = 0;
    for (size_t i = 0; i < grid.sites.size(); ++i) {
      way_ns += i == 0 ? 0 : request_.cluster.FindLink(grid.sites[i - 1], grid.sites[i])->latency_ns;
      for (int64_t k = 0; k < grid.ranks[i]; ++k) {
        const auto rank = std::ssize(loads);
        const bool has_head = rank == (grid.stages.layout == StageLayout::kFolded ? 0 : ranks - 1);
        const int64_t fixed_ns = (rank == 0 ? Whole(costs[i].embedding) : 0) + (has_head ? Whole(costs[i].head) : 0);
        loads.push_back({.fixed_ns = way_ns + micro_batches * fixed_ns,
                         .layer_ns = micro_batches * Whole(costs[i].block),
                         .most = 0});
        way_ns += (rank == 0 ? costs[i].embedding.forward_ns : 0) + costs[i].block.forward_ns;
      }
    }
    return LeastStageTimeNs(loads, request_.job.model.num_hidden_layers);
  }

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

  // With one stage on every rank and no b and s.
  Plan PlacementOf(const Grid& grid) const {
    const int64_t ranks = std::accumulate(grid.ranks.begin(), grid.ranks.end(), int64_t{0});
    const std::vector<LayerRange> layers = SplitLayers(request_.job.model, ranks);
    Plan plan;
    plan.grid.tensor = static_cast<int32_t>(grid.degrees.tensor);
    plan.grid.data = static_cast<int32_t>(grid.degrees.data);
    for (size_t i = 0; i < grid.sites.size(); ++i) {
      PlaceOnSite(*request_.cluster.FindSite(grid.sites[i]), grid.ranks[i], layers, plan);
    }
    return plan;
  }

  // The grid's points with the layers that balance it (schedule_points.h): one, or none where a link back is missing.
  absl::StatusOr<std::vector<SchedulePoint>> PointsOf(const Grid& grid, const PlanRequest& request) const {
    Plan plan = PlacementOf(grid);
    plan.comm = request_.comm;
    if (grid.stages.layout == StageLayout::kLinear) {
      Plan sized = plan;
      sized.micro_batch_size = grid.micro_batch_size;
      sized.sequence_length = grid.sequence_length;
      sized.micro_batches = MicroBatchesOf(request.job, grid.micro_batch_size, grid.sequence_length);
      sized.recompute = grid.mode.recompute;
      sized.zero_stage = grid.mode.zero_stage;
      sized.delta_n.assign(sized.Crossings().size(), 0);
      plan.delta_n = sized.delta_n;
      if (request.job.parallelism.layers == LayerSplit::kAuto) {
        GP_ASSIGN_OR_RETURN(const PlanParts parts, PartsOfPlan(request.job, request_.cluster, source_, sized));
        const int64_t layers = request.job.model.num_hidden_layers;
        const auto balanced = BalanceLayers(LoadsOf(parts, layers), layers);
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

  // Branch and bound where it gets through.
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

  // Layers and ΔN of a kind that is searched by genome.
  absl::Status TryGenomes(const Grid& grid, const PlanRequest& request) {
    GP_ASSIGN_OR_RETURN(const PlanSpace space, PlanSpace::Create(request.job, request_.cluster, source_, request_.comm,
                                                                 {}, PlacementOf(grid)));
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
    const auto values = static_cast<size_t>(request_.job.search.max_delta_n) + 1;
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
    if (request_.job.parallelism.layers == LayerSplit::kEven) {
      return absl::OkStatus();
    }
    // The least bound first, of grids that are not looked into yet and of splits.
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
        GP_RETURN_IF_ERROR(AddSplits(next++, splits));
        for (size_t end = known + 1; end <= splits.size(); ++end) {
          splits[end - 1].number = number_++;
          std::push_heap(splits.begin(), splits.begin() + static_cast<std::ptrdiff_t>(end), is_later);
        }
        continue;
      }
      std::pop_heap(splits.begin(), splits.end(), is_later);
      const Split split = std::move(splits.back());
      splits.pop_back();
      Plan plan = *split.plan;
      SetLayers(split.layers, plan);
      const PlanRequest request = RequestOf(grids_[split.grid]);
      GP_ASSIGN_OR_RETURN(SchedulePoint point, SchedulePointOf(request, source_, std::move(plan)));
      GP_RETURN_IF_ERROR(TryPoint(request, std::move(point), kEachActions));
    }
    return absl::OkStatus();
  }

  absl::Status AddSplits(size_t index, std::vector<Split>& splits) {
    const Grid& grid = grids_[index];
    const PlanRequest request = RequestOf(grid);
    GP_ASSIGN_OR_RETURN(const std::vector<SchedulePoint> points, PointsOf(grid, request));
    if (points.empty()) {
      return absl::OkStatus();
    }
    const auto plan = std::make_shared<const Plan>(points.front().plan);
    const Plan& balanced = *plan;
    GP_ASSIGN_OR_RETURN(const PlanParts parts, PartsOfPlan(request.job, request_.cluster, source_, balanced));
    const PlanMemoryModel memory(request.job, parts.config, parts.shape.placement);
    const std::vector<int64_t> one(balanced.stages.size(), 1);
    const int64_t layers = request.job.model.num_hidden_layers;
    const LayerLimits limits(balanced, parts, memory, layers);
    const std::vector<int64_t> most = limits.Most();
    if (std::accumulate(most.begin(), most.end(), int64_t{0}) < layers || *std::ranges::min_element(most) == 0) {
      return absl::OkStatus();
    }
    const auto add = [&](const std::vector<int64_t>& split) {
      if (limits.WorkNs(split) >= WorthNs() || !limits.HasRoom(split) || --splits_left_ < 0) {
        return;
      }
      const std::vector<int32_t> counts(split.begin(), split.end());
      const PipelineCosts costs = ComposeCosts(parts, memory, RangesOf(counts), one, request_.comm);
      if (LowerBoundNs(costs) >= WorthNs()) {
        return;
      }
      // Nothing: one micro-batch on every stage is too much for a device.
      const std::optional<int64_t> bound_ns = MemoryLowerBoundNs(costs);
      if (bound_ns.has_value() && *bound_ns < WorthNs()) {
        splits.push_back({.bound_ns = *bound_ns, .grid = index, .plan = plan, .layers = counts});
      }
    };
    if (SplitCount(layers, std::ssize(most), kMaxSplits) <= kMaxSplits) {
      ForEachSplit(layers, most, add);
      return absl::OkStatus();
    }
    std::vector<int64_t> moved;
    for (const StagePlan& stage : balanced.stages) {
      moved.push_back(stage.layers.count());
    }
    add(moved);
    for (size_t from = 0; from < moved.size(); ++from) {
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
  bool too_many_ = false;
  int64_t actions_left_ = kActions;
  int64_t splits_left_ = kSplits;
  int64_t number_ = 0;
  int64_t genomes_left_ = kGenomes;
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
