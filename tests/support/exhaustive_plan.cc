#include "tests/support/exhaustive_plan.h"

#include <absl/status/statusor.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "optimizer/base/check.h"
#include "optimizer/model/plan/plan_costs.h"
#include "optimizer/model/plan/plan_memory.h"
#include "optimizer/model/transformer.h"
#include "optimizer/plan/evaluation/prediction.h"
#include "optimizer/plan/evaluation/schedule_bound.h"
#include "optimizer/plan/refine/refine_schedule.h"
#include "optimizer/plan/refine/rule_plan.h"
#include "optimizer/plan/refine/schedule_points.h"
#include "optimizer/plan/space/choices.h"
#include "optimizer/plan/space/layer_split.h"
#include "optimizer/plan/space/placement.h"
#include "optimizer/scheduler/relaxed_bound.h"
#include "optimizer/simulator/lower_bound.h"

namespace geopipe::test {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr int64_t kAllSplits = 2'000;

// One grid at one b, s and mode.
struct GridPoint {
  int64_t bound_ns = 0;
  std::vector<size_t> sites;
  std::vector<int64_t> ranks;  // of each of them
  int64_t tensor = 1;
  int64_t data = 1;
  int32_t zero_stage = 0;
  std::vector<Recompute> recompute;  // of each rank
  int64_t micro_batch_size = 0;
  int64_t sequence_length = 0;
  StageChoice stages = {};
};

// Parts of one rank on each site, by the mode that all of them have.
using SiteParts = std::map<Recompute, PlanParts>;

int64_t Whole(const PartCosts& part) { return part.forward_ns + part.input_grad_ns + part.weight_grad_ns; }

// Calls `take` with every list of `count` numbers of at least one and at most `most` each that sum to `sum`.
void ForEachSplit(int64_t sum, std::span<const int64_t> most,
                  const std::function<void(const std::vector<int64_t>&)>& take) {
  std::vector<int64_t> split;
  const std::function<void(int64_t)> extend = [&](int64_t left) {
    const size_t index = split.size();
    if (index == most.size()) {
      if (left == 0) {
        take(split);
      }
      return;
    }
    const auto after = static_cast<int64_t>(most.size() - index) - 1;
    for (int64_t here = 1; here <= std::min(most[index], left - after); ++here) {
      split.push_back(here);
      extend(left - here);
      split.pop_back();
    }
  };
  extend(sum);
}

// Number of splits of `sum` into `count`; kNever where they are too many to count.
int64_t SplitCount(int64_t sum, int64_t count) {
  int64_t splits = 1;
  for (int64_t i = 1; i < count; ++i) {
    splits = splits * (sum - i) / i;
    if (splits > kAllSplits) {
      return kNever;
    }
  }
  return splits;
}

class Exhaustive {
 public:
  Exhaustive(const PlanRequest& request, const ExhaustiveOptions& options)
      : request_(request),
        options_(options),
        job_(JobOnCluster(request.job, request.cluster)),
        source_(job_, request.cluster, nullptr),
        best_ns_(options.beat_ns > 0 ? options.beat_ns : kNever),
        classes_(request.cluster) {}

  ExhaustiveResult Run() {
    // Plans with one mode for all ranks go first: their times leave fewer plans with unlike modes to try.
    for (const bool mixes : {false, true}) {
      mixes_ = mixes;
      classes_ = OrderClasses(request_.cluster);
      points_.clear();
      std::vector<size_t> order;
      AddOrders(order);
      std::ranges::stable_sort(points_, {}, &GridPoint::bound_ns);
      for (const GridPoint& point : points_) {
        if (point.bound_ns >= Limit()) {
          break;
        }
        result_.in_bounds += mixes_ ? 0 : 1;
        Try(point);
      }
    }
    return std::move(result_);
  }

 private:
  // Plans that are not shorter than this are of no interest.
  int64_t Limit() const { return best_ns_ == kNever ? kNever : best_ns_ - best_ns_ / 1'000'000 * options_.margin_ppm; }

  const SiteSpec& Site(size_t index) const { return request_.cluster.sites[index]; }
  std::vector<std::string> Names(const std::vector<size_t>& sites) const {
    std::vector<std::string> names;
    for (const size_t site : sites) {
      names.push_back(Site(site).name);
    }
    return names;
  }

  void AddOrders(std::vector<size_t>& order) {
    const std::vector<std::string>& listed = job_.placement.sites;
    // One order stands for all that cost the same, site by site and link by link.
    if (!order.empty() && (listed.empty() ? classes_.IsNew(Names(order)) : Names(order) == listed)) {
      AddDegrees(order);
    }
    for (size_t next = 0; next < request_.cluster.sites.size(); ++next) {
      const bool is_linked =
          order.empty() || request_.cluster.FindLink(Site(order.back()).name, Site(next).name) != nullptr;
      if (is_linked && !ComesBack(order, next) && std::ranges::find(order, next) == order.end()) {
        order.push_back(next);
        AddOrders(order);
        order.pop_back();
      }
    }
  }

  // True when the order would return to a site, through its other group, after it has passed another site.
  bool ComesBack(const std::vector<size_t>& order, size_t next) const {
    const auto site_of = [&](size_t index) { return Site(index).name.substr(0, Site(index).name.find('/')); };
    return !order.empty() && site_of(order.back()) != site_of(next) &&
           std::ranges::any_of(order, [&](size_t passed) { return site_of(passed) == site_of(next); });
  }

  void AddDegrees(const std::vector<size_t>& order) {
    int64_t per_node = kNever;
    for (const size_t site : order) {
      per_node = std::min(per_node, Site(site).devices_per_node);
    }
    const ParallelismSpec& open = job_.parallelism;
    for (int64_t tensor = std::max<int64_t>(1, open.tensor); tensor <= (open.tensor > 0 ? open.tensor : per_node);
         ++tensor) {
      for (int64_t data = std::max<int64_t>(1, open.data);; ++data) {
        JobSpec shaped = job_;
        shaped.parallelism.tensor = tensor;
        shaped.parallelism.data = data;
        std::vector<int64_t> slots;
        for (const size_t site : order) {
          const absl::StatusOr<int64_t> count = StageSlots(shaped, Site(site));
          slots.push_back(count.ok() ? *count : 0);
        }
        if (*std::ranges::min_element(slots) == 0) {
          break;  // nor with more replicas
        }
        if (ValidateJob(shaped).ok()) {
          AddModes(order, slots, shaped);
        }
        if (open.data > 0) {
          break;
        }
      }
    }
  }

  void AddModes(const std::vector<size_t>& order, const std::vector<int64_t>& slots, const JobSpec& job) {
    for (const int32_t zero_stage : ZeroStages(job)) {
      for (const int64_t b : job.search.micro_batch_size) {
        for (const int64_t s : job.search.sequence_length) {
          if (MicroBatchesOf(job, b, s) == 0) {
            continue;
          }
          for (const StageChoice& stages : StageChoices(job, std::ssize(slots))) {
            GridPoint point{0, order, {}, job.parallelism.tensor, job.parallelism.data, zero_stage, {}, b, s, stages};
            AddRanks(slots, job, point);
          }
        }
      }
    }
  }

  void AddRanks(const std::vector<int64_t>& slots, const JobSpec& job, GridPoint point) {
    point.ranks.assign(slots.size(), 1);
    SiteParts parts;
    for (const Recompute mode : RecomputeModes(job)) {
      point.recompute.assign(slots.size(), mode);
      absl::StatusOr<PlanParts> of_mode = PartsOfPlan(job, request_.cluster, source_, PlanOf(point));
      if (!of_mode.ok()) {
        return;  // a site lacks a figure
      }
      parts.emplace(mode, *std::move(of_mode));
    }
    const Recompute fastest = RecomputeModes(job).front();
    const int64_t layers = job.model.num_hidden_layers;
    const int64_t most =
        std::min(layers / point.stages.per_rank, std::accumulate(slots.begin(), slots.end(), int64_t{0}));
    const int64_t asked = job.parallelism.pipeline;
    for (int64_t ranks = asked > 0 ? asked : std::ssize(slots); ranks <= (asked > 0 ? std::min(asked, most) : most);
         ++ranks) {
      if (FastestBoundNs(parts.at(fastest), slots, ranks, point) >= Limit()) {
        continue;
      }
      ForEachSplit(ranks, slots, [&](const std::vector<int64_t>& of_sites) {
        point.ranks = of_sites;
        point.recompute.assign(static_cast<size_t>(ranks), fastest);
        result_.grids += mixes_ ? 0 : 1;
        for (const Recompute mode : RecomputeModes(job)) {
          if (mixes_ && mode != fastest) {
            break;  // the fastest stands for all mixes
          }
          point.recompute.assign(static_cast<size_t>(ranks), mode);
          point.bound_ns = BoundNs(parts, point, {});
          if (point.bound_ns < Limit()) {
            points_.push_back(point);
          }
        }
      });
    }
  }

  // Bound for `ranks` ranks, each on a free slot where a layer takes the least.
  int64_t FastestBoundNs(const PlanParts& parts, const std::vector<int64_t>& slots, int64_t ranks,
                         const GridPoint& point) const {
    std::vector<StageLoad> loads;
    for (size_t i = 0; i < slots.size(); ++i) {
      const int64_t layer_ns = parts.shape.micro_batches * Whole(parts.stages[i].costs.block);
      loads.insert(loads.end(), std::min(slots[i], ranks), StageLoad{.fixed_ns = 0, .layer_ns = layer_ns, .most = 0});
    }
    std::ranges::stable_sort(loads, {}, &StageLoad::layer_ns);
    loads.resize(ranks);
    GP_CHECK(ranks * point.stages.per_rank <= job_.model.num_hidden_layers);
    return LeastStageTimeNs(loads, job_.model.num_hidden_layers);
  }

  // All the work of each rank after the first micro-batch has come through one layer of each rank before it; of
  // `layers` on every rank, or of those that are best for the bound. `parts`: of one rank on
  // each site.
  int64_t BoundNs(const SiteParts& parts, const GridPoint& point, std::span<const int64_t> layers) const {
    const int64_t micro_batches = parts.begin()->second.shape.micro_batches;
    const int64_t ranks = std::accumulate(point.ranks.begin(), point.ranks.end(), int64_t{0});
    std::vector<StageLoad> loads;
    int64_t way_ns = 0;
    for (size_t i = 0; i < point.sites.size(); ++i) {
      way_ns +=
          i == 0 ? 0 : request_.cluster.FindLink(Site(point.sites[i - 1]).name, Site(point.sites[i]).name)->latency_ns;
      for (int64_t k = 0; k < point.ranks[i]; ++k) {
        const auto rank = std::ssize(loads);
        const ModelCosts& costs = parts.at(point.recompute[loads.size()]).stages[i].costs;
        const bool has_head = rank == (point.stages.layout == StageLayout::kFolded ? 0 : ranks - 1);
        const int64_t fixed_ns = (rank == 0 ? Whole(costs.embedding) : 0) + (has_head ? Whole(costs.head) : 0);
        loads.push_back(
            {.fixed_ns = way_ns + micro_batches * fixed_ns, .layer_ns = micro_batches * Whole(costs.block), .most = 0});
        way_ns += (rank == 0 ? costs.embedding.forward_ns : 0) + costs.block.forward_ns;
      }
    }
    if (layers.empty()) {
      return LeastStageTimeNs(loads, job_.model.num_hidden_layers);
    }
    int64_t bound_ns = 0;
    for (size_t rank = 0; rank < loads.size(); ++rank) {
      bound_ns = std::max(bound_ns, loads[rank].fixed_ns + layers[rank] * loads[rank].layer_ns);
    }
    return bound_ns;
  }

  JobSpec JobOf(const GridPoint& point) const {
    JobSpec job = job_;
    job.parallelism.tensor = point.tensor;
    job.parallelism.data = point.data;
    return job;
  }

  // The plan with one stage on every rank, evenly split.
  Plan PlanOf(const GridPoint& point) const {
    const int64_t ranks = std::accumulate(point.ranks.begin(), point.ranks.end(), int64_t{0});
    const std::vector<LayerRange> layers = SplitLayers(job_.model, ranks);
    Plan plan;
    plan.grid.tensor = static_cast<int32_t>(point.tensor);
    plan.grid.data = static_cast<int32_t>(point.data);
    for (size_t i = 0; i < point.sites.size(); ++i) {
      PlaceOnSite(Site(point.sites[i]), point.ranks[i], layers, plan);
    }
    plan.comm = request_.comm;
    plan.micro_batch_size = point.micro_batch_size;
    plan.sequence_length = point.sequence_length;
    for (size_t rank = 0; rank < point.recompute.size(); ++rank) {
      plan.pipeline_ranks[rank].recompute = point.recompute[rank];
    }
    plan.zero_stage = point.zero_stage;
    plan.micro_batches = MicroBatchesOf(JobOf(point), point.micro_batch_size, point.sequence_length);
    plan.delta_n.assign(plan.Crossings().size(), 0);
    return plan;
  }

  // One grid, with its own request.
  struct Grid {
    GridPoint point;
    PlanRequest request;
    SiteParts one_rank_per_site;
    Plan plan;
    PlanParts parts;
    PlanMemoryModel memory;
  };

  // Returns nothing when there is no link back to the first site.
  std::optional<Grid> MakeGrid(const GridPoint& point) const {
    GridPoint of_sites = point;
    of_sites.ranks.assign(point.sites.size(), 1);
    PlanRequest request = request_;
    request.job = JobOf(point);
    Plan plan = PlanOf(point);
    if (point.stages.layout != StageLayout::kLinear) {
      const PipelineShape shape =
          PipelineShape::Of(point.stages.layout, plan.grid.pipeline, plan.micro_batches, point.stages.per_rank);
      const std::vector<LayerRange> layers = SplitLayers(job_.model, shape.stages);
      plan.stages.clear();
      for (int32_t stage = 0; stage < shape.stages; ++stage) {
        plan.stages.push_back({.pipeline_rank = shape.placement[stage], .layers = layers[stage]});
      }
      plan.delta_n.assign(plan.Crossings().size(), 0);
    }
    absl::StatusOr<PlanParts> parts = PartsOfPlan(request.job, request_.cluster, source_, plan);
    if (!parts.ok()) {
      return std::nullopt;
    }
    const PlanMemoryModel memory = parts->MemoryModel(request.job);
    SiteParts one_rank_per_site;
    for (const Recompute mode : RecomputeModes(request.job)) {
      of_sites.recompute.assign(point.sites.size(), mode);
      one_rank_per_site.emplace(mode, *PartsOfPlan(request.job, request_.cluster, source_, PlanOf(of_sites)));
    }
    return Grid{point, std::move(request), std::move(one_rank_per_site), std::move(plan), *std::move(parts), memory};
  }

  void Try(const GridPoint& point) {
    const std::optional<Grid> grid = MakeGrid(point);
    if (!grid.has_value()) {
      return;
    }
    std::vector<Grid> of_modes;  // the same with every mode on all ranks
    for (const Recompute mode : RecomputeModes(grid->request.job)) {
      GridPoint other = point;
      other.recompute.assign(point.recompute.size(), mode);
      if (mixes_) {
        of_modes.push_back(*MakeGrid(other));
      }
    }
    ForEachLayers(*grid, [&](const std::vector<int64_t>& layers) {
      mixes_ ? TryMixes(of_modes, layers) : TryLayers(*grid, layers);
    });
  }

  // All ways in which ranks can recompute differently. `of_modes`: the grid with each mode on all ranks.
  void TryMixes(std::span<const Grid> of_modes, const std::vector<int64_t>& layers) {
    const Grid& fastest = of_modes.front();
    if (BoundNs(fastest.one_rank_per_site, fastest.point, OfRanks(fastest, layers)) >= Limit()) {
      return;
    }
    const std::vector<int32_t> counts(layers.begin(), layers.end());
    const std::vector<LayerRange> ranges = RangesOf(counts);
    const auto costs_with = [&](const Grid& grid, int64_t in_flight) {
      const std::vector<int64_t> all(layers.size(), in_flight);
      return ComposeCosts(grid.parts, grid.memory, ranges, all, grid.plan.comm);
    };
    // A device that can hold all micro-batches only loses time by recomputing some of them.
    const int64_t micro_batches = fastest.parts.shape.micro_batches;
    const PipelineCosts full = costs_with(fastest, micro_batches);
    std::vector<int64_t> bytes = full.memory->static_bytes;
    for (size_t stage = 0; stage < layers.size(); ++stage) {
      const int64_t each = std::max(full.memory->activation_bytes[stage], full.memory->wgrad_bytes[stage]);
      bytes[full.shape.placement[stage]] += micro_batches * each;
    }
    Mixes mixes{of_modes, layers, {}, {}, {}};
    for (size_t rank = 0; rank < bytes.size(); ++rank) {
      mixes.binds.push_back(bytes[rank] > full.memory->capacity_bytes[rank]);
    }
    for (const Grid& grid : of_modes) {
      mixes.costs.push_back(costs_with(grid, 1));
    }
    TryMixesFrom(mixes);
  }

  // Ranks before the end of `chosen` have that mode (an index), the others one that is as good as the best of all.
  struct Mixes {
    std::span<const Grid> of_modes;
    const std::vector<int64_t>& layers;
    std::vector<bool> binds;           // by rank: whether its memory may matter
    std::vector<PipelineCosts> costs;  // by mode
    std::vector<size_t> chosen;
  };

  void TryMixesFrom(Mixes& mixes) {
    PipelineCosts costs = mixes.costs.front();
    for (const PipelineCosts& other : mixes.costs) {
      costs.epilogue_ns = std::min(costs.epilogue_ns, other.epilogue_ns);
    }
    const std::vector<int32_t>& placement = costs.shape.placement;
    const auto take_least = [&](std::vector<int64_t>& values, auto of, const auto& rank_of) {
      for (size_t i = 0; i < values.size(); ++i) {
        const auto rank = static_cast<size_t>(rank_of(i));
        for (size_t mode = 0; mode < mixes.costs.size(); ++mode) {
          const int64_t value = of(mixes.costs[mode])[i];
          if (rank < mixes.chosen.size() ? mode == mixes.chosen[rank] : value < values[i]) {
            values[i] = value;
          }
        }
      }
    };
    const auto by_stage = [&](size_t stage) { return placement[stage]; };
    const auto by_rank = [](size_t rank) { return rank; };
    take_least(
        costs.forward_ns, [](const PipelineCosts& c) -> const auto& { return c.forward_ns; }, by_stage);
    take_least(
        costs.input_grad_ns, [](const PipelineCosts& c) -> const auto& { return c.input_grad_ns; }, by_stage);
    take_least(
        costs.weight_grad_ns, [](const PipelineCosts& c) -> const auto& { return c.weight_grad_ns; }, by_stage);
    take_least(
        costs.memory->static_bytes, [](const PipelineCosts& c) -> const auto& { return c.memory->static_bytes; },
        by_rank);
    take_least(
        costs.memory->activation_bytes,
        [](const PipelineCosts& c) -> const auto& { return c.memory->activation_bytes; }, by_stage);
    take_least(
        costs.memory->wgrad_bytes, [](const PipelineCosts& c) -> const auto& { return c.memory->wgrad_bytes; },
        by_stage);
    if (LowerBoundNs(costs) >= Limit() || MemoryLowerBoundNs(costs).value_or(kNever) >= Limit()) {
      return;
    }
    const size_t rank = mixes.chosen.size();
    if (rank < mixes.binds.size()) {
      for (size_t mode = 0; mode < (mixes.binds[rank] ? mixes.costs.size() : 1); ++mode) {
        mixes.chosen.push_back(mode);
        TryMixesFrom(mixes);
        mixes.chosen.pop_back();
      }
      return;
    }
    if (std::ranges::count(mixes.chosen, mixes.chosen.front()) < std::ssize(mixes.chosen)) {
      ++result_.in_bounds;
      GridPoint point = mixes.of_modes.front().point;
      for (size_t i = 0; i < mixes.chosen.size(); ++i) {
        point.recompute[i] = mixes.of_modes[mixes.chosen[i]].point.recompute[i];
      }
      TryLayers(*MakeGrid(point), mixes.layers);
    }
  }

  static std::vector<int64_t> OfRanks(const Grid& grid, const std::vector<int64_t>& layers) {
    std::vector<int64_t> of_ranks(static_cast<size_t>(grid.plan.grid.pipeline), 0);
    for (size_t stage = 0; stage < layers.size(); ++stage) {
      of_ranks[grid.plan.stages[stage].pipeline_rank] += layers[stage];
    }
    return of_ranks;
  }

  void ForEachLayers(const Grid& grid, const std::function<void(const std::vector<int64_t>&)>& take) {
    const int64_t layers = job_.model.num_hidden_layers;
    const auto stages = std::ssize(grid.plan.stages);
    if (job_.parallelism.layers == LayerSplit::kEven) {
      const std::vector<int32_t> even = CountsOf(SplitLayers(job_.model, stages));
      take({even.begin(), even.end()});
      return;
    }
    if (options_.splits_and_advances && SplitCount(layers, stages) <= kAllSplits) {
      const std::vector<int64_t> most(static_cast<size_t>(stages), layers);
      ForEachSplit(layers, most, take);
      return;
    }
    result_.all_splits = false;
    const std::vector<int64_t> balanced = Balanced(grid);
    take(balanced);
    for (size_t from = 0; options_.splits_and_advances && from < balanced.size(); ++from) {
      for (size_t to = 0; to < balanced.size(); ++to) {
        if (from != to && balanced[from] > 1) {
          std::vector<int64_t> moved = balanced;
          --moved[from];
          ++moved[to];
          take(moved);
        }
      }
    }
  }

  // Ranks balance; each shares its layers out over its stages.
  std::vector<int64_t> Balanced(const Grid& grid) const {
    const int64_t layers = job_.model.num_hidden_layers;
    const int64_t more = std::ssize(grid.plan.stages) / grid.plan.grid.pipeline - 1;
    std::vector<StageLoad> loads = LoadsOf(grid.parts, layers);
    for (StageLoad& load : loads) {
      load.fixed_ns += more * load.layer_ns;
    }
    const auto of_ranks = BalanceLayers(loads, layers - more * grid.plan.grid.pipeline);
    std::vector<int64_t> seen(loads.size(), 0);
    std::vector<int64_t> of_stages;
    for (const StagePlan& stage : grid.plan.stages) {
      of_stages.push_back(((*of_ranks)[stage.pipeline_rank] + more + seen[stage.pipeline_rank]++) / (more + 1));
    }
    return of_stages;
  }

  void TryLayers(const Grid& grid, const std::vector<int64_t>& layers) {
    if (BoundNs(grid.one_rank_per_site, grid.point, OfRanks(grid, layers)) >= Limit()) {
      return;
    }
    Plan plan = grid.plan;
    const std::vector<int32_t> counts(layers.begin(), layers.end());
    const std::vector<LayerRange> ranges = RangesOf(counts);
    for (size_t stage = 0; stage < layers.size(); ++stage) {
      plan.stages[stage].layers = ranges[stage];
    }
    const std::vector<int64_t> one(layers.size(), 1);
    const PipelineCosts costs = ComposeCosts(grid.parts, grid.memory, ranges, one, plan.comm);
    // One micro-batch on every stage must fit, and the bound must be below the limit.
    if (LowerBoundNs(costs) >= Limit() || !MemoryLowerBoundNs(costs).has_value()) {
      return;
    }
    const ScheduleKind kind = job_.search.schedule;
    if (kind == ScheduleKind::kAuto) {
      TryAuto(grid, std::move(plan), ranges, costs);
    } else if (RowOf(kind).searched) {
      TryRule(grid, plan, ranges, kind, costs);
    } else {
      TryOther(grid, std::move(plan), costs);
    }
  }

  void TryAuto(const Grid& grid, Plan plan, const std::vector<LayerRange>& ranges, const PipelineCosts& costs) {
    if (grid.point.stages.layout == StageLayout::kLinear) {
      TryRule(grid, plan, ranges, ScheduleKind::kGeoPipe, costs);
      TryRule(grid, plan, ranges, ScheduleKind::kGpipe, costs);
    }
    plan.schedule = ScheduleKind::kAuto;
    const absl::StatusOr<SchedulePoint> point = SchedulePointOf(grid.request, source_, std::move(plan));
    GP_CHECK(point.ok(), "{}", point.status().ToString());
    if (point->lower_bound_ns >= Limit()) {
      return;
    }
    if (StatesCanBeSearched(point->costs)) {
      const int64_t known_ns = Limit() == kNever ? kNever : Limit() - point->costs.epilogue_ns;
      if (known_ns < kNever &&
          FindRelaxedBound(point->costs, {.known_ns = known_ns, .actions = options_.proof_actions}).bound_ns >=
              known_ns) {
        return;
      }
    }
    if (result_.searched == options_.max_searched) {
      result_.complete = false;
      return;
    }
    ++result_.searched;
    absl::StatusOr<Refinement> found = SearchScheduleAt(grid.request, source_, *point, best_ns_, options_.auto_actions);
    GP_CHECK(found.ok(), "{}", found.status().ToString());
    if (found->better.has_value()) {
      Offer(found->better->plan, found->better->prediction.prediction.iteration_ns);
    }
  }

  std::vector<std::vector<int32_t>> DeltaN(const Plan& plan, const PipelineCosts& costs, ScheduleKind kind) const {
    if (!RowOf(kind).uses_delta_n) {
      return {plan.delta_n};
    }
    const int32_t most = MaxDeltaN(job_);
    std::vector<std::vector<int32_t>> all{{}};
    for (const int32_t boundary : plan.Crossings()) {
      std::vector<int32_t> values;
      if (options_.splits_and_advances) {
        values.resize(static_cast<size_t>(most) + 1);
        std::iota(values.begin(), values.end(), 0);
      } else {
        const BoundaryCost& cost = costs.boundaries[boundary];
        const int64_t period_ns = std::max<int64_t>(1, costs.forward_ns[boundary] + costs.BackwardNs(boundary));
        const int64_t hides = 2 * (cost.latency_ns + cost.serialization_ns + cost.overhead_ns) / period_ns + 1;
        for (const int64_t value : {int64_t{0}, hides / 2, hides, 2 * hides}) {
          values.push_back(static_cast<int32_t>(std::min<int64_t>(value, most)));
        }
      }
      std::vector<std::vector<int32_t>> longer;
      for (const std::vector<int32_t>& before : all) {
        for (const int32_t value : values) {
          longer.push_back(before);
          longer.back().push_back(value);
        }
      }
      all = std::move(longer);
    }
    return all;
  }

  void TryRule(const Grid& grid, const Plan& with_layers, const std::vector<LayerRange>& ranges, ScheduleKind kind,
               const PipelineCosts& least) {
    Plan plan = with_layers;
    plan.schedule = kind;
    for (const std::vector<int32_t>& delta_n : DeltaN(plan, least, kind)) {
      plan.delta_n = delta_n;
      const std::vector<int32_t> of_boundaries = BoundaryDeltaN(plan);
      if (ScheduleBoundNs(kind, least, of_boundaries) >= Limit()) {
        continue;
      }
      PipelineCosts costs =
          ComposeCosts(grid.parts, grid.memory, ranges, InFlightOf(kind, grid.parts.shape, of_boundaries), plan.comm);
      ++result_.tried;
      const absl::StatusOr<PlanPrediction> predicted = PredictPlan(grid.request.job, plan, std::move(costs));
      GP_CHECK(predicted.ok(), "{}", predicted.status().ToString());
      if (predicted->fits) {
        Offer(plan, predicted->prediction.iteration_ns);
      }
    }
  }

  // A kind with several stages on a rank or a split backward.
  void TryOther(const Grid& grid, Plan plan, const PipelineCosts& least) {
    plan.schedule = job_.search.schedule;
    const std::vector<std::vector<int32_t>> delta_n = DeltaN(plan, least, plan.schedule);
    absl::StatusOr<SchedulePoint> point = SchedulePointOf(grid.request, source_, std::move(plan));
    GP_CHECK(point.ok(), "{}", point.status().ToString());
    point->delta_n_choices = delta_n;
    ++result_.tried;
    const absl::StatusOr<Refinement> made = PlanByRuleAt(grid.request, *std::move(point));
    if (made.ok() && made->better.has_value()) {
      Offer(made->better->plan, made->better->prediction.prediction.iteration_ns);
    }
  }

  void Offer(const Plan& plan, int64_t iteration_ns) {
    if (iteration_ns < Limit()) {
      best_ns_ = iteration_ns;
      result_.found = true;
      result_.plan = plan;
      result_.iteration_ns = iteration_ns;
    }
  }

  const PlanRequest& request_;
  const ExhaustiveOptions& options_;
  const JobSpec job_;
  const CostSource source_;
  int64_t best_ns_;
  OrderClasses classes_;
  bool mixes_ = false;
  std::vector<GridPoint> points_;
  ExhaustiveResult result_;
};

}  // namespace

ExhaustiveResult FindExhaustively(const PlanRequest& request, const ExhaustiveOptions& options) {
  return Exhaustive(request, options).Run();
}

}  // namespace geopipe::test
