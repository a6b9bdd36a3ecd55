// The stages' clocks brought together. Every worker measures its peers' monotonic clocks in passing (by the quickest
// frames each way, runtime/transport/reliable_stream.h); this adds the offsets up along the best paths from stage 0.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "geopipe/v1/control_service.pb.h"
#include "geopipe/v1/telemetry.pb.h"

namespace geopipe {

struct StageClock {
  int64_t offset_ns = 0;  // the stage's clock less stage 0's
  int64_t error_ns = 0;   // half of the round trips on the way; -1: no path, the offset is then 0
};

// One report per stage, in order: what each says of its peers' clocks. The path with the smallest sum of round trips
// gives a stage's offset.
std::vector<StageClock> AlignClocks(std::span<const v1::IterationReport> reports);

// The reports of one iteration as one timeline on stage 0's clock, relative to the begin of its first action.
// REQUIRES: one report per stage, in order, at least one.
v1::IterationTimeline TimelineOf(std::span<const v1::IterationReport> reports);

}  // namespace geopipe
