// A sweep as a picture.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "optimizer/plan/sweep.h"

namespace geopipe {

// "bandwidth of every link, Gbps", "latency of every link, one way, ms", "ΔN of every crossing".
std::string SweepAxisTitle(SweepKey key);
// The value in the unit of the title: 5e10 bytes per second are 400.
double SweepAxisUnits(SweepKey key, double value);
// The same as text: "400", "0.5", "12800".
std::string SweepTickText(SweepKey key, double value);
// The value with its unit: "400 Gbps", "20 ms", "3".
std::string SweepValueText(SweepKey key, double value);

// KneeOf as text: "14.4 Gbps"; "10 Gbps or less" where it is the worst value of all, so that the knee may lie outside;
// empty where there is none.
std::string KneeText(const Sweep& sweep, size_t first = 0);

// One axis: iteration time and bubble over the swept figure (bandwidth and latency on a logarithmic axis), for every
// schedule, 1F1B with blocking sends, and the lower bound; each line is labelled where it ends, and the knee is marked.
// Two axes: the bubble and the iteration time saved against 1F1B as two heat maps, the first axis upwards and the last
// one to the right, the knee of each row outlined. With alternatives a strip or a map below shows which one is fastest
// at each point. Self-contained SVG in colours that colour-blind readers can tell apart. `title` is escaped here.
std::string SweepToSvg(const Sweep& sweep, std::string_view title);

}  // namespace geopipe
