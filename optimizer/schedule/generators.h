// Schedule generators: compute-only schedules. All but interleaved and zb-v run one chunk per device, chunk c on device
// c. Every generator returns InvalidArgument, in one sentence, where its schedule is not defined.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "optimizer/schedule/schedule.h"
#include "optimizer/schedule/schedule_costs.h"

namespace geopipe {

// All forwards, then all backwards, both in micro-batch order (GPipe, arXiv 1811.06965).
absl::StatusOr<Schedule> MakeGpipe(const PipelineShape& shape);

// Non-interleaved 1F1B (PipeDream-flush, arXiv 2006.09503): MakeGeoPipe with no crossing.
absl::StatusOr<Schedule> MakeOneFOneB(const PipelineShape& shape);

// Interleaved 1F1B (Megatron-LM, arXiv 2104.04473): v chunks per device, chunk c on device c mod P, and micro-batches
// in groups of P: a device runs P forwards of its first chunk, P of its second, ..., backwards the other way round, and
// alternates after 2(P - 1 - p) + (v - 1)P forwards. With v = 1 it is 1F1B. Needs micro_batches to be a multiple of P.
absl::StatusOr<Schedule> MakeInterleaved(const PipelineShape& shape);

// GeoPipe (arXiv 2510.12064): stage p warms up with min(m, P-1-p + advance(p)) forwards, then alternates one forward
// and one backward, then drains; advance(p) is the sum of delta_n over crossing boundaries k >= p. `boundary_delta_n`
// has one entry per boundary (chunks - 1): 0 where the boundary does not cross sites.
absl::StatusOr<Schedule> MakeGeoPipe(const PipelineShape& shape, std::span<const int32_t> boundary_delta_n);

// The zero-bubble family runs every backward as I and W. Memory below is in activations of one chunk and micro-batch,
// from F to I whole and from I to W by the part that W needs (wgrad_bytes / activation_bytes, but at least half).

// ZB-H1 (arXiv 2401.10241; with measured costs, ZB-1p): device p holds at most P - p micro-batches from F to I, as in
// 1F1B, and at most P from F to W, so no device needs more than the first one does under 1F1B (where W needs no more
// than the whole activation). With equal times the iteration is m t + (P - 1)(F + I - W), t = F + I + W.
absl::StatusOr<Schedule> MakeZbH1(const PipelineShape& shape, const ScheduleCosts& costs = {});

// ZB-H2 (arXiv 2401.10241; with measured costs, ZB-2p): at most 2(P - p) micro-batches from F to I, and memory for at
// most 2P activations, twice what 1F1B needs.
absl::StatusOr<Schedule> MakeZbH2(const PipelineShape& shape, const ScheduleCosts& costs = {});

// ZB-V (arXiv 2401.10241 and 2405.15362): two chunks per device folded in a V, chunk c < P on device c and chunk c >= P
// on device 2P - 1 - c; memory for at most 2P activations of its (half as large) chunks: that of 1F1B.
absl::StatusOr<Schedule> MakeZbV(const PipelineShape& shape, const ScheduleCosts& costs = {});

// ΔN with split backward: geopipe's limit of P - p + advance(p) micro-batches from F to I on device p, within the
// memory of geopipe's first device, and weight gradients in the gaps that the crossings of `costs` leave. Under those
// costs (non-blocking, private links) it is never slower than geopipe with the same ΔN.
absl::StatusOr<Schedule> MakeGeoPipeZb(const PipelineShape& shape, std::span<const int32_t> boundary_delta_n,
                                       const ScheduleCosts& costs = {});

// Dispatch over the kinds. `boundary_delta_n` is used where UsesDeltaN(kind), `costs` where SplitsBackward(kind).
// InvalidArgument for kAuto, which no rule makes.
absl::StatusOr<Schedule> MakeSchedule(ScheduleKind kind, const PipelineShape& shape,
                                      std::span<const int32_t> boundary_delta_n, const ScheduleCosts& costs = {});

}  // namespace geopipe
