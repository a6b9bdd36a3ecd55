#include "coordinator/core/telemetry/clock_alignment.h"

#include "optimizer/base/check.h"

namespace geopipe {
namespace {

struct Edge {
  size_t from = 0;
  size_t to = 0;
  int64_t offset_ns = 0;  // clock of `to` less that of `from`
  int64_t round_trip_ns = 0;
};

std::vector<Edge> EdgesOf(std::span<const v1::IterationReport> reports) {
  std::vector<Edge> edges;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    for (const v1::PeerClock& clock : reports[rank].clocks()) {
      const auto peer = static_cast<size_t>(clock.rank());
      if (peer < reports.size() && peer != rank) {
        edges.push_back({rank, peer, clock.offset_ns(), clock.round_trip_ns()});
        edges.push_back({peer, rank, -clock.offset_ns(), clock.round_trip_ns()});
      }
    }
  }
  return edges;
}

}  // namespace

std::vector<RankClock> AlignClocks(std::span<const v1::IterationReport> reports) {
  constexpr int64_t kUnknown = -1;
  const std::vector<Edge> edges = EdgesOf(reports);
  std::vector<RankClock> clocks(reports.size(), {.offset_ns = 0, .error_ns = kUnknown});
  std::vector<int64_t> way_ns(reports.size(), kUnknown);  // sum of round trips
  if (!reports.empty()) {
    way_ns[0] = 0;
  }
  for (size_t round = 1; round < reports.size(); ++round) {
    for (const Edge& edge : edges) {
      const int64_t through_ns = way_ns[edge.from] + edge.round_trip_ns;
      if (way_ns[edge.from] != kUnknown && (way_ns[edge.to] == kUnknown || through_ns < way_ns[edge.to])) {
        way_ns[edge.to] = through_ns;
        clocks[edge.to].offset_ns = clocks[edge.from].offset_ns + edge.offset_ns;
      }
    }
  }
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    clocks[rank].error_ns = way_ns[rank] == kUnknown ? kUnknown : way_ns[rank] / 2;
  }
  return clocks;
}

v1::IterationTimeline TimelineOf(std::span<const v1::IterationReport> reports) {
  GP_CHECK(!reports.empty());
  const std::vector<RankClock> clocks = AlignClocks(reports);
  v1::IterationTimeline timeline;
  timeline.set_iteration(reports.front().iteration());
  timeline.set_duration_ns(reports.front().duration_ns());
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const v1::IterationReport& report = reports[rank];
    v1::RankTimeline& line = *timeline.add_ranks();
    line.set_rank(report.rank());
    line.set_clock_error_ns(clocks[rank].error_ns);
    *line.mutable_clocks() = report.clocks();
    const int64_t shift_ns = report.begin_ns() - clocks[rank].offset_ns - reports.front().begin_ns();
    for (const v1::ActionTiming& timing : report.actions()) {
      v1::ActionTiming& action = *line.add_actions();
      action.set_action(timing.action());
      action.set_start_ns(timing.start_ns() + shift_ns);
      action.set_end_ns(timing.end_ns() + shift_ns);
    }
  }
  return timeline;
}

}  // namespace geopipe
