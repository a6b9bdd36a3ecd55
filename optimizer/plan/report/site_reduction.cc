#include "optimizer/plan/report/site_reduction.h"

#include <absl/status/status.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <limits>
#include <optional>
#include <set>

#include "optimizer/base/check.h"
#include "optimizer/model/pipeline_costs.h"

namespace geopipe {
namespace {

constexpr double kLongestReductionSeconds = 1e6;
constexpr int64_t kUnreachable = std::numeric_limits<int64_t>::max();

// nullopt: two sites have no link.
std::optional<SiteReduction> Exchange(const ClusterSpec& cluster, const std::vector<std::string>& sites) {
  SiteReduction exchange{.way = ReductionWay::kExchange,
                         .sites = sites,
                         .root = "",
                         .links = {},
                         .bandwidth_bytes_per_s = std::numeric_limits<double>::max(),
                         .latency_ns = 0};
  for (size_t i = 0; i < sites.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const LinkSpec* link = cluster.FindLink(sites[j], sites[i]);
      if (link == nullptr) {
        return std::nullopt;
      }
      exchange.links.emplace_back(sites[j], sites[i]);
      exchange.bandwidth_bytes_per_s = std::min(exchange.bandwidth_bytes_per_s, link->bandwidth_bytes_per_s);
      exchange.latency_ns = std::max(exchange.latency_ns, 2 * link->latency_ns);
    }
  }
  return exchange;
}

// The shortest paths from `root` over links of at least this bandwidth; nullopt: some site is beyond reach. Dijkstra,
// over few sites.
std::optional<SiteReduction> TreeFrom(const ClusterSpec& cluster, const std::vector<std::string>& sites, size_t root,
                                      double min_bytes_per_s) {
  SiteReduction tree{.way = ReductionWay::kTree,
                     .sites = sites,
                     .root = sites[root],
                     .links = {},
                     .bandwidth_bytes_per_s = std::numeric_limits<double>::max(),
                     .latency_ns = 0};
  std::vector<int64_t> distance_ns(sites.size(), kUnreachable);
  std::vector<const LinkSpec*> way(sites.size(), nullptr);  // to each site
  std::vector<size_t> above(sites.size(), root);
  std::vector<bool> is_settled(sites.size(), false);
  distance_ns[root] = 0;
  for (size_t round = 0; round < sites.size(); ++round) {
    size_t nearest = sites.size();
    for (size_t i = 0; i < sites.size(); ++i) {
      if (!is_settled[i] && (nearest == sites.size() || distance_ns[i] < distance_ns[nearest])) {
        nearest = i;
      }
    }
    if (distance_ns[nearest] == kUnreachable) {
      return std::nullopt;
    }
    is_settled[nearest] = true;
    tree.latency_ns = std::max(tree.latency_ns, 2 * distance_ns[nearest]);
    if (nearest != root) {
      tree.links.emplace_back(sites[above[nearest]], sites[nearest]);
      tree.bandwidth_bytes_per_s = std::min(tree.bandwidth_bytes_per_s, way[nearest]->bandwidth_bytes_per_s);
    }
    for (size_t i = 0; i < sites.size(); ++i) {
      const LinkSpec* link = is_settled[i] ? nullptr : cluster.FindLink(sites[nearest], sites[i]);
      if (link != nullptr && link->bandwidth_bytes_per_s >= min_bytes_per_s &&
          distance_ns[nearest] + link->latency_ns < distance_ns[i]) {
        distance_ns[i] = distance_ns[nearest] + link->latency_ns;
        way[i] = link;
        above[i] = nearest;
      }
    }
  }
  return tree;
}

double LinkSeconds(const SiteReduction& reduction, int64_t bytes) {
  const double share =
      reduction.way == ReductionWay::kExchange ? 2.0 / static_cast<double>(reduction.sites.size()) : 1.0;
  return share * static_cast<double>(bytes) / reduction.bandwidth_bytes_per_s;
}

double AloneSeconds(const SiteReduction& reduction, int64_t bytes) {
  return LinkSeconds(reduction, bytes) + static_cast<double>(reduction.latency_ns) / 1e9;
}

}  // namespace

std::string_view ReductionWayName(ReductionWay way) {
  static constexpr std::array<std::string_view, 2> kNames{"exchange", "tree"};
  return kNames[static_cast<size_t>(way)];
}

int64_t SiteReduction::LinkNs(int64_t bytes) const { return SecondsToNs(LinkSeconds(*this, bytes)); }

int64_t SiteReduction::WanBytes(int64_t bytes) const { return 2 * (std::ssize(sites) - 1) * bytes; }

absl::StatusOr<SiteReduction> ChooseSiteReduction(const ClusterSpec& cluster, const std::vector<std::string>& sites,
                                                  int64_t bytes) {
  GP_CHECK(sites.size() > 1);
  std::optional<SiteReduction> best = Exchange(cluster, sites);
  std::set<double, std::greater<>> bandwidths;
  for (const LinkSpec& link : cluster.links) {
    const bool joins_two =
        std::ranges::find(sites, link.site_a) != sites.end() && std::ranges::find(sites, link.site_b) != sites.end();
    if (joins_two) {
      bandwidths.insert(link.bandwidth_bytes_per_s);
    }
  }
  for (const double bandwidth : bandwidths) {
    for (size_t root = 0; root < sites.size(); ++root) {
      std::optional<SiteReduction> tree = TreeFrom(cluster, sites, root, bandwidth);
      if (tree.has_value() && (!best.has_value() || AloneSeconds(*tree, bytes) < AloneSeconds(*best, bytes))) {
        best = std::move(tree);
      }
    }
  }
  if (!best.has_value()) {
    return absl::FailedPreconditionError(
        fmt::format("the topology's links do not join {} with each other", fmt::join(sites, ", ")));
  }
  if (!(AloneSeconds(*best, bytes) < kLongestReductionSeconds)) {
    return absl::FailedPreconditionError(
        fmt::format("{} bytes would take {:.0f} s over the sites' links", bytes, AloneSeconds(*best, bytes)));
  }
  return *std::move(best);
}

}  // namespace geopipe
