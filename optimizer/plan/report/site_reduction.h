// Ways to sum the gradients of all sites over the sites' links, and their times.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "optimizer/model/cluster.h"

namespace geopipe {

// With k sites, n bytes and the least bandwidth B of the links in use:
// exchange: each site sums 1/k of the bytes and sends the sum to all others (a reduce-scatter and an all-gather; Thakur
//   et al., 2005), so a link carries 2 n/k bytes in each direction, in two steps: 2 n / (k B) and twice the greatest
//   latency. It needs a link between every two sites.
// tree: sums go up a tree of links to its root and down again, in chunks that are small against a bucket of gradients,
//   so that all links work at once, both ways (Sanders et al., 2009): n / B and twice the latency from the root to the
//   farthest site.
// A ring needs 2 (k - 1)/k n / B and 2 (k - 1) steps, and is never better than the chain that is left of it without one
// of its links.
enum class ReductionWay : uint8_t { kExchange, kTree };
std::string_view ReductionWayName(ReductionWay way);  // "exchange", "tree"

struct SiteReduction {
  ReductionWay way = ReductionWay::kExchange;
  std::vector<std::string> sites;
  std::string root;                                        // of the tree
  std::vector<std::pair<std::string, std::string>> links;  // in use; of a tree the upper site first
  double bandwidth_bytes_per_s = 0;                        // least of these links, per direction
  int64_t latency_ns = 0;  // from when the last byte has entered until the sum is everywhere, on an idle network

  // Time for which the slowest link is busy with the reduction of `bytes`, in each direction.
  int64_t LinkNs(int64_t bytes) const;
  // Time of a reduction that has the links for itself.
  int64_t AloneNs(int64_t bytes) const { return LinkNs(bytes) + latency_ns; }
  // Bytes over all links, both directions: 2 (k - 1) times `bytes` either way.
  int64_t WanBytes(int64_t bytes) const;

  friend bool operator==(const SiteReduction&, const SiteReduction&) = default;
};

// The way that takes least for `bytes`; of trees, for each bandwidth that is the least of one, the shortest paths by
// latency from each site. FailedPrecondition: the links do not join the sites, or it would take a million seconds.
// REQUIRES: two or more different sites of the cluster.
absl::StatusOr<SiteReduction> ChooseSiteReduction(const ClusterSpec& cluster, const std::vector<std::string>& sites,
                                                  int64_t bytes);

}  // namespace geopipe
