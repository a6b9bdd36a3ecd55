// Lower bounds on the iteration time of one schedule kind, cheap enough to ask before every simulation.
#pragma once

#include <cstdint>
#include <span>

#include "optimizer/model/pipeline_costs.h"
#include "optimizer/schedule/schedule_table.h"

namespace geopipe {

// A lower bound of schedules with an unsplit backward and one stage per device: the way to a device, all its work and
// the way out; or one micro-batch all the way there and back, and m - 1 more forwards or backwards of one device or
// messages of one link (not both of a device: its forwards can run while the first backward is on its way). Includes
// the epilogue.
int64_t UnsplitBoundNs(const PipelineCosts& costs);

// A lower bound of every schedule of this kind with this ΔN per boundary, whatever the comm mode and the memory. If the
// backward is split or a device runs several stages it is that of every such schedule (LowerBoundNs), else at least
// UnsplitBoundNs, by the row's order:
//
// one by one (warm-up w_p, advance included): stage q alternates one forward and one backward, and stage p runs forward
// i + w_p + 1 only after backward i. So the action that stage q runs with forward j comes round, through stage p, at
// forward j + 1 + w_p - w_q, after the forwards and backwards of stages p to q and all messages between them, both
// ways. Each pair p <= q is such a cycle; p = q is the device's own work, q the last stage the round trip of the memory
// that p holds. For one crossing between equal stages the pair next to it gives the period 2(t + D) / (2 + ΔN).
// forwards first: every device's forwards lie before all of the last stage's backwards.
// REQUIRES: the shape has the row's layout; one ΔN per boundary.
int64_t ScheduleBoundNs(ScheduleKind kind, const PipelineCosts& costs, std::span<const int32_t> boundary_delta_n);

}  // namespace geopipe
