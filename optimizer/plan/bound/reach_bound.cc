#include "optimizer/plan/bound/reach_bound.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace geopipe {
namespace {

// Sites that links join: the layers of those that a walk may pass, and the greatest two of those at its ends.
struct Joined {
  int64_t passed = 0;
  int64_t first_end = 0;
  int64_t second_end = 0;

  int64_t layers() const { return passed + first_end + second_end; }
  void AddEnd(int64_t layers) {
    second_end = std::max(second_end, std::min(first_end, layers));
    first_end = std::max(first_end, layers);
  }
};

bool MayReach(std::span<const ReachSite> sites, std::span<const ReachLink> links, int64_t layers, int64_t time_ns) {
  std::vector<size_t> above(sites.size());
  std::iota(above.begin(), above.end(), size_t{0});
  const auto top = [&](size_t site) {
    while (above[site] != site) {
      site = above[site] = above[above[site]];
    }
    return site;
  };
  std::vector<int> near(sites.size(), 0);
  for (const ReachLink& link : links) {
    if (link.iteration_ns <= time_ns) {
      ++near[link.a];
      ++near[link.b];
      above[top(link.a)] = top(link.b);
    }
  }
  std::vector<Joined> joined(sites.size());
  for (size_t site = 0; site < sites.size(); ++site) {
    const int64_t of_rank = std::min(layers, time_ns / sites[site].layer_ns);
    const int64_t here = std::min(layers, of_rank * std::min(layers, sites[site].ranks));
    Joined& with = joined[top(site)];
    if (near[site] > 1) {
      with.passed += here;
    } else {
      with.AddEnd(here);
    }
    if (with.layers() >= layers) {
      return true;
    }
  }
  return false;
}

}  // namespace

int64_t ReachBoundNs(std::span<const ReachSite> sites, std::span<const ReachLink> links, int64_t layers,
                     int64_t limit_ns) {
  if (!MayReach(sites, links, layers, limit_ns - 1)) {
    return limit_ns;
  }
  int64_t low_ns = 0;  // not in this time
  int64_t high_ns = limit_ns - 1;
  while (high_ns - low_ns > std::max<int64_t>(1, high_ns >> 14)) {
    const int64_t middle_ns = low_ns + (high_ns - low_ns) / 2;
    (MayReach(sites, links, layers, middle_ns) ? high_ns : low_ns) = middle_ns;
  }
  return low_ns + 1;
}

}  // namespace geopipe
