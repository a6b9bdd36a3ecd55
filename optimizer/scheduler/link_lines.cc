#include "optimizer/scheduler/link_lines.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <utility>

namespace geopipe {
namespace {

// Number of boundaries of a link from which on only all of them together make a line: there would be very many.
constexpr size_t kMaxMembers = 8;

// A run of adjacent boundaries in the list of those that share one direction of a link; first < last.
struct Group {
  int32_t first = 0;
  int32_t last = 0;
  int64_t rate_ns = 0;
};

std::vector<Group> SharingGroups(const PipelineCosts& costs) {
  std::map<std::pair<std::string, bool>, std::vector<int32_t>> sharing;
  for (int32_t boundary = 0; boundary + 1 < costs.shape.stages; ++boundary) {
    const BoundaryCost& cost = costs.boundaries[boundary];
    const int32_t below = costs.shape.placement[boundary];
    const int32_t above = costs.shape.placement[boundary + 1];
    if (cost.crosses && !cost.link.empty() && below != above) {
      sharing[{cost.link, above > below}].push_back(boundary);
    }
  }
  std::vector<Group> groups;
  for (const auto& [link, boundaries] : sharing) {
    if (boundaries.size() > kMaxMembers) {
      groups.push_back({boundaries.front(), boundaries.back(),
                        costs.boundaries[boundaries.front()].serialization_ns * std::ssize(boundaries)});
      continue;
    }
    for (size_t i = 0; i < boundaries.size(); ++i) {
      Group group{boundaries[i], boundaries[i], costs.boundaries[boundaries[i]].serialization_ns};
      for (size_t k = i + 1; k < boundaries.size(); ++k) {
        group.last = boundaries[k];
        group.rate_ns += costs.boundaries[boundaries[k]].serialization_ns;
        groups.push_back(group);
      }
    }
  }
  return groups;
}

}  // namespace

int64_t GreatestNs(const std::vector<LinkLine>& lines, int64_t n) {
  int64_t greatest_ns = 0;
  for (const LinkLine& line : lines) {
    greatest_ns = std::max(greatest_ns, line.base_ns + n * line.rate_ns);
  }
  return greatest_ns;
}

std::vector<LinkLines> FindLinkLines(const PipelineCosts& costs, const std::vector<StagePath>& paths) {
  std::vector<LinkLines> lines(paths.size());
  const auto travel_ns = [&](int32_t boundary) {
    return costs.boundaries[boundary].latency_ns + costs.boundaries[boundary].overhead_ns;
  };
  for (const Group& group : SharingGroups(costs)) {
    const StagePath& near_first = paths[group.first];
    const StagePath& far_last = paths[group.last + 1];
    for (int32_t stage = 0; stage < costs.shape.stages; ++stage) {
      const StagePath& at = paths[stage];
      LinkLines& here = lines[stage];
      // Time from the end of I of the first boundary's lower stage, and of the stage itself, to the end.
      const int64_t out_ns = costs.input_grad_ns[group.first] + near_first.way_out_ns;
      const int64_t own_ns = costs.input_grad_ns[stage];
      if (stage > group.last) {
        const int64_t enters_ns = near_first.first_forward_ns + costs.forward_ns[group.first];
        const int64_t after_ns = travel_ns(group.last) + at.first_forward_ns - far_last.first_forward_ns;
        here.forward_heads.push_back({enters_ns + after_ns, group.rate_ns});
        const int64_t down_ns = own_ns + at.way_out_ns - far_last.way_out_ns;
        here.input_tails.push_back({down_ns + travel_ns(group.first) + out_ns, group.rate_ns});
      }
      if (stage <= group.first) {
        const int64_t enters_ns = near_first.first_forward_ns + costs.forward_ns[group.first] - at.first_forward_ns;
        const int64_t after_ns = travel_ns(group.last) + far_last.round_trip_ns + far_last.way_out_ns;
        here.forward_tails.push_back({enters_ns + after_ns, group.rate_ns});
        const int64_t made_ns = far_last.first_forward_ns + far_last.round_trip_ns;
        const int64_t back_ns = stage == group.first ? 0 : out_ns - at.way_out_ns - own_ns;
        here.input_heads.push_back({made_ns + travel_ns(group.first) + back_ns, group.rate_ns});
      }
    }
  }
  return lines;
}

}  // namespace geopipe
