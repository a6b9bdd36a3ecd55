#include "coordinator/cli/render/timeline_layout.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include "coordinator/cli/render/svg_writer.h"
#include "coordinator/cli/render/timeline_phases.h"

namespace geopipe {
namespace {

constexpr double kSystemWidth = 1240;  // of the lanes, when there is much to show
constexpr double kMinWidth = 640;
constexpr double kMaxHeight = 1500;  // of all systems; what would need more is shown without numbers
constexpr double kMinBox = 5;        // pixels of the shortest action, else one system shows all
constexpr double kMinDrawnBox = 2;
constexpr double kNumberDigit = 5.6;  // pixels
constexpr double kHead = 24;          // phases, above a system's lanes
constexpr double kFoot = 26;          // axis
constexpr double kBetweenSystems = 12;
constexpr double kSiteGap = 26;
constexpr double kTop = 84;  // title and legend
constexpr double kBandPad = 5;

int64_t ShortestNs(const SimulationResult& result) {
  int64_t shortest_ns = std::numeric_limits<int64_t>::max();
  for (const auto& lane : result.timeline) {
    for (const ActionTiming& timing : lane) {
      if (timing.end_ns > timing.start_ns) {
        shortest_ns = std::min(shortest_ns, timing.end_ns - timing.start_ns);
      }
    }
  }
  return shortest_ns;
}

// A span in the middle of the steady phase in which the mean action is wide enough for its number.
void ChooseDetail(const SimulationResult& result, double action_width, TimelineLayout& layout) {
  const std::optional<TimelinePhases> phases = PhasesOf(result);
  double total_ns = 0;
  double actions = 0;
  for (const auto& lane : result.timeline) {
    for (const ActionTiming& timing : lane) {
      total_ns += static_cast<double>(timing.end_ns - timing.start_ns);
      ++actions;
    }
  }
  if (!phases.has_value() || actions == 0) {
    return;
  }
  const auto steady_ns = static_cast<double>(phases->drain_ns - phases->steady_ns);
  const double wanted_ns = total_ns / actions * layout.chart_width / action_width;
  const double middle_ns = static_cast<double>(phases->steady_ns) + steady_ns / 2;
  const double shown_ns = std::min(steady_ns, wanted_ns);
  layout.detail_begin_ns = middle_ns - shown_ns / 2;
  layout.detail_end_ns = middle_ns + shown_ns / 2;
}

void PlaceLanes(const TimelineLabels& labels, TimelineLayout& layout) {
  const double gap = layout.lane_height >= 12 ? 3 : 1;
  double y = kHead;
  layout.lane_y.clear();
  for (int32_t device = 0; device < static_cast<int32_t>(labels.sites.size()); ++device) {
    if (device > 0) {
      y += layout.lane_height + (BeginsSite(labels, device) ? kSiteGap : gap);
    }
    layout.lane_y.push_back(y);
  }
  layout.lanes_end = y + layout.lane_height;
  layout.system_height = layout.lanes_end + kBandPad + kFoot + kBetweenSystems;
}

// Width for the names of sites beside those of lanes, and for descriptions of the crossings between them.
double LeftMargin(const PipelineCosts& costs, const TimelineLabels& labels) {
  constexpr double kMaxForNames = 190;
  const double lane = TextWidth(labels.device, 11) + TextWidth(std::to_string(labels.sites.size()), 11) + 14;
  double names = 0;
  double crossings = 0;
  for (size_t device = 0; device < labels.sites.size(); ++device) {
    names = std::max(names, TextWidth(labels.sites[device], 12) + 10);
    if (BeginsSite(labels, static_cast<int32_t>(device))) {
      crossings = std::max(crossings, TextWidth(CrossingText(costs, labels, static_cast<int32_t>(device)), 11) + 16);
    }
  }
  return 16 + std::max(std::min(names, kMaxForNames) + lane, crossings);
}

}  // namespace

TimelineLayout LayOutTimeline(const SimulationResult& result, const PipelineCosts& costs,
                              const TimelineLabels& labels) {
  TimelineLayout layout;
  layout.span_ns = std::max<int64_t>(1, result.iteration_ns);
  const auto devices = labels.sites.size();
  layout.lane_height = devices <= 16 ? 20 : devices <= 64 ? 14 : 6;
  PlaceLanes(labels, layout);

  const auto digits = static_cast<double>(std::to_string(std::max(0, costs.shape.micro_batches - 1)).size());
  const double density = static_cast<double>(ShortestNs(result)) / static_cast<double>(layout.span_ns);
  const double wanted_width = (4 + kNumberDigit * digits) / density;
  const double most = std::max(1.0, std::floor(kMaxHeight / layout.system_height));
  double systems = std::clamp(std::ceil(wanted_width / kSystemWidth), 1.0, most);
  if (systems * kSystemWidth * density < kMinBox) {
    systems = 1;
  }
  layout.systems = static_cast<int32_t>(systems);
  layout.chart_width = systems > 1 ? kSystemWidth : std::clamp(1.6 * wanted_width, kMinWidth, kSystemWidth);
  layout.boxes = systems * layout.chart_width * density >= kMinDrawnBox;

  if (!layout.boxes) {
    ChooseDetail(result, 8 + kNumberDigit * digits, layout);
  }

  layout.left = LeftMargin(costs, labels);
  layout.width = layout.left + layout.chart_width + 24;
  layout.top = kTop;
  layout.height = kTop + systems * layout.system_height +
                  (layout.has_detail() ? layout.system_height + TimelineLayout::kDetailHead : 0);
  return layout;
}

}  // namespace geopipe
