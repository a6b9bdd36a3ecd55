#include "optimizer/plan/report/site_reduction.h"

#include <absl/status/status.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "optimizer/base/check.h"
#include "optimizer/model/pipeline_costs.h"

namespace geopipe {
namespace {

constexpr double kLongestReductionSeconds = 1e6;
constexpr int64_t kUnreachable = std::numeric_limits<int64_t>::max();

// Links from each site to each; null where there is none.
using Links = std::vector<std::vector<const LinkSpec*>>;

Links LinksOf(const ClusterSpec& cluster, const std::vector<std::string>& sites) {
  std::map<std::string_view, size_t> index;
  for (size_t i = 0; i < sites.size(); ++i) {
    index[sites[i]] = i;
  }
  Links links(sites.size(), std::vector<const LinkSpec*>(sites.size(), nullptr));
  for (const LinkSpec& link : cluster.links) {
    const auto a = index.find(SiteOfGroup(link.site_a));
    const auto b = index.find(SiteOfGroup(link.site_b));
    if (a != index.end() && b != index.end() && a != b) {
      links[a->second][b->second] = links[b->second][a->second] = &link;
    }
  }
  return links;
}

// A SiteReduction by the numbers of the sites.
struct Way {
  ReductionWay way = ReductionWay::kExchange;
  size_t root = 0;
  std::vector<std::pair<size_t, size_t>> links = {};
  double bandwidth_bytes_per_s = std::numeric_limits<double>::max();
  int64_t latency_ns = 0;
};

// The exchange; nullopt: two sites have no link.
std::optional<Way> Exchange(const Links& links) {
  Way exchange;
  for (size_t i = 0; i < links.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const LinkSpec* link = links[j][i];
      if (link == nullptr) {
        return std::nullopt;
      }
      exchange.links.emplace_back(j, i);
      exchange.bandwidth_bytes_per_s = std::min(exchange.bandwidth_bytes_per_s, link->bandwidth_bytes_per_s);
      exchange.latency_ns = std::max(exchange.latency_ns, 2 * link->latency_ns);
    }
  }
  return exchange;
}

// The tree of shortest paths from `root` over links of at least this bandwidth; nullopt: some site is beyond reach.
// Dijkstra, over few sites.
std::optional<Way> TreeFrom(const Links& links, size_t root, double min_bytes_per_s) {
  const size_t sites = links.size();
  Way tree{.way = ReductionWay::kTree, .root = root};
  std::vector<int64_t> distance_ns(sites, kUnreachable);
  std::vector<size_t> above(sites, root);
  std::vector<bool> is_settled(sites, false);
  distance_ns[root] = 0;
  for (size_t round = 0; round < sites; ++round) {
    size_t nearest = sites;
    for (size_t i = 0; i < sites; ++i) {
      if (!is_settled[i] && (nearest == sites || distance_ns[i] < distance_ns[nearest])) {
        nearest = i;
      }
    }
    if (distance_ns[nearest] == kUnreachable) {
      return std::nullopt;
    }
    is_settled[nearest] = true;
    tree.latency_ns = std::max(tree.latency_ns, 2 * distance_ns[nearest]);
    if (nearest != root) {
      tree.links.emplace_back(above[nearest], nearest);
      tree.bandwidth_bytes_per_s =
          std::min(tree.bandwidth_bytes_per_s, links[above[nearest]][nearest]->bandwidth_bytes_per_s);
    }
    for (size_t i = 0; i < sites; ++i) {
      const LinkSpec* link = is_settled[i] ? nullptr : links[nearest][i];
      if (link != nullptr && link->bandwidth_bytes_per_s >= min_bytes_per_s &&
          distance_ns[nearest] + link->latency_ns < distance_ns[i]) {
        distance_ns[i] = distance_ns[nearest] + link->latency_ns;
        above[i] = nearest;
      }
    }
  }
  return tree;
}

double LinkSeconds(ReductionWay way, size_t sites, double bandwidth_bytes_per_s, int64_t bytes) {
  const double share = way == ReductionWay::kExchange ? 2.0 / static_cast<double>(sites) : 1.0;
  return share * static_cast<double>(bytes) / bandwidth_bytes_per_s;
}

double AloneSeconds(const Way& way, size_t sites, int64_t bytes) {
  return LinkSeconds(way.way, sites, way.bandwidth_bytes_per_s, bytes) + static_cast<double>(way.latency_ns) / 1e9;
}

SiteReduction Named(const Way& way, const std::vector<std::string>& sites) {
  SiteReduction reduction{.way = way.way,
                          .sites = sites,
                          .root = way.way == ReductionWay::kTree ? sites[way.root] : "",
                          .links = {},
                          .bandwidth_bytes_per_s = way.bandwidth_bytes_per_s,
                          .latency_ns = way.latency_ns};
  for (const auto& [a, b] : way.links) {
    reduction.links.emplace_back(sites[a], sites[b]);
  }
  return reduction;
}

}  // namespace

std::string_view ReductionWayName(ReductionWay way) {
  static constexpr std::array<std::string_view, 2> kNames{"exchange", "tree"};
  return kNames[static_cast<size_t>(way)];
}

int64_t SiteReduction::LinkNs(int64_t bytes) const {
  return SecondsToNs(LinkSeconds(way, sites.size(), bandwidth_bytes_per_s, bytes));
}

int64_t SiteReduction::WanBytes(int64_t bytes) const { return 2 * (std::ssize(sites) - 1) * bytes; }

absl::StatusOr<SiteReduction> ChooseSiteReduction(const ClusterSpec& cluster, const std::vector<std::string>& sites,
                                                  int64_t bytes) {
  GP_CHECK(sites.size() > 1);
  const Links links = LinksOf(cluster, sites);
  std::optional<Way> best = Exchange(links);
  std::set<double, std::greater<>> bandwidths;
  for (const std::vector<const LinkSpec*>& row : links) {
    for (const LinkSpec* link : row) {
      if (link != nullptr) {
        bandwidths.insert(link->bandwidth_bytes_per_s);
      }
    }
  }
  const auto alone_s = [&](const Way& way) { return AloneSeconds(way, sites.size(), bytes); };
  for (const double bandwidth : bandwidths) {
    // The trees with greater bandwidth were looked at before.
    if (best.has_value() && LinkSeconds(ReductionWay::kTree, sites.size(), bandwidth, bytes) >= alone_s(*best)) {
      break;
    }
    for (size_t root = 0; root < sites.size(); ++root) {
      std::optional<Way> tree = TreeFrom(links, root, bandwidth);
      if (!tree.has_value()) {
        break;  // nor from any other
      }
      if (!best.has_value() || alone_s(*tree) < alone_s(*best)) {
        best = std::move(tree);
      }
    }
  }
  if (!best.has_value()) {
    return absl::FailedPreconditionError(
        fmt::format("the topology's links do not join {} with each other", fmt::join(sites, ", ")));
  }
  if (!(alone_s(*best) < kLongestReductionSeconds)) {
    return absl::FailedPreconditionError(
        fmt::format("{} bytes would take {:.0f} s over the sites' links", bytes, alone_s(*best)));
  }
  return Named(*best, sites);
}

}  // namespace geopipe
