// A simulated timeline as text for people: a trace for Perfetto or chrome://tracing, and a Gantt chart in SVG.
#pragma once

#include <string>
#include <string_view>

#include "optimizer/model/pipeline_costs.h"
#include "optimizer/simulator/simulator.h"

namespace geopipe {

// Chrome trace event format (JSON object): one thread per device with a complete event ("X") per action; each message
// an asynchronous slice ("b", "e") from entering its link to its arrival. Times in microseconds with three decimals.
// REQUIRES: `result` was recorded (SimulationOptions::record_timeline) under `costs`.
std::string ToChromeTrace(const SimulationResult& result, const PipelineCosts& costs);

// A self-contained SVG: one lane per device, one box per action with its micro-batch where it fits, every message over
// a link as a line from sender to receiver, crossings between neighbouring lanes as dashed lines, a time axis, a legend
// in colours that colour-blind readers can tell apart (Okabe and Ito). Hovering over a box names action and times.
// REQUIRES: as ToChromeTrace.
std::string ToSvg(const SimulationResult& result, const PipelineCosts& costs, std::string_view title);

}  // namespace geopipe
