// A simulated timeline as text for people: a trace for Perfetto or chrome://tracing, a picture in SVG, and a Gantt
// chart for the terminal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/cli/render/timeline_labels.h"
#include "optimizer/model/pipeline_costs.h"
#include "optimizer/simulator/simulator.h"

namespace geopipe {

// Chrome trace event format (JSON object): one thread per device with a complete event ("X") per action; each message
// an asynchronous slice ("b", "e") from entering its link to its arrival, and an arrow ("s", "f"). Times in
// microseconds with three decimals. REQUIRES: `result` was recorded (SimulationOptions::record_timeline) under `costs`;
// here and below the labels have one site per device.
std::string ToChromeTrace(const SimulationResult& result, const PipelineCosts& costs, const TimelineLabels& labels);

// One timeline of a trace that shows several beside each other, as measured and predicted.
struct TracePart {
  std::string name;
  const std::vector<std::vector<ActionTiming>>* timeline;
  const std::vector<MessageTiming>* messages;
  std::vector<std::string> device_names;  // "pipeline rank 0 (east/0/0)"; where missing "device N"
};

// The same for several timelines of the same pipeline; an arrow joins the action that makes a message and the one that
// takes it.
std::string ToChromeTrace(const std::vector<TracePart>& parts, const PipelineShape& shape);

// A self-contained SVG: a band per site, in it a lane per device with a box per action and, where it fits, its
// micro-batch; between bands what the crossing is like and every message from its sender to its receiver; with blocking
// sends, hatched, how long they hold the sender. Warm-up, steady phase and drain are bracketed. A long iteration is
// broken into rows, one below the other; one of too many actions even for that shows shares of
// time, and below them a part of the steady phase enlarged. Colours
// are safe for colour-blind readers (Okabe and Ito). Hovering over a box names action and times.
// REQUIRES: as ToChromeTrace.
std::string ToSvg(const SimulationResult& result, const PipelineCosts& costs, const TimelineLabels& labels);

struct GanttOptions {
  int32_t columns = 80;  // of the terminal
  bool colour = false;   // with ANSI colours, and twice as finely as without
};

// The same for a terminal: a line per device, a separator at every crossing, an axis, a legend. A character stands for
// a span of time: blank when the device is idle for half of it or more, else the kind of action that takes most of it.
// Where a character is longer than actions are, a backward or a mixture of kinds is drawn as high as its busy part, so
// that bubbles stay visible; colours still show the kind that takes most. REQUIRES: as ToChromeTrace.
std::string ToGantt(const SimulationResult& result, const PipelineCosts& costs, const TimelineLabels& labels,
                    const GanttOptions& options = {});

}  // namespace geopipe
