#include "optimizer/plan/bound/reach_bound.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "optimizer/search/prng.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max() / 4;

// The least time of any walk, by trying all: the slowest of its links, or what its ranks need for all layers.
class AllWalks {
 public:
  AllWalks(const std::vector<ReachSite>& sites, const std::vector<ReachLink>& links, int64_t layers)
      : sites_(sites), layers_(layers) {
    for (const ReachLink& link : links) {
      busy_ns_[{link.a, link.b}] = busy_ns_[{link.b, link.a}] = link.iteration_ns;
    }
  }

  int64_t LeastNs() {
    for (size_t start = 0; start < sites_.size(); ++start) {
      walk_ = {start};
      Extend(0);
    }
    return least_ns_;
  }

 private:
  int64_t WorkNs() const {
    for (int64_t time_ns = 1;; ++time_ns) {
      int64_t done = 0;
      for (const size_t site : walk_) {
        done += sites_[site].ranks * (time_ns / sites_[site].layer_ns);
      }
      if (done >= layers_) {
        return time_ns;
      }
    }
  }

  void Extend(int64_t slowest_ns) {
    least_ns_ = std::min(least_ns_, std::max(slowest_ns, WorkNs()));
    for (size_t next = 0; next < sites_.size(); ++next) {
      const auto link = busy_ns_.find({walk_.back(), next});
      if (link != busy_ns_.end() && std::ranges::find(walk_, next) == walk_.end()) {
        walk_.push_back(next);
        Extend(std::max(slowest_ns, link->second));
        walk_.pop_back();
      }
    }
  }

  const std::vector<ReachSite>& sites_;
  int64_t layers_;
  std::map<std::pair<size_t, size_t>, int64_t> busy_ns_;
  std::vector<size_t> walk_;
  int64_t least_ns_ = kNever;
};

TEST_CASE("no walk over a few sites takes less than the bound, and few take much more") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  Prng prng(seed);
  int met = 0;
  for (int i = 0; i < 200; ++i) {
    std::vector<ReachSite> sites(prng.Between(1, 6));
    for (ReachSite& site : sites) {
      site = {prng.Between(1, 4), prng.Between(1, 30)};
    }
    std::vector<ReachLink> links;
    for (size_t a = 0; a < sites.size(); ++a) {
      for (size_t b = 0; b < a; ++b) {
        if (prng.Chance(2, 3)) {
          links.push_back({a, b, prng.Between(1, 200)});
        }
      }
    }
    const int64_t layers = prng.Between(1, 40);
    const int64_t least_ns = AllWalks(sites, links, layers).LeastNs();
    const int64_t bound_ns = ReachBoundNs(sites, links, layers, 1'000'000);
    REQUIRE(bound_ns <= least_ns);
    met += bound_ns + 1 >= least_ns ? 1 : 0;
  }
  CHECK(met > 120);
}

TEST_CASE("of a star a walk passes the hub and two others") {
  const std::vector<ReachSite> sites{{2, 10}, {2, 10}, {3, 10}, {4, 10}};
  const std::vector<ReachLink> links{{0, 1, 5}, {0, 2, 5}, {0, 3, 5}};
  CHECK(ReachBoundNs(sites, links, 9, 1'000) == 10);
  CHECK(ReachBoundNs(sites, links, 10, 1'000) == 20);
}

TEST_CASE("the limit stands where no walk takes less") {
  const std::vector<ReachSite> sites{{1, 10}};
  CHECK(ReachBoundNs(sites, {}, 5, 50) == 50);
  CHECK(ReachBoundNs(sites, {}, 5, 60) == 50);
}

}  // namespace
}  // namespace geopipe
