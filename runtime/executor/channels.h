// The transport channels of one stage, with as many slots as the schedule can fill.
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/model/model_spec.h"
#include "optimizer/model/plan_params.h"
#include "optimizer/schedule/schedule.h"
#include "runtime/transport/stream/message_transport.h"

namespace geopipe {

// Greatest message of each channel in bytes.
struct ChannelSizes {
  std::vector<int64_t> boundary_bytes;  // per boundary (chunks - 1): activation or its gradient
  std::vector<int64_t> norm_bytes;      // per stage: its norm terms; empty: none are exchanged
  int64_t tied_gradient_bytes = 0;      // 0: first and last stage exchange none

  friend bool operator==(const ChannelSizes&, const ChannelSizes&) = default;
};

// Of a plan that trains `model`, one chunk per stage. `norms`: gradients are clipped, so norm terms are exchanged.
// `element_bytes` of activations and their gradients.
ChannelSizes SizesOfPlan(const Plan& plan, const ModelSpec& model, int64_t element_bytes, bool norms);

// Greatest number of messages that `from`'s boundary channel can hold, sent and not yet taken, whatever the timing of
// devices and links: over all sends, the messages sent so far less those that the receiver must have taken before,
// because the send depends on something the receiver did after taking them. So many slots never throttle the schedule,
// and one fewer can. (Boundary p of 1F1B with ΔN: min(m, P - p + advance(p)) either way, the micro-batches in flight on
// stage p, for nothing that the receiver does holds stage p's warm-up back. gpipe: all m.) REQUIRES: `lowered` passes
// Validate; `id` is one of its boundaries between two devices.
int32_t SlotsNeeded(const Schedule& lowered, const ChannelId& id);

// Every channel that begins or ends at `stage` (a device of the schedule): activations and gradients of its boundaries
// to other devices, norm terms from and to all other stages, and on the devices of the first and the last chunk, where
// these differ, the tied gradient both ways.
std::vector<ChannelSpec> ChannelsOfStage(const Schedule& lowered, int32_t stage, const ChannelSizes& sizes);

// The two channels of boundary `boundary` in a placement.
ChannelId ActivationChannel(const PipelineShape& shape, int32_t boundary);
ChannelId GradientChannel(const PipelineShape& shape, int32_t boundary);

}  // namespace geopipe
