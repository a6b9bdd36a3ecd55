// The ranks' clocks brought together. Every worker measures its peers' monotonic clocks in passing (by the quickest
// frames each way, runtime/transport/stream/clock_meter.h); this adds the offsets up along the best paths from rank 0.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "geopipe/v1/control_service.pb.h"
#include "geopipe/v1/telemetry.pb.h"

namespace geopipe {

struct RankClock {
  int64_t offset_ns = 0;  // the rank's clock less rank 0's
  int64_t error_ns = 0;   // half of the round trips on the way; -1: no path, the offset is then 0
};

// One report per rank, in order: what each says of its peers' clocks. The path with the smallest sum of round trips
// gives a rank's offset.
std::vector<RankClock> AlignClocks(std::span<const v1::IterationReport> reports);

// The reports of one iteration as one timeline on rank 0's clock, relative to the start of its first action. REQUIRES:
// one report per rank, in order, at least one.
v1::IterationTimeline TimelineOf(std::span<const v1::IterationReport> reports);

}  // namespace geopipe
