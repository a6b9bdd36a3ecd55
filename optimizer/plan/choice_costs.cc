#include "optimizer/plan/choice_costs.h"

#include <absl/status/status.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <set>
#include <utility>

#include "optimizer/model/plan/plan_costs.h"
#include "optimizer/plan/planner.h"
#include "optimizer/plan/refine/refine_schedule.h"
#include "optimizer/plan/report/explain.h"
#include "optimizer/plan/shape_search.h"
#include "optimizer/plan/space/choices.h"
#include "optimizer/plan/space/placement.h"
#include "optimizer/plan/space/shapes.h"

namespace geopipe {
namespace {

constexpr size_t kMaxSitesLeftOut = 4;

// A change of one choice.
struct Variation {
  std::string key;
  std::string taken;
  std::string instead;
  PlanRequest request;
  // True when a plan for the unchanged job has this choice; empty: no such plan does.
  std::function<bool(const Plan&)> has_choice = {};
  bool is_open = true;  // in the job; else it is varied all the same
};

// The best plan with a choice, and whether it is also a plan for the unchanged job.
struct Tried {
  std::optional<ChoiceCost> cost;  // nullopt: it was stopped before it was done
  std::optional<PlanResult> found;
  bool is_open = false;
};

std::vector<std::string> SitesOf(const Plan& plan) {
  std::vector<std::string> sites;
  for (const PipelineRankPlan& rank : plan.pipeline_ranks) {
    if (std::ranges::find(sites, rank.site) == sites.end()) {
      sites.push_back(rank.site);
    }
  }
  return sites;
}

Shape ShapeOf(const Plan& plan) {
  return {.sites = SitesOf(plan), .tensor = plan.grid.tensor, .pipeline = plan.grid.pipeline, .data = plan.grid.data};
}

class Variations {
 public:
  Variations(const PlanRequest& request, const PlanResult& result)
      : base_(request), plan_(result.plan), sites_(SitesOf(result.plan)) {
    base_.job = JobOnCluster(std::move(base_.job), base_.cluster);
    base_.method = SearchMethod::kGenetic;
    base_.baselines = false;
    base_.cluster_bound = false;
    base_.parallel_for = {};  // they run beside each other
    base_.progress = {};
  }

  // The most informative first: when time is short the others are left.
  std::vector<Variation> All() {
    AddRecompute();
    AddDegrees();
    AddStagesPerRank();
    AddBatches();
    AddSites();
    AddLayers();
    AddSchedules();
    AddZeroStages();
    return std::move(all_);
  }

 private:
  template <typename Apply>
  void Add(std::string key, std::string taken, std::string instead, Apply apply,
           std::function<bool(const Plan&)> has_choice = {}) {
    Variation& added = all_.emplace_back(
        Variation{std::move(key), std::move(taken), std::move(instead), base_, std::move(has_choice)});
    apply(added.request);
  }

  void AddRecompute() {
    for (const Recompute mode : RecomputeModes(base_.job)) {
      if (mode != plan_.SameRecompute()) {
        Add(
            "recompute", std::string(RecomputeWord(plan_)), std::string(RecomputeName(mode)),
            [&](PlanRequest& request) { request.job.parallelism.recompute = mode; },
            [mode](const Plan& plan) { return plan.SameRecompute() == mode; });
      }
    }
  }

  void AddSchedules() {
    if (base_.job.search.schedule == ScheduleKind::kGeoPipe) {
      AddNoDeltaN();
    }
    if (base_.job.search.schedule != ScheduleKind::kAuto) {
      return;
    }
    for (const ScheduleRow& row : kSchedules) {
      if (row.kind != plan_.schedule && row.kind != ScheduleKind::kAuto) {
        Add(
            "schedule", std::string(ScheduleKindName(plan_.schedule)), std::string(row.name),
            [&](PlanRequest& request) { request.job.search.schedule = row.kind; },
            [kind = row.kind](const Plan& plan) { return plan.schedule == kind; });
      }
    }
  }

  void AddNoDeltaN() {
    const bool has_delta_n = std::ranges::any_of(plan_.delta_n, [](int32_t n) { return n > 0; });
    if (has_delta_n && base_.fixed_delta_n.empty()) {
      Add("delta_n", fmt::format("{}", fmt::join(plan_.delta_n, ",")), "0",
          [](PlanRequest& request) { request.fixed_delta_n = {0}; });
    }
  }

  void AddDegree(std::string_view key, int64_t instead, int64_t ParallelismSpec::*degree, int32_t ProcessGrid::*size) {
    Add(
        std::string(key), fmt::format("{}", plan_.grid.*size), fmt::format("{}", instead),
        [&](PlanRequest& request) { request.job.parallelism.*degree = instead; },
        [instead, size](const Plan& plan) { return plan.grid.*size == instead; });
  }

  void AddDegrees() {
    const ParallelismSpec& open = base_.job.parallelism;
    std::set<int64_t> tensor;
    std::set<int64_t> data;
    for (const Degrees& degrees : DegreesOf(base_.job, base_.cluster, sites_)) {
      tensor.insert(degrees.tensor);
      data.insert(degrees.data);
    }
    for (const int64_t degree : tensor) {
      if (open.tensor == 0 && degree != plan_.grid.tensor) {
        AddDegree("tensor", degree, &ParallelismSpec::tensor, &ProcessGrid::tensor);
      }
    }
    const auto above = data.upper_bound(plan_.grid.data);
    const auto below = data.lower_bound(plan_.grid.data);
    if (open.data == 0 && below != data.begin()) {
      AddDegree("data", *std::prev(below), &ParallelismSpec::data, &ProcessGrid::data);
    }
    if (open.data == 0 && above != data.end()) {
      AddDegree("data", *above, &ParallelismSpec::data, &ProcessGrid::data);
    }
    const int64_t ranks = plan_.grid.pipeline;
    for (const int64_t other : {ranks / 2, 2 * ranks}) {
      if (open.pipeline == 0 && other >= std::ssize(sites_) && other <= base_.job.model.num_hidden_layers) {
        AddDegree("pipeline", other, &ParallelismSpec::pipeline, &ProcessGrid::pipeline);
      }
    }
  }

  // Stages on a rank: one, a few and many, if the job leaves the schedule open.
  void AddStagesPerRank() {
    const bool is_open =
        base_.job.parallelism.stages_per_rank == 0 && base_.refine && base_.job.search.schedule == ScheduleKind::kAuto;
    const int32_t taken = plan_.StagesPerRank();
    for (const int32_t instead : {1, 2, 4}) {
      if (is_open && instead != taken && int64_t{instead} * plan_.grid.pipeline <= base_.job.model.num_hidden_layers) {
        Add(
            "stages_per_rank", fmt::format("{}", taken), fmt::format("{}", instead),
            [&](PlanRequest& request) { request.job.parallelism.stages_per_rank = instead; },
            [instead](const Plan& plan) { return plan.StagesPerRank() == instead; });
      }
    }
  }

  void AddBatches() {
    for (const int64_t b : base_.job.search.micro_batch_size) {
      if (b != plan_.micro_batch_size) {
        Add(
            "micro_batch_size", fmt::format("{}", plan_.micro_batch_size), fmt::format("{}", b),
            [&](PlanRequest& request) { request.job.search.micro_batch_size = {b}; },
            [b](const Plan& plan) { return plan.micro_batch_size == b; });
      }
    }
    for (const int64_t s : base_.job.search.sequence_length) {
      if (s != plan_.sequence_length) {
        Add(
            "sequence_length", fmt::format("{}", plan_.sequence_length), fmt::format("{}", s),
            [&](PlanRequest& request) { request.job.search.sequence_length = {s}; },
            [s](const Plan& plan) { return plan.sequence_length == s; });
      }
    }
  }

  void AddLayers() {
    const auto [least, most] =
        std::ranges::minmax(plan_.stages, {}, [](const StagePlan& stage) { return stage.layers.count(); });
    if (base_.job.parallelism.layers == LayerSplit::kAuto && least.layers.count() != most.layers.count()) {
      Add("layers", fmt::format("{} to {}", least.layers.count(), most.layers.count()), "even",
          [](PlanRequest& request) { request.job.parallelism.layers = LayerSplit::kEven; });
    }
  }

  void AddZeroStages() {
    const int32_t taken = plan_.zero_stage;
    for (int32_t stage = 0; plan_.grid.data > 1 && stage <= 3; ++stage) {
      if (stage != taken) {
        Add(
            "zero_stage", fmt::format("{}", taken), fmt::format("{}", stage),
            [&](PlanRequest& request) { request.job.parallelism.zero_stage = stage; },
            [stage](const Plan& plan) { return plan.grid.data > 1 && plan.zero_stage == stage; });
        all_.back().is_open = !base_.job.parallelism.zero_stage.has_value();
      }
    }
  }

  void AddSites() {
    if (base_.job.placement.sites.empty() && sites_.size() > 1) {
      AddLeftOut();
      AddOrders();
    }
  }

  // Groups of sites each of which is as good to leave out as the first of its group, in the order of the sites.
  std::vector<std::vector<size_t>> AlikeLeftOut() const {
    OrderClasses classes(base_.cluster);
    const bool may_be_alike = !base_.profile.has_value() && sites_.size() == base_.cluster.sites.size();
    std::vector<std::vector<size_t>> alike;
    std::vector<std::vector<std::string>> first_like;
    for (size_t i = 0; i < sites_.size(); ++i) {
      std::vector<std::string> left = sites_;
      left.erase(left.begin() + static_cast<std::ptrdiff_t>(i));
      left = may_be_alike ? classes.FirstLike(left) : left;
      const auto known = std::ranges::find(first_like, left);
      if (known == first_like.end()) {
        first_like.push_back(std::move(left));
        alike.push_back({i});
      } else {
        alike[static_cast<size_t>(known - first_like.begin())].push_back(i);
      }
    }
    return alike;
  }

  void AddLeftOut() {
    std::vector<std::vector<size_t>> alike = AlikeLeftOut();
    alike.resize(std::min(alike.size(), kMaxSitesLeftOut));
    for (const std::vector<size_t>& indices : alike) {
      std::vector<std::string> names;
      names.reserve(indices.size());
      for (const size_t index : indices) {
        names.push_back(sites_[index]);
      }
      const std::string which = names.size() < sites_.size() ? fmt::format("{}", fmt::join(names, " or "))
                                : names.size() == 2          ? "either"
                                                             : "any one";
      Add("sites", SiteText(sites_), fmt::format("without {}", which), [&](PlanRequest& request) {
        std::erase_if(request.cluster.sites, [&](const SiteSpec& site) { return site.name == names.front(); });
        std::erase_if(request.cluster.links, [&](const LinkSpec& link) {
          return link.site_a == names.front() || link.site_b == names.front();
        });
      });
    }
  }

  void AddOrders() {
    if (!TriesAllOrders(base_.job, base_.cluster) || sites_.size() > kMaxPermutedSites) {
      return;
    }
    OrderClasses classes(base_.cluster);
    classes.IsNew(sites_);
    std::vector<std::string> order = sites_;
    std::ranges::sort(order);
    do {
      const bool costs_alike = !base_.profile.has_value() && !classes.IsNew(order);
      if (order != sites_ && !costs_alike && Linked(base_.cluster, order)) {
        Add("sites", SiteText(sites_), SiteText(order),
            [&](PlanRequest& request) { request.job.placement.sites = order; });
      }
    } while (std::ranges::next_permutation(order).found);
  }

  static std::string SiteText(const std::vector<std::string>& sites) {
    constexpr size_t kMaxNamed = 4;
    return sites.size() > kMaxNamed ? fmt::format("{} sites", sites.size()) : fmt::format("{}", fmt::join(sites, ","));
  }

  PlanRequest base_;
  const Plan& plan_;
  std::vector<std::string> sites_;
  std::vector<Variation> all_;
};

// The differences of `plan` from `taken` besides `key`.
std::vector<std::pair<std::string, std::string>> Differences(const Plan& plan, const Plan& taken,
                                                             std::string_view key) {
  std::vector<std::pair<std::string, std::string>> differences;
  const auto compare = [&](std::string_view name, const auto& value, const auto& other) {
    if (name != key && value != other) {
      differences.emplace_back(name, fmt::format("{}", value));
    }
  };
  compare("tensor", plan.grid.tensor, taken.grid.tensor);
  compare("pipeline", plan.grid.pipeline, taken.grid.pipeline);
  compare("data", plan.grid.data, taken.grid.data);
  compare("micro_batch_size", plan.micro_batch_size, taken.micro_batch_size);
  compare("sequence_length", plan.sequence_length, taken.sequence_length);
  compare("stages_per_rank", plan.StagesPerRank(), taken.StagesPerRank());
  compare("recompute", RecomputeWord(plan), RecomputeWord(taken));
  if (plan.grid.data > 1) {
    compare("zero_stage", plan.zero_stage, taken.zero_stage);
  }
  compare("schedule", ScheduleKindName(plan.schedule), ScheduleKindName(taken.schedule));
  if (key != "sites") {
    compare("sites", fmt::format("{}", fmt::join(SitesOf(plan), ",")),
            fmt::format("{}", fmt::join(SitesOf(taken), ",")));
  }
  return differences;
}

// True when the request leaves the shape's degrees and sites open.
bool AllowsShape(const PlanRequest& request, const Shape& shape) {
  const ParallelismSpec& parallelism = request.job.parallelism;
  const auto allows = [](int64_t degree, int64_t of_shape) { return degree == 0 || degree == of_shape; };
  return allows(parallelism.tensor, shape.tensor) && allows(parallelism.pipeline, shape.pipeline) &&
         allows(parallelism.data, shape.data) &&
         (request.job.placement.sites.empty() || request.job.placement.sites == shape.sites) &&
         std::ranges::all_of(shape.sites,
                             [&](const std::string& site) { return request.cluster.FindSite(site) != nullptr; });
}

std::string WhyMissing(const PlanRequest& request, const absl::Status& status) {
  if (absl::IsFailedPrecondition(status)) {
    const CostSource source(request.job, request.cluster, request.profile.has_value() ? &*request.profile : nullptr);
    const absl::StatusOr<ShapeFound> shapes = SearchShapes(request, source);  // memory rules all out: no search
    if (shapes.ok() && shapes->space == nullptr) {
      return LackingMemory(request, shapes->most_frugal);
    }
  }
  return std::string(status.message());
}

void TakeFound(const PlanResult& found, const PlanResult& taken, ChoiceCost& cost) {
  cost.iteration_ns = found.prediction.iteration_ns;
  cost.excess = static_cast<double>(*cost.iteration_ns) / static_cast<double>(taken.prediction.iteration_ns) - 1;
  cost.with = Differences(found.plan, taken.plan, cost.key);
}

bool Stopped(const PlanRequest& request) { return request.should_stop && request.should_stop(); }

Tried TryByRule(const Variation& variation, const PlanResult& taken) {
  if (Stopped(variation.request)) {
    return {};
  }
  PlanRequest by_rule = variation.request;
  by_rule.refine = by_rule.refine && NeedsMoreStages(by_rule.job);  // which no rule makes for auto
  ChoiceCost cost{.key = variation.key, .taken = variation.taken, .instead = variation.instead};
  absl::StatusOr<PlanResult> found = MakePlan(by_rule);
  if (absl::IsDeadlineExceeded(found.status()) || Stopped(by_rule)) {
    return {};
  }
  if (!found.ok()) {
    cost.missing = WhyMissing(by_rule, found.status());
    return {.cost = std::move(cost), .found = std::nullopt};
  }
  TakeFound(*found, taken, cost);
  return {.cost = std::move(cost), .found = *std::move(found), .is_open = variation.is_open};
}

// Plans with schedules made to measure, at the degrees that are best by rule and at the plan's own.
void Measure(const Variation& variation, const PlanResult& taken, Tried& tried) {
  const PlanRequest& request = variation.request;
  if (!tried.found.has_value() || !request.refine || request.job.search.schedule != ScheduleKind::kAuto) {
    return;
  }
  const Shape own = ShapeOf(taken.plan);
  std::vector<Shape> shapes{ShapeOf(tried.found->plan)};
  if (shapes.front() != own && AllowsShape(request, own)) {
    shapes.push_back(own);
  }
  for (const Shape& shape : shapes) {
    tried.cost->by_rule_alone = tried.found->plan.schedule != ScheduleKind::kAuto && Stopped(request);
    if (Stopped(request)) {
      return;
    }
    PlanRequest there = request;
    there.job = JobOf(there.job, shape);
    absl::StatusOr<PlanResult> measured = MakePlan(there);
    if (measured.ok() && measured->prediction.iteration_ns < tried.found->prediction.iteration_ns) {
      tried.found = *std::move(measured);
      TakeFound(*tried.found, taken, *tried.cost);
    }
  }
}

// Shares the plans: one found for one choice may be the best for another.
void ShareFound(const std::vector<Variation>& variations, const PlanResult& taken, std::vector<Tried>& tried) {
  for (size_t i = 0; i < variations.size(); ++i) {
    std::optional<ChoiceCost>& cost = tried[i].cost;
    for (const Tried& other : tried) {
      const bool has_choice = cost.has_value() && other.found.has_value() && other.is_open &&
                              variations[i].has_choice && variations[i].has_choice(other.found->plan);
      if (has_choice &&
          (!cost->iteration_ns.has_value() || other.found->prediction.iteration_ns < *cost->iteration_ns)) {
        cost->missing.clear();
        cost->by_rule_alone = other.cost->by_rule_alone;
        TakeFound(*other.found, taken, *cost);
      }
    }
  }
}

// Keeps only the best of the other orders of the sites.
void KeepBestOrder(std::vector<ChoiceCost>& all) {
  const auto is_order = [](const ChoiceCost& cost) {
    return cost.key == "sites" && !cost.instead.starts_with("without ");
  };
  const ChoiceCost* best = nullptr;
  for (const ChoiceCost& cost : all) {
    if (is_order(cost) && (best == nullptr || (cost.iteration_ns.has_value() &&
                                               (!best->iteration_ns.has_value() || cost.excess < best->excess)))) {
      best = &cost;
    }
  }
  if (best != nullptr) {
    const ChoiceCost kept = *best;
    std::erase_if(all, is_order);
    all.push_back(kept);
  }
}

}  // namespace

ChoiceCosts CostsOfChoices(const PlanRequest& request, const PlanResult& result) {
  ChoiceCosts costs;
  if (request.costs.has_value()) {
    return costs;
  }
  const std::vector<Variation> variations = Variations(request, result).All();
  std::vector<Tried> tried(variations.size());
  const auto for_all = [&](const std::function<void(int64_t)>& work) {
    InParallel(request.parallel_for, std::ssize(variations), work);
  };
  // Plans by rule come first: they take least, and are results if the rest takes too long.
  for_all([&](int64_t i) { tried[i] = TryByRule(variations[i], result); });
  for_all([&](int64_t i) { Measure(variations[i], result, tried[i]); });
  ShareFound(variations, result, tried);
  for (size_t i = 0; i < variations.size(); ++i) {
    if (tried[i].cost.has_value()) {
      costs.all.push_back(*std::move(tried[i].cost));
    } else {
      costs.not_tried.push_back(fmt::format("{} {}", variations[i].key, variations[i].instead));
    }
  }
  KeepBestOrder(costs.all);
  return costs;
}

}  // namespace geopipe
