#include "optimizer/plan/bound/cluster_bound.h"

#include <absl/status/statusor.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "optimizer/model/cost_model.h"
#include "optimizer/model/execution_config.h"
#include "optimizer/model/plan/plan_costs.h"
#include "optimizer/model/plan/plan_memory.h"
#include "optimizer/plan/bound/pipeline_bound.h"
#include "optimizer/plan/bound/reach_bound.h"
#include "optimizer/plan/space/choices.h"
#include "optimizer/plan/space/fastest_costs.h"
#include "optimizer/plan/space/placement.h"
#include "optimizer/plan/space/shapes.h"
#include "optimizer/schedule/schedule_table.h"

namespace geopipe {
namespace {

// Bound of a chain that was not bounded; greater than any.
constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max() / 16;
constexpr double kRoundedDown = 1 - 1e-9;

BoundSchedules SchedulesOf(const PlanRequest& request) {
  const ScheduleRow& row = RowOf(request.job.search.schedule);
  const bool is_auto = row.kind == ScheduleKind::kAuto;
  const int32_t fixed = request.job.parallelism.stages_per_rank;
  const auto may = [&](StageLayout layout, int32_t per_rank) {
    return (is_auto || row.layout == layout) && (fixed == 0 || fixed == per_rank);
  };
  constexpr int32_t kMany = 3;
  return {.linear = may(StageLayout::kLinear, 1),
          .folded = may(StageLayout::kFolded, 2),
          .looped = may(StageLayout::kLooped, 2),
          .rounds = may(StageLayout::kLooped, std::max(fixed, kMany)) ? std::max(fixed, kMany) : 0,
          .splits_backward = is_auto || row.splits_backward};
}

// Least time of the first rank's update, by its layers, wherever its replicas are on the site.
std::vector<int64_t> MinUpdates(const JobSpec& job, const ExecutionConfig& config, const SiteSpec& site,
                                const ModelCosts& costs) {
  PlanParts parts;
  parts.config = config;
  parts.stages.push_back({.costs = costs, .replicas = {}, .capacity_bytes = site.device.usable_bytes()});
  const PlanMemoryModel memory(job, config, {0, 1});
  std::vector<int64_t> updates(job.model.num_hidden_layers, std::numeric_limits<int64_t>::max());
  for (const ReplicaGroup& replicas : ReplicaPlaces(config, site)) {
    parts.stages.front().replicas = replicas;
    // The time is linear in the layers, but for whole nanoseconds and whole parameters of a replica's share.
    const auto of = [&](int64_t count) {
      return MinStageUpdateNs(parts, memory, 0, {.first = 0, .last = count - 1, .has_embedding = true});
    };
    const int64_t one_ns = of(1);
    const int64_t all_ns = of(std::ssize(updates));
    const int64_t slack_ns = 2 + static_cast<int64_t>(std::ceil(costs.adamw_ns_per_parameter));
    for (int64_t more = 0; more < std::ssize(updates); ++more) {
      const int64_t per_layers = std::max<int64_t>(1, std::ssize(updates) - 1);
      const __int128 grown_ns = static_cast<__int128>(all_ns - one_ns) * more / per_layers;
      updates[more] = std::min(updates[more], std::max<int64_t>(0, one_ns + static_cast<int64_t>(grown_ns) - slack_ns));
    }
  }
  return updates;
}

// Most sites that a walk over the links can pass, each once: exact for few sites, else the most that their links allow,
// of which it uses two at each but for its ends.
size_t LongestWalk(const ClusterSpec& cluster) {
  constexpr size_t kFewSites = 12;
  const size_t sites = cluster.sites.size();
  std::map<std::string_view, size_t> index;
  for (size_t i = 0; i < sites; ++i) {
    index[cluster.sites[i].name] = i;
  }
  std::vector<std::set<size_t>> near(sites);
  for (const LinkSpec& link : cluster.links) {
    near[index.at(link.site_a)].insert(index.at(link.site_b));
    near[index.at(link.site_b)].insert(index.at(link.site_a));
  }
  if (sites > kFewSites) {
    size_t ends = 0;
    for (const std::set<size_t>& links : near) {
      ends += std::min<size_t>(2, links.size());
    }
    return std::min(sites, ends / 2 + 1);
  }
  size_t longest = 1;
  std::vector<uint32_t> ends(size_t{1} << sites, 0);  // by the sites that were passed: where a walk may have ended
  for (size_t passed = 1; passed < ends.size(); ++passed) {
    if (std::has_single_bit(passed)) {
      ends[passed] = static_cast<uint32_t>(passed);
    }
    for (size_t end = 0; end < sites; ++end) {
      if ((ends[passed] >> end & 1) == 0) {
        continue;
      }
      longest = std::max(longest, static_cast<size_t>(std::popcount(passed)));
      for (const size_t next : near[end]) {
        if ((passed >> next & 1) == 0) {
          ends[passed | size_t{1} << next] |= uint32_t{1} << next;
        }
      }
    }
  }
  return longest;
}

int64_t LayerNs(const PartCosts& block) { return block.forward_ns + block.input_grad_ns + block.weight_grad_ns; }

// The least time of the site's modes.
template <typename Time>
int64_t LeastOf(const BoundSite& site, Time time) {
  int64_t least_ns = std::numeric_limits<int64_t>::max();
  for (const BoundCosts& costs : site.modes) {
    least_ns = std::min(least_ns, time(costs));
  }
  return least_ns;
}

class Bound {
 public:
  Bound(const PlanRequest& request, const CostSource& source, int64_t known_ns)
      : request_(request),
        source_(source),
        schedules_(SchedulesOf(request)),
        longest_walk_(LongestWalk(request.cluster)),
        least_ns_(known_ns) {}

  // Bounds by degrees and number of sites.
  using Chains = std::map<std::tuple<int64_t, int64_t, int64_t>, int64_t>;

  // The bounds as ChainBounds describes them.
  Chains RunChains(double within) {
    schedules_ = {
        .linear = true, .folded = false, .looped = false, .rounds = 0, .splits_backward = schedules_.splits_backward};
    within_ = within;
    Run();
    return std::move(chains_);
  }

  int64_t Run() {
    const JobSpec& job = request_.job;
    if (TriesAllOrders(job, request_.cluster)) {
      OrderClasses classes(request_.cluster);
      const bool is_open = source_.profile() == nullptr && job.placement.sites.empty();
      for (const SiteOrder& order : CandidateSiteOrders(job, request_.cluster)) {
        if (Linked(request_.cluster, order) && (!is_open || classes.IsNew(order))) {
          TryDegrees(order);
        }
      }
      return least_ns_;
    }
    SiteOrder all;
    for (const SiteSpec& site : request_.cluster.sites) {
      all.push_back(site.name);
    }
    TryDegrees(all);
    return least_ns_;
  }

 private:
  // The part that is the same for all chains of one choice of degrees, b, s and ZeRO stage.
  struct Point {
    JobSpec job;                           // with these degrees
    std::vector<ExecutionConfig> configs;  // of each mode of recomputation
    int64_t micro_batches = 0;
    std::vector<StageMemoryModel> memory;
    std::vector<std::optional<BoundSite>> sites;  // of the order; nullopt if it has no room for a stage
    int64_t reach_ns = 0;                         // less than no chain takes: ReachBoundNs

    const ExecutionConfig& config() const { return configs.front(); }  // in all but recomputation
  };

  // A choice, with the least time of its layers on all the ranks that the sites have room for.
  struct Choice {
    int64_t layers_ns = 0;
    size_t job = 0;  // that has its degrees
    std::vector<ExecutionConfig> configs;
    int64_t micro_batches = 0;
  };

  // Tries the choices that may take the least time first: their bounds rule out most of the others.
  void TryDegrees(const SiteOrder& order) {
    const bool in_order = TriesAllOrders(request_.job, request_.cluster);
    std::vector<JobSpec> jobs;
    std::vector<Choice> choices;
    for (const Degrees& degrees : DegreesOf(request_.job, request_.cluster, order, /*all_sites=*/in_order)) {
      jobs.push_back(JobOf(request_.job, {.sites = order,
                                          .tensor = degrees.tensor,
                                          .pipeline = request_.job.parallelism.pipeline,
                                          .data = degrees.data}));
      JobSpec one_mode = jobs.back();
      one_mode.parallelism.recompute = RecomputeModes(jobs.back()).front();
      for (const WorkChoice& work : WorkChoices(one_mode)) {
        Choice choice{.layers_ns = 0,
                      .job = jobs.size() - 1,
                      .configs = {},
                      .micro_batches = MicroBatchesOf(jobs.back(), work.micro_batch_size, work.sequence_length)};
        for (const Recompute mode : RecomputeModes(jobs.back())) {
          choice.configs.push_back(MakeExecutionConfig(jobs.back(), work.micro_batch_size, work.sequence_length, mode,
                                                       work.mode.zero_stage));
        }
        choice.layers_ns = LayersNs(jobs.back(), order, choice);
        choices.push_back(std::move(choice));
      }
    }
    std::ranges::stable_sort(choices, {}, &Choice::layers_ns);
    for (const Choice& choice : choices) {
      if (choice.layers_ns >= LimitNs()) {
        break;
      }
      TryPoint(jobs[choice.job], order, choice, in_order);
    }
  }

  // Time of the layers shared among the ranks without a remainder.
  int64_t LayersNs(const JobSpec& job, const SiteOrder& order, const Choice& choice) const {
    double layers_per_ns = 0;
    for (const std::string& name : order) {
      const SiteSpec& site = *request_.cluster.FindSite(name);
      const absl::StatusOr<int64_t> ranks = StageSlots(job, site);
      int64_t layer_ns = kUnknown;
      for (const ExecutionConfig& config : choice.configs) {
        const std::optional<ModelCosts> costs =
            ranks.ok() && *ranks > 0 ? FastestCosts(job.model, source_, config, site) : std::nullopt;
        layer_ns = costs.has_value() ? std::min(layer_ns, LayerNs(costs->block)) : layer_ns;
      }
      if (layer_ns < kUnknown) {
        layers_per_ns += static_cast<double>(*ranks) / static_cast<double>(std::max<int64_t>(1, layer_ns));
      }
    }
    const double layers = static_cast<double>(job.model.num_hidden_layers * choice.micro_batches);
    return layers_per_ns > 0 ? static_cast<int64_t>(std::min(layers / layers_per_ns * kRoundedDown, 1.0 * kUnknown))
                             : kUnknown;
  }

  void TryPoint(const JobSpec& job, const SiteOrder& order, const Choice& choice, bool in_order) {
    Point point{job, choice.configs, choice.micro_batches, {}, {}, 0};
    for (const ExecutionConfig& config : choice.configs) {
      point.memory.emplace_back(job.model, config);
    }
    for (size_t i = 0; i < order.size(); ++i) {
      const SiteSpec& site = *request_.cluster.FindSite(order[i]);
      const SiteSpec* before = i == 0 ? nullptr : request_.cluster.FindSite(order[i - 1]);
      const bool is_alike = before != nullptr && source_.profile() == nullptr && before->device == site.device &&
                            before->network == site.network && before->nodes == site.nodes &&
                            before->devices_per_node == site.devices_per_node;
      point.sites.push_back(is_alike ? point.sites.back() : SiteAt(point, site));
    }
    if (in_order) {
      TryOrder(point, order);
    } else {
      point.reach_ns = within_.has_value() ? 0 : ReachNs(point, order);
      if (within_.has_value() || point.reach_ns < least_ns_) {
        TryAnyOrder(point);
      }
    }
  }

  std::optional<BoundSite> SiteAt(const Point& point, const SiteSpec& site) const {
    const absl::StatusOr<int64_t> ranks = StageSlots(point.job, site);
    if (!ranks.ok() || *ranks <= 0) {
      return std::nullopt;
    }
    BoundSite bound{.max_ranks = *ranks, .modes = {}, .memory_bytes = site.device.usable_bytes(), .update_ns = {}};
    for (const ExecutionConfig& config : point.configs) {
      const std::optional<ModelCosts> costs = FastestCosts(point.job.model, source_, config, site);
      if (!costs.has_value()) {
        return std::nullopt;
      }
      bound.modes.push_back({costs->embedding, costs->block, costs->head});
      if (bound.update_ns.empty()) {  // does not depend on the mode
        bound.update_ns = MinUpdates(point.job, config, site, *costs);
      }
    }
    return bound;
  }

  BoundCrossing CrossingOf(const Point& point, const LinkSpec& link) const {
    if (link.inside()) {  // a message of each replica goes its own way
      return {.latency_ns = link.latency_ns, .serialization_ns = 0};
    }
    const double bytes = static_cast<double>(BoundaryMessageBytes(point.job.model, point.config())) *
                         static_cast<double>(point.config().data);
    const double seconds = std::min(bytes / link.bandwidth_bytes_per_s, 1e6);
    return {.latency_ns = link.latency_ns, .serialization_ns = SecondsToNs(seconds)};
  }

  void Lower(const Point& point, const BoundChain& chain) {
    const auto bound_ns = [&](int64_t limit_ns) {
      return PipelineBoundNs(chain, point.memory, point.job.model.num_hidden_layers, point.micro_batches, schedules_,
                             limit_ns);
    };
    if (!within_.has_value()) {
      least_ns_ = std::max(point.reach_ns, bound_ns(least_ns_));
      return;
    }
    const auto sites = std::ssize(chain.sites);
    int64_t& of_chain =
        chains_.try_emplace({point.config().tensor, point.config().data, sites}, kUnknown).first->second;
    of_chain = bound_ns(std::min(of_chain, LimitNs()));
    least_ns_ = std::min(least_ns_, of_chain);
  }

  // Greatest bound of interest.
  int64_t LimitNs() const {
    const double limit_ns = within_.value_or(1) * static_cast<double>(least_ns_);
    return limit_ns < static_cast<double>(kUnknown) ? static_cast<int64_t>(limit_ns) : kUnknown;
  }

  void TryOrder(const Point& point, const SiteOrder& order) {
    BoundChain chain;
    int64_t ranks = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      if (!point.sites[i].has_value()) {
        return;
      }
      ranks += point.sites[i]->max_ranks;
      chain.sites.push_back(*point.sites[i]);
      if (i > 0) {
        chain.crossings.push_back(CrossingOf(point, *request_.cluster.FindLink(order[i - 1], order[i])));
      }
    }
    const LinkSpec* back = request_.cluster.FindLink(order.back(), order.front());
    if (order.size() == 1) {
      chain.way_back_ns = 0;
    } else if (back != nullptr) {
      const BoundCrossing crossing = CrossingOf(point, *back);
      chain.way_back_ns = crossing.latency_ns + crossing.serialization_ns;
    }
    const int64_t pipeline = point.job.parallelism.pipeline;
    if (pipeline == 0 || pipeline >= ranks) {
      Lower(point, chain);
      return;
    }
    // The sites that have fewer ranks than they could are not known.
    chain.elsewhere = std::exchange(chain.crossings, {});
    chain.sites = {BestOf(chain.sites, pipeline)};
    Lower(point, chain);
  }

  // A site that is as good as the best of them in everything.
  static BoundSite BestOf(const std::vector<BoundSite>& sites, int64_t max_ranks) {
    BoundSite best = sites.front();
    for (const BoundSite& site : sites) {
      for (size_t mode = 0; mode < best.modes.size(); ++mode) {
        TakeFaster(site.modes[mode].embedding, best.modes[mode].embedding);
        TakeFaster(site.modes[mode].block, best.modes[mode].block);
        TakeFaster(site.modes[mode].head, best.modes[mode].head);
      }
      best.memory_bytes = std::max(best.memory_bytes, site.memory_bytes);
      best.max_ranks = std::max(best.max_ranks, site.max_ranks);
      std::ranges::transform(best.update_ns, site.update_ns, best.update_ns.begin(),
                             [](int64_t a, int64_t b) { return std::min(a, b); });
    }
    best.max_ranks = max_ranks > 0 ? max_ranks : best.max_ranks;
    return best;
  }

  // Bound over the sites of `order`, in any order.
  int64_t ReachNs(const Point& point, const SiteOrder& order) const {
    std::vector<ReachSite> sites;
    std::map<std::string_view, size_t> index;
    for (size_t i = 0; i < order.size(); ++i) {
      if (point.sites[i].has_value()) {
        const int64_t layer_ns = LeastOf(*point.sites[i], [](const BoundCosts& costs) { return LayerNs(costs.block); });
        index.emplace(order[i], sites.size());
        sites.push_back({point.sites[i]->max_ranks, std::max<int64_t>(1, point.micro_batches * layer_ns)});
      }
    }
    // The way of one micro-batch through all layers and back: the first one over a link has come through the layers
    // before it, and the last one has the others and the way back ahead of it.
    int64_t way_ns = std::numeric_limits<int64_t>::max() / 4;
    for (const std::optional<BoundSite>& site : point.sites) {
      if (site.has_value()) {
        const int64_t layer_ns =
            LeastOf(*site, [](const BoundCosts& costs) { return costs.block.forward_ns + costs.block.input_grad_ns; });
        way_ns = std::min(way_ns, point.job.model.num_hidden_layers * layer_ns);
      }
    }
    std::vector<ReachLink> links;
    for (const LinkSpec& link : request_.cluster.links) {
      const auto a = index.find(link.site_a);
      const auto b = index.find(link.site_b);
      if (a != index.end() && b != index.end()) {
        const BoundCrossing crossing = CrossingOf(point, link);
        const int64_t messages_ns = (point.micro_batches + 1) * crossing.serialization_ns;
        links.push_back({a->second, b->second, messages_ns + 2 * crossing.latency_ns + way_ns});
      }
    }
    return ReachBoundNs(sites, links, point.job.model.num_hidden_layers, least_ns_);
  }

  // Tries any number of the sites.
  void TryAnyOrder(const Point& point) {
    std::vector<BoundSite> sites;
    for (const std::optional<BoundSite>& site : point.sites) {
      if (site.has_value()) {
        sites.push_back(*site);
      }
    }
    if (sites.empty()) {
      return;
    }
    std::vector<int64_t> latencies_ns;
    BoundCrossing least{.latency_ns = 0, .serialization_ns = std::numeric_limits<int64_t>::max()};
    for (const LinkSpec& link : request_.cluster.links) {
      latencies_ns.push_back(link.latency_ns);
      least.serialization_ns = std::min(least.serialization_ns, CrossingOf(point, link).serialization_ns);
    }
    std::ranges::sort(latencies_ns);
    const int64_t pipeline = point.job.parallelism.pipeline;
    const BoundSite best = BestOf(sites, pipeline);
    BoundChain chain{.sites = {best}, .crossings = {}, .elsewhere = {}, .way_back_ns = 0};
    Lower(point, chain);
    const size_t most = std::min({sites.size(), longest_walk_, static_cast<size_t>(point.job.model.num_hidden_layers)});
    int64_t latencies_sum_ns = 0;
    for (size_t count = 2; count <= most && pipeline == 0; ++count) {
      if (static_cast<int64_t>(count - 1) * best.max_ranks >= point.job.model.num_hidden_layers) {
        break;  // one more has only a crossing more
      }
      latencies_sum_ns += latencies_ns[count - 2];
      if (2 * latencies_sum_ns >= LimitNs()) {
        break;  // nor with more of them
      }
      chain.sites.push_back(best);
      least.latency_ns = latencies_ns.front();
      chain.crossings.push_back(least);
      chain.elsewhere.push_back({.latency_ns = latencies_ns[count - 2] - least.latency_ns, .serialization_ns = 0});
      Lower(point, chain);
    }
  }

  const PlanRequest& request_;
  const CostSource& source_;
  BoundSchedules schedules_;
  size_t longest_walk_;
  int64_t least_ns_ = 0;
  std::optional<double> within_;  // ratio to the least: which bounds of chains are noted
  Chains chains_;
};

}  // namespace

int64_t ClusterBoundNs(const PlanRequest& request, const CostSource& source, int64_t known_ns) {
  return Bound(request, source, known_ns).Run();
}

std::vector<ChainBound> ChainBounds(const PlanRequest& request, const CostSource& source, double within) {
  std::vector<ChainBound> bounds;
  int64_t least_ns = kUnknown;
  for (const auto& [chain, bound_ns] : Bound(request, source, kUnknown).RunChains(within)) {
    bounds.push_back(
        {.degrees = {std::get<0>(chain), std::get<1>(chain)}, .sites = std::get<2>(chain), .bound_ns = bound_ns});
    least_ns = std::min(least_ns, bound_ns);
  }
  // A chain that was cut off before the least was known is noted with the limit of that time.
  std::erase_if(bounds, [&](const ChainBound& each) {
    return each.bound_ns == kUnknown || static_cast<double>(each.bound_ns) > within * static_cast<double>(least_ns);
  });
  std::ranges::stable_sort(bounds, {}, &ChainBound::bound_ns);
  return bounds;
}

}  // namespace geopipe
