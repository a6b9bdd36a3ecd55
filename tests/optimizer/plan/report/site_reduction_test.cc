#include "optimizer/plan/report/site_reduction.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <string>

#include "optimizer/search/prng.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr double kGigabyte = 1e9;

struct Line {
  std::string a;
  std::string b;
  int64_t latency_ms = 0;
  double gigabytes_per_s = 0;
};

ClusterSpec ClusterOf(const std::vector<std::string>& sites, const std::vector<Line>& lines) {
  ClusterSpec cluster;
  for (const std::string& site : sites) {
    cluster.sites.push_back({.name = site, .device = {}});
  }
  for (const Line& line : lines) {
    cluster.links.push_back({line.a, line.b, line.latency_ms * kMillisecond, line.gigabytes_per_s * kGigabyte});
  }
  return cluster;
}

SiteReduction Choose(const ClusterSpec& cluster, int64_t bytes = 8'000'000'000) {
  std::vector<std::string> names;
  for (const SiteSpec& site : cluster.sites) {
    names.push_back(site.name);
  }
  return ChooseSiteReduction(cluster, names, bytes).value();
}

TEST_CASE("two sites exchange halves: all bytes over their link, and its latency twice") {
  const SiteReduction reduction = Choose(ClusterOf({"a", "b"}, {{"a", "b", 20, 4}}));
  CHECK(reduction.way == ReductionWay::kExchange);
  CHECK(reduction.LinkNs(8'000'000'000) == 2'000'000'000);
  CHECK(reduction.AloneNs(8'000'000'000) == 2'040'000'000);
  CHECK(reduction.WanBytes(8'000'000'000) == 16'000'000'000);
  CHECK(Choose(ClusterOf({"a", "b"}, {{"a", "b", 0, 4}})).AloneNs(8'000'000'000) == 2'000'000'000);
}

TEST_CASE("sites around a hub send everything to it and take the sum from it") {
  const SiteReduction star =
      Choose(ClusterOf({"a", "hub", "b", "c"}, {{"a", "hub", 5, 4}, {"hub", "b", 20, 2}, {"c", "hub", 1, 8}}));
  CHECK(star.way == ReductionWay::kTree);
  CHECK(star.root == "hub");
  CHECK(star.bandwidth_bytes_per_s == 2 * kGigabyte);
  CHECK(star.AloneNs(8'000'000'000) == 4'000'000'000 + 2 * 20 * kMillisecond);
  CHECK(star.WanBytes(1'000) == 6'000);
}

TEST_CASE("a chain has its root where the farthest site is nearest") {
  const SiteReduction chain =
      Choose(ClusterOf({"a", "b", "c", "d"}, {{"a", "b", 10, 4}, {"b", "c", 10, 4}, {"c", "d", 25, 4}}));
  CHECK(chain.root == "c");
  CHECK(chain.latency_ns == 2 * 25 * kMillisecond);
  CHECK(chain.links.size() == 3);
}

TEST_CASE("in a mesh each link carries two shares, unless one is too slow for that") {
  std::vector<Line> lines{{"a", "b", 10, 4}, {"a", "c", 10, 4}, {"b", "c", 30, 4}};
  const SiteReduction mesh = Choose(ClusterOf({"a", "b", "c"}, lines), 6'000'000'000);
  CHECK(mesh.way == ReductionWay::kExchange);
  CHECK(mesh.AloneNs(6'000'000'000) == 1'000'000'000 + 2 * 30 * kMillisecond);
  CHECK(mesh.WanBytes(6'000'000'000) == 24'000'000'000);
  lines[2].gigabytes_per_s = 0.5;
  const SiteReduction around = Choose(ClusterOf({"a", "b", "c"}, lines), 6'000'000'000);
  CHECK(around.way == ReductionWay::kTree);
  CHECK(around.root == "a");
  CHECK(around.AloneNs(6'000'000'000) == 1'500'000'000 + 2 * 10 * kMillisecond);
}

TEST_CASE("few bytes go over near links, many over wide ones") {
  const ClusterSpec cluster = ClusterOf({"a", "b", "c", "d"}, {{"a", "b", 1, 1},
                                                               {"b", "c", 1, 1},
                                                               {"c", "d", 1, 1},
                                                               {"a", "c", 50, 40},
                                                               {"b", "d", 50, 40},
                                                               {"a", "d", 50, 40}});
  CHECK(Choose(cluster, 1'000).latency_ns < 10 * kMillisecond);
  CHECK(Choose(cluster, 100'000'000'000).bandwidth_bytes_per_s == 40 * kGigabyte);
}

TEST_CASE("sites that links do not join, or that would take for ever, are told") {
  const ClusterSpec apart = ClusterOf({"a", "b", "c"}, {{"a", "b", 10, 4}});
  const auto none = ChooseSiteReduction(apart, {"a", "b", "c"}, 1);
  CHECK(none.status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(none.status().message() == "the topology's links do not join a, b, c with each other");
  CHECK(ChooseSiteReduction(apart, {"a", "b"}, 1).ok());
  const auto slow = ChooseSiteReduction(ClusterOf({"a", "b"}, {{"a", "b", 10, 1e-9}}), {"a", "b"}, 8'000'000);
  CHECK(slow.status().code() == absl::StatusCode::kFailedPrecondition);
}

// Shortest reduction over all trees of three of the links between four sites, with any root.
int64_t LeastOfTrees(const ClusterSpec& cluster, int64_t bytes) {
  int64_t least_ns = std::numeric_limits<int64_t>::max();
  const size_t links = cluster.links.size();
  for (size_t chosen = 0; chosen < (size_t{1} << links); ++chosen) {
    for (const SiteSpec& root : cluster.sites) {
      std::array<int64_t, 4> distance_ns{-1, -1, -1, -1};
      distance_ns[root.name.front() - 'a'] = 0;
      double bandwidth = std::numeric_limits<double>::max();
      int32_t count = 0;
      for (size_t i = 0; i < links; ++i) {
        if ((chosen >> i & 1) != 0) {
          bandwidth = std::min(bandwidth, cluster.links[i].bandwidth_bytes_per_s);
          ++count;
        }
      }
      for (int round = 0; round < 3; ++round) {
        for (size_t i = 0; i < links; ++i) {
          int64_t& a = distance_ns[cluster.links[i].site_a.front() - 'a'];
          int64_t& b = distance_ns[cluster.links[i].site_b.front() - 'a'];
          if ((chosen >> i & 1) != 0 && a >= 0 && b < 0) {
            b = a + cluster.links[i].latency_ns;
          } else if ((chosen >> i & 1) != 0 && b >= 0 && a < 0) {
            a = b + cluster.links[i].latency_ns;
          }
        }
      }
      if (count == 3 && std::ranges::min(distance_ns) >= 0) {
        const int64_t link_ns = std::llround(static_cast<double>(bytes) / bandwidth * 1e9);
        least_ns = std::min(least_ns, link_ns + 2 * std::ranges::max(distance_ns));
      }
    }
  }
  return least_ns;
}

TEST_CASE("no tree of links takes less than what is chosen") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  Prng prng(seed);
  int32_t trees = 0;
  int32_t apart = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<Line> lines;
    for (const auto& [a, b] : {std::pair("a", "b"), std::pair("a", "c"), std::pair("a", "d"), std::pair("b", "c"),
                               std::pair("b", "d"), std::pair("c", "d")}) {
      if (prng.Chance(3, 4)) {
        lines.push_back({a, b, prng.Between(0, 9), static_cast<double>(prng.Between(1, 5))});
      }
    }
    const ClusterSpec cluster = ClusterOf({"a", "b", "c", "d"}, lines);
    const int64_t bytes = prng.Between(1, 60) * 1'000'000;
    const int64_t least_ns = LeastOfTrees(cluster, bytes);
    const auto chosen = ChooseSiteReduction(cluster, {"a", "b", "c", "d"}, bytes);
    REQUIRE(chosen.ok() == (least_ns != std::numeric_limits<int64_t>::max()));
    if (!chosen.ok()) {
      ++apart;
      continue;
    }
    CHECK(chosen->AloneNs(bytes) <= least_ns);
    if (chosen->way == ReductionWay::kTree) {
      ++trees;
      CHECK(chosen->AloneNs(bytes) == least_ns);
      CHECK(chosen->links.size() == 3);
    }
  }
  CHECK(trees > 50);
  CHECK(apart > 5);
}

}  // namespace
}  // namespace geopipe
