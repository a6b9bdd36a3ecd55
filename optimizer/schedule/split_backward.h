// The greedy list scheduler behind the schedules that split the backward.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "optimizer/schedule/schedule.h"
#include "optimizer/schedule/schedule_costs.h"

namespace geopipe {

// Unit in which activation memory is counted: this many are one activation of one stage and micro-batch.
inline constexpr int64_t kActivationUnits = 1024;

// ScheduleCosts with every default filled in.
struct SplitCosts {
  std::vector<int64_t> forward_ns;  // per stage
  std::vector<int64_t> input_grad_ns;
  std::vector<int64_t> weight_grad_ns;
  std::vector<int64_t> latency_ns;  // per boundary
  std::vector<int64_t> serialization_ns;
  std::vector<int64_t> kept_units;  // per stage: from I to W, at least half an activation
  std::vector<int64_t> cap_units;   // per device
};

// InvalidArgument names generator and field: wrong sizes, negative or too large numbers, no weight gradient times, a
// cap below `least_cap`. REQUIRES: ValidateShape(shape).ok().
absl::StatusOr<SplitCosts> ResolveCosts(std::string_view generator, const PipelineShape& shape,
                                        const ScheduleCosts& costs, int64_t least_cap = 1);

// Sets all message times to 0.
void ForgetCrossings(SplitCosts& costs);

// Counts the part that W needs as a whole activation, unless it is larger.
void CountWhole(SplitCosts& costs);

// Limits of a device's activations; one entry per device.
struct SplitLimits {
  std::vector<int64_t> in_flight;  // micro-batches of a stage from F to I, at least 1 (2 with several stages)
  std::vector<int64_t> units;      // memory; the cap of the costs applies as well
};

struct TimedSchedule {
  Schedule schedule;
  int64_t end_ns = 0;           // of the last action
  int64_t longest_span_ns = 0;  // from a device's first start to its last end, of the device where it is longest
};

// Times `schedule` under `costs`: non-blocking, each boundary with links of its own. REQUIRES: the schedule is valid.
TimedSchedule Timed(Schedule schedule, const SplitCosts& costs);

// Schedules greedily: a device runs an input gradient as soon as it can, else a forward as far as the limits allow,
// else a weight gradient if that delays no message under way to it by more than slack_16ths / 16 of its own duration.
// The later of a device's stages comes first. The first of two stages leaves room for one activation of the second, so
// that the oldest micro-batch can always proceed. Runs in O(actions · log devices).
TimedSchedule ScheduleGreedily(const PipelineShape& shape, const SplitCosts& costs, const SplitLimits& limits,
                               int32_t slack_16ths);

// Alternates, with one stage per device. Device p runs limits.in_flight[p] - 1 forwards, then repeats one forward, one
// input gradient and one weight gradient. That is of an earlier micro-batch, by as many as the memory has room for
// beside those in flight, each counted whole (0: of the same micro-batch); the remaining weight gradients come at the
// end. REQUIRES: limits.units has room for limits.in_flight.
Schedule AlternateDelayingWeights(const PipelineShape& shape, const SplitLimits& limits);

// True when no device's cap is below `limits`.
bool CapsAllow(const SplitCosts& costs, const SplitLimits& limits);

// Replaces `best` if `candidate` ends earlier, or at the same time with a shorter longest span.
void KeepBetter(TimedSchedule& best, TimedSchedule candidate);

// The best of ScheduleGreedily over several slacks.
TimedSchedule BestOfSlacks(const PipelineShape& shape, const SplitCosts& costs, const SplitLimits& limits);

}  // namespace geopipe
