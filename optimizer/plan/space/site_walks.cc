#include "optimizer/plan/space/site_walks.h"

#include <absl/status/statusor.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "optimizer/model/groups/node_groups.h"
#include "optimizer/model/pipeline_costs.h"
#include "optimizer/model/transformer.h"
#include "optimizer/plan/space/choices.h"
#include "optimizer/plan/space/fastest_costs.h"
#include "optimizer/plan/space/placement.h"
#include "optimizer/search/prng.h"

namespace geopipe {
namespace {

constexpr int64_t kBeyondNs = std::numeric_limits<int64_t>::max() / 4;
// Paces to try, in percent of the fastest one: slower ones need fewer sites.
constexpr std::array<int64_t, 4> kPacePercents{100, 103, 110, 130};
// Walks from each site at each pace: one that takes in the site that adds most, the others with some chance.
constexpr uint64_t kVariants = 24;
// Most by which chance may raise the layers that a site counts for, in percent.
constexpr int64_t kChancePercent = 300;

struct Crossing {
  int64_t latency_ns = kBeyondNs;
  int64_t serialization_ns = kBeyondNs;  // of the messages of a micro-batch, all replicas'
};

struct AbleSite {
  const SiteSpec* spec = nullptr;
  int64_t slots = 0;
  int64_t layer_ns = 0;  // of one micro-batch
};

class PaceSearch {
 public:
  PaceSearch(const JobSpec& job, const ClusterSpec& cluster, const CostSource& source)
      : job_(job), layers_(job.model.num_hidden_layers), max_ranks_(layers_ / MinStagesPerRank(job)) {
    int64_t least_ns = kBeyondNs;
    for (const int64_t b : job.search.micro_batch_size) {
      for (const int64_t s : job.search.sequence_length) {
        const ExecutionConfig config =
            MakeExecutionConfig(job, b, s, RecomputeModes(job).front(), ZeroStages(job).front());
        const int64_t micro_batches = MicroBatchesOf(job, b, s);
        std::vector<AbleSite> sites = micro_batches == 0 ? std::vector<AbleSite>{} : AbleAt(cluster, source, config);
        const auto fastest = std::ranges::min_element(sites, {}, &AbleSite::layer_ns);
        if (fastest != sites.end() && micro_batches * fastest->layer_ns < least_ns) {
          least_ns = micro_batches * fastest->layer_ns;
          sites_ = std::move(sites);
          micro_batches_ = micro_batches;
          message_bytes_ = static_cast<double>(BoundaryMessageBytes(job.model, config)) *
                           static_cast<double>(std::max<int64_t>(1, job.parallelism.data));
        }
      }
    }
    AddCrossings(cluster);
  }

  std::vector<PacedWalk> Run(size_t count) const {
    std::vector<PacedWalk> walks;
    const std::optional<int64_t> fastest_ns = sites_.empty() ? std::nullopt : FastestPaceNs();
    if (!fastest_ns.has_value()) {
      return walks;
    }
    for (const int64_t percent : kPacePercents) {
      for (size_t i = 0; i < sites_.size() * kVariants; ++i) {
        const std::vector<size_t> walk = WalkFrom(i / kVariants, *fastest_ns / 100 * percent, i % kVariants);
        if (walk.empty()) {
          continue;
        }
        PacedWalk estimated = Estimate(walk);
        if (estimated.ranks > 0 && GroupsStandTogether(estimated.sites) &&
            std::ranges::find(walks, estimated.sites, &PacedWalk::sites) == walks.end()) {
          walks.push_back(std::move(estimated));
        }
      }
    }
    std::ranges::stable_sort(walks, {}, &PacedWalk::iteration_ns);
    walks.resize(std::min(walks.size(), count));
    return walks;
  }

 private:
  std::vector<AbleSite> AbleAt(const ClusterSpec& cluster, const CostSource& source,
                               const ExecutionConfig& config) const {
    std::vector<AbleSite> sites;
    for (const SiteSpec& site : cluster.sites) {
      const absl::StatusOr<int64_t> slots = StageSlots(job_, site);
      const std::optional<ModelCosts> costs =
          slots.ok() && *slots > 0 ? FastestCosts(job_.model, source, config, site) : std::nullopt;
      if (costs.has_value()) {
        const PartCosts& block = costs->block;
        sites.push_back({&site, std::min(*slots, layers_),
                         std::max<int64_t>(1, block.forward_ns + block.input_grad_ns + block.weight_grad_ns)});
      }
    }
    return sites;
  }

  void AddCrossings(const ClusterSpec& cluster) {
    std::map<std::string_view, size_t> index;
    for (const AbleSite& site : sites_) {
      index.emplace(site.spec->name, index.size());
    }
    crossings_.assign(sites_.size(), std::vector<Crossing>(sites_.size()));
    for (const LinkSpec& link : cluster.links) {
      const auto a = index.find(link.site_a);
      const auto b = index.find(link.site_b);
      if (a != index.end() && b != index.end()) {
        // A message of each replica goes its own way inside a site.
        const double seconds = link.inside() ? 0 : std::min(message_bytes_ / link.bandwidth_bytes_per_s, 1e6);
        crossings_[a->second][b->second] = crossings_[b->second][a->second] = {link.latency_ns, SecondsToNs(seconds)};
      }
    }
  }

  // Number of layers that the site works through in that time.
  int64_t LayersAt(size_t site, int64_t pace_ns) const {
    return std::min(layers_, sites_[site].slots * (pace_ns / sites_[site].layer_ns));
  }

  // A walk that grows.
  struct Growth {
    std::vector<size_t> walk;
    std::vector<bool> taken;
    int64_t left = 0;  // layers
    int64_t pace_ns = 0;
    std::optional<Prng> prng = {};
  };

  bool Keeps(const Growth& growth, size_t from, size_t to) const {
    return crossings_[from][to].serialization_ns <= growth.pace_ns;
  }
  // Number of layers that the site would add; 0: it is in the walk, or too slow.
  int64_t Adds(const Growth& growth, size_t site) const {
    return growth.taken[site] ? 0 : std::min(growth.left, LayersAt(site, growth.pace_ns));
  }
  void TakeIn(Growth& growth, size_t site, size_t at) const {
    growth.left -= Adds(growth, site);
    growth.taken[site] = true;
    growth.walk.insert(growth.walk.begin() + static_cast<std::ptrdiff_t>(at), site);
  }

  // Takes in, at either end or else between two, the site that adds most, of equals the nearest.
  bool TakeInBest(Growth& growth, bool between) const {
    std::pair<int64_t, int64_t> best_gain{0, 0};  // layers, negated latency
    size_t best = 0;
    size_t best_at = 0;
    const size_t count = growth.walk.size();
    for (size_t at = between ? 1 : 0; at < (between ? count : count + 1); at += between ? 1 : count) {
      for (size_t site = 0; site < sites_.size(); ++site) {
        const bool is_kept = (at == 0 || Keeps(growth, growth.walk[at - 1], site)) &&
                             (at == count || Keeps(growth, growth.walk[at], site));
        if (!is_kept) {
          continue;
        }
        const int64_t latency_ns = (at == 0 ? 0 : crossings_[growth.walk[at - 1]][site].latency_ns) +
                                   (at == count ? 0 : crossings_[growth.walk[at]][site].latency_ns);
        const int64_t adds = Adds(growth, site);
        const int64_t counted = growth.prng.has_value() ? adds * growth.prng->Between(100, kChancePercent) : adds;
        const std::pair gain{counted, -latency_ns};
        if (adds > 0 && gain > best_gain) {
          best_gain = gain;
          best = site;
          best_at = at;
        }
      }
    }
    if (best_gain.first > 0) {
      TakeIn(growth, best, best_at);
    }
    return best_gain.first > 0;
  }

  // Turns the part behind a site that the end has a link to, so that one inside becomes the end, if a site can follow
  // that one (Posa's rotation).
  bool Rotate(Growth& growth) const {
    for (size_t i = 0; i + 2 < growth.walk.size(); ++i) {
      if (!Keeps(growth, growth.walk[i], growth.walk.back())) {
        continue;
      }
      for (size_t site = 0; site < sites_.size(); ++site) {
        if (Adds(growth, site) > 0 && Keeps(growth, growth.walk[i + 1], site)) {
          std::reverse(growth.walk.begin() + static_cast<std::ptrdiff_t>(i) + 1, growth.walk.end());
          return true;
        }
      }
    }
    return false;
  }

  // A walk from `start`. Empty: the sites that it reaches do not have room for all layers.
  std::vector<size_t> WalkFrom(size_t start, int64_t pace_ns, uint64_t variant) const {
    Growth growth{{}, std::vector<bool>(sites_.size(), false), layers_, pace_ns};
    if (variant > 0) {
      growth.prng.emplace(job_.search.seed * 1'000'003 + start * kVariants + variant);
    }
    if (Adds(growth, start) == 0) {
      return {};
    }
    TakeIn(growth, start, 0);
    while (growth.left > 0) {
      if (TakeInBest(growth, false) || TakeInBest(growth, true) || Rotate(growth)) {
        continue;
      }
      std::ranges::reverse(growth.walk);
      if (!Rotate(growth)) {
        return {};
      }
    }
    return growth.walk;
  }

  // The least pace, within a percent, at which a walk is found; nullopt: there is none.
  std::optional<int64_t> FastestPaceNs() const {
    const auto is_found = [&](int64_t pace_ns) {
      for (size_t i = 0; i < sites_.size() * kVariants; ++i) {
        if (!WalkFrom(i % sites_.size(), pace_ns, i / sites_.size()).empty()) {
          return true;
        }
      }
      return false;
    };
    int64_t low_ns = 0;
    int64_t high_ns = std::ranges::min_element(sites_, {}, &AbleSite::layer_ns)->layer_ns;
    while (!is_found(high_ns)) {
      if (high_ns > kBeyondNs / 2) {
        return std::nullopt;
      }
      low_ns = std::exchange(high_ns, 2 * high_ns);
    }
    while (high_ns - low_ns > high_ns / 100) {
      const int64_t middle_ns = low_ns + (high_ns - low_ns) / 2;
      (is_found(middle_ns) ? high_ns : low_ns) = middle_ns;
    }
    return high_ns;
  }

  // Ranks that hold all layers at some pace.
  struct Ranks {
    int64_t count = 0;    // 0: there are too few
    int64_t work_ns = 0;  // of one micro-batch, in all of them
  };

  // The fastest ranks first, and one on each site.
  Ranks RanksAt(const std::vector<size_t>& by_speed, int64_t pace_ns) const {
    Ranks ranks;
    int64_t left = layers_;
    for (const size_t site : by_speed) {
      const int64_t each = pace_ns / sites_[site].layer_ns;
      if (each == 0) {
        return {};
      }
      const int64_t here = std::clamp<int64_t>((left + each - 1) / each, 1, sites_[site].slots);
      ranks.count += here;
      ranks.work_ns += std::clamp<int64_t>(left, 1, here * each) * sites_[site].layer_ns;
      left -= here * each;
    }
    return left > 0 || ranks.count > max_ranks_ ? Ranks{} : ranks;
  }

  PacedWalk Estimate(const std::vector<size_t>& walk) const {
    std::vector<size_t> by_speed = walk;
    std::ranges::stable_sort(by_speed, {}, [&](size_t site) { return sites_[site].layer_ns; });
    PacedWalk estimated;
    int64_t slowest_ns = 0;
    int64_t way_ns = 0;
    for (size_t i = 0; i < walk.size(); ++i) {
      estimated.sites.push_back(sites_[walk[i]].spec->name);
      if (i > 0) {
        const Crossing& crossing = crossings_[walk[i - 1]][walk[i]];
        slowest_ns = std::max(slowest_ns, crossing.serialization_ns);
        way_ns += 2 * (crossing.latency_ns + crossing.serialization_ns);
      }
    }
    int64_t low_ns = 0;
    int64_t high_ns = sites_[by_speed.back()].layer_ns * layers_;  // one rank on each, all layers on any
    while (high_ns - low_ns > 1) {
      const int64_t middle_ns = low_ns + (high_ns - low_ns) / 2;
      (RanksAt(by_speed, middle_ns).count > 0 ? high_ns : low_ns) = middle_ns;
    }
    const int64_t fixed = job_.parallelism.pipeline;
    const Ranks ranks = RanksAt(by_speed, high_ns);
    estimated.ranks = fixed > 0 && ranks.count > 0 ? fixed : ranks.count;
    estimated.iteration_ns = (micro_batches_ - 1) * std::max(high_ns, slowest_ns) + way_ns + ranks.work_ns;
    return estimated;
  }

  const JobSpec& job_;
  int64_t layers_;
  int64_t max_ranks_;
  int64_t micro_batches_ = 0;
  double message_bytes_ = 0;
  std::vector<AbleSite> sites_;
  std::vector<std::vector<Crossing>> crossings_;
};

}  // namespace

bool IsUniform(const ClusterSpec& cluster) {
  const auto like_first = [&](SiteSpec site) {
    site.name = cluster.sites.front().name;
    return site == cluster.sites.front();
  };
  const auto as_first = [&](LinkSpec link) {
    link.site_a = cluster.links.front().site_a;
    link.site_b = cluster.links.front().site_b;
    return link == cluster.links.front();
  };
  return std::ranges::all_of(cluster.sites, like_first) && std::ranges::all_of(cluster.links, as_first);
}

std::vector<PacedWalk> FindPacedWalks(const JobSpec& job, const ClusterSpec& cluster, const CostSource& source,
                                      size_t count) {
  return PaceSearch(job, cluster, source).Run(count);
}

}  // namespace geopipe
