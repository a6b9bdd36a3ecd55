// Positions in the picture of a timeline. Time runs from left to right and, when one row would be too dense to read, is
// broken into several rows ("systems", as in a score) that all show every device.
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/cli/render/timeline_labels.h"
#include "optimizer/simulator/simulator.h"

namespace geopipe {

struct TimelineLayout {
  double width = 0;  // of the whole picture, in pixels
  double height = 0;
  double left = 0;  // left edge of the lanes
  double chart_width = 0;
  double top = 0;  // of the first system
  int32_t systems = 1;
  double system_height = 0;  // with the space below it
  double lane_height = 0;
  std::vector<double> lane_y;  // of each device, from the system's top
  double lanes_end = 0;        // from the system's top
  bool boxes = true;           // false: actions are thinner than two pixels, so lanes show shares of time
  int64_t span_ns = 1;
  // Part of the steady phase that a further system, the last one, shows with boxes where lanes show shares of time.
  // Empty where there is none.
  double detail_begin_ns = 0;
  double detail_end_ns = 0;

  bool has_detail() const { return detail_end_ns > detail_begin_ns; }
  bool is_detail(int32_t system) const { return system == systems; }
  bool shows_boxes(int32_t system) const { return boxes || is_detail(system); }
  double SystemTop(int32_t system) const {
    return top + system * system_height + (is_detail(system) ? kDetailHead : 0);
  }
  double BeginNs(int32_t system) const {
    return is_detail(system) ? detail_begin_ns : static_cast<double>(span_ns) * system / systems;
  }
  double EndNs(int32_t system) const {
    return is_detail(system) ? detail_end_ns : static_cast<double>(span_ns) * (system + 1) / systems;
  }
  double X(int32_t system, double ns) const {
    return left + (ns - BeginNs(system)) / (EndNs(system) - BeginNs(system)) * chart_width;
  }

  static constexpr double kDetailHead = 24;  // for its title
};

// REQUIRES: the result was recorded under `costs`; one site per device.
TimelineLayout LayOutTimeline(const SimulationResult& result, const PipelineCosts& costs, const TimelineLabels& labels);

}  // namespace geopipe
