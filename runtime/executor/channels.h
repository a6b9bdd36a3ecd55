// The transport channels of one rank, with as many slots as the schedule can fill. `pipeline`: the ranks of its
// pipeline, by pipeline rank.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "optimizer/model/job_spec.h"
#include "optimizer/model/plan/plan_params.h"
#include "optimizer/schedule/schedule.h"
#include "runtime/transport/stream/message_transport.h"

namespace geopipe {

// The messages of each channel.
struct ChannelMessages {
  std::vector<PayloadLayout> boundaries;       // per boundary (stages - 1): activation or its gradient
  std::vector<int64_t> norm_bytes;             // per pipeline rank: its norm terms, at most; empty: none are exchanged
  std::optional<PayloadLayout> tied_gradient;  // nullopt: first and last stage exchange none

  friend bool operator==(const ChannelMessages&, const ChannelMessages&) = default;
};

// The messages of a plan of the job. `norms`: gradients are clipped, so norm terms are exchanged.
ChannelMessages MessagesOfPlan(const Plan& plan, const JobSpec& job, bool norms);

// Largest number of messages that the channel of `kind` (activation, gradient) at `boundary` can hold, sent and not yet
// taken, whatever the timing of devices and links: over all sends, the messages sent so far less those that the
// receiver must have taken before, because the send depends on something the receiver did after taking them. With that
// many slots the channel never throttles the schedule; with one fewer it can. (Boundary p of 1F1B with ΔN: min(m, P - p
// + advance(p)) either way, the micro-batches in flight on stage p, since nothing that the receiver does holds stage
// p's warm-up back. gpipe: all m.) REQUIRES: `lowered` passes Validate; the boundary is between two pipeline ranks.
int32_t SlotsNeeded(const Schedule& lowered, MessageKind kind, int32_t boundary);

// Every channel that begins or ends at `pipeline_rank`: activations and gradients of its boundaries to other ranks,
// norm terms from and to all others, and on the ranks of the first and the last stage, where these differ, the tied
// gradient both ways.
std::vector<ChannelSpec> ChannelsOf(const Schedule& lowered, int32_t pipeline_rank, std::span<const PeerId> pipeline,
                                    const ChannelMessages& messages);

// The two channels of a boundary in a placement.
ChannelId ActivationChannel(const PipelineShape& shape, std::span<const PeerId> pipeline, int32_t boundary);
ChannelId GradientChannel(const PipelineShape& shape, std::span<const PeerId> pipeline, int32_t boundary);

}  // namespace geopipe
