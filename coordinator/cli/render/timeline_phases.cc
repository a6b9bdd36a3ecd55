#include "coordinator/cli/render/timeline_phases.h"

#include <algorithm>

namespace geopipe {

std::optional<TimelinePhases> PhasesOf(const SimulationResult& result) {
  TimelinePhases phases;
  phases.drain_ns = result.iteration_ns;
  for (const auto& lane : result.timeline) {
    int64_t last_forward_ns = 0;
    bool backward = false;
    for (const ActionTiming& timing : lane) {
      if (timing.action.kind == ActionKind::kForward) {
        last_forward_ns = timing.end_ns;
      } else if (!backward) {
        backward = true;
        phases.steady_ns = std::max(phases.steady_ns, timing.start_ns);
      }
    }
    if (!lane.empty()) {
      phases.drain_ns = std::min(phases.drain_ns, last_forward_ns);
    }
  }
  if (phases.steady_ns >= phases.drain_ns) {
    return std::nullopt;
  }
  return phases;
}

std::array<std::vector<double>, 4> SharesOf(const std::vector<ActionTiming>& lane, int64_t span_ns, size_t columns) {
  std::array<std::vector<double>, 4> shares;
  for (std::vector<double>& share : shares) {
    share.assign(columns, 0);
  }
  const double column_ns = static_cast<double>(span_ns) / static_cast<double>(columns);
  for (const auto& [action, start_ns, end_ns] : lane) {
    const double start = static_cast<double>(start_ns) / column_ns;
    const double end = static_cast<double>(end_ns) / column_ns;
    std::vector<double>& share = shares[static_cast<size_t>(action.kind)];
    for (auto column = static_cast<size_t>(start); column < columns && static_cast<double>(column) < end; ++column) {
      share[column] += std::min(end, static_cast<double>(column + 1)) - std::max(start, static_cast<double>(column));
    }
  }
  return shares;
}

}  // namespace geopipe
