// A simulated timeline as text for people: a trace for Perfetto or chrome://tracing, and a Gantt chart in SVG.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "optimizer/model/pipeline_costs.h"
#include "optimizer/simulator/simulator.h"

namespace geopipe {

// Chrome trace event format (JSON object): one thread per device with a complete event ("X") per action; each message
// an asynchronous slice ("b", "e") from entering its link to its arrival, and an arrow ("s", "f"). Times in
// microseconds with three decimals. REQUIRES: `result` was recorded (SimulationOptions::record_timeline) under `costs`.
std::string ToChromeTrace(const SimulationResult& result, const PipelineCosts& costs);

// One timeline of a trace that shows several beside each other, as measured and predicted.
struct TracePart {
  std::string name;
  const std::vector<std::vector<ActionTiming>>* timeline;
  const std::vector<MessageTiming>* messages;
  std::vector<std::string> device_names;  // "stage 0 (east/0/0)"; where missing "device N"
};

// The same for several timelines of the same pipeline; an arrow joins the action that makes a message and the one that
// takes it.
std::string ToChromeTrace(const std::vector<TracePart>& parts, const PipelineShape& shape);

// A self-contained SVG: one lane per device, one box per action with its micro-batch where it fits, every message over
// a link as a line from sender to receiver, crossings between neighbouring lanes as dashed lines, a time axis, a legend
// in colours that colour-blind readers can tell apart (Okabe and Ito). Hovering over a box names action and times.
// REQUIRES: as ToChromeTrace.
std::string ToSvg(const SimulationResult& result, const PipelineCosts& costs, std::string_view title);

}  // namespace geopipe
