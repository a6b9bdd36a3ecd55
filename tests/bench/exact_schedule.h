// The shortest schedule of a small pipeline, found by looking at all of them: the truth that `auto` and the lower
// bounds are held against.
//
// Micro-batches are alike, so every stage may as well take them in line, and a schedule is the order in which F, I and
// W take turns on each device. Partial schedules are extended action by action, all with the same number of actions at
// a time. Of those that have run the same actions, one is dropped for another that is nowhere later: whatever completes
// the one completes the other as well. So is one that cannot end before the shortest schedule known. Of all ways to go
// on, active schedules are enough (Giffler and Thompson, Operations Research 1960): on the device that could complete
// an action first, only what could start before that completion. Earlier is never worse here: the action that fills
// such a gap takes no memory from what runs until its old place, because that is I and W, which only give back.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>

#include "optimizer/model/pipeline_costs.h"
#include "optimizer/schedule/schedule.h"

namespace geopipe {

struct ExactOptions {
  // Length of a known schedule, epilogue included; only shorter ones are searched for.
  int64_t known_ns = 0;
  // Partial schedules kept of each number of actions; more than that, and those that promise least are dropped.
  int64_t kept = 100'000;
};

struct ExactSchedule {
  int64_t best_ns = 0;   // of the shortest schedule found, or known_ns; epilogue included
  int64_t bound_ns = 0;  // no schedule is shorter; best_ns where nothing that could be shorter was dropped
  Schedule schedule;     // no devices: none is shorter than known_ns
  int64_t states = 0;    // partial schedules extended

  bool proved() const { return bound_ns == best_ns; }
};

// InvalidArgument: the costs are not valid or not of the kind that this is for: one stage per device in order, 10
// micro-batches and 4 devices at most, non-blocking messages, private links, actions that last, memory with room for
// one micro-batch, and from I to W no more kept than an activation.
absl::StatusOr<ExactSchedule> FindExactSchedule(const PipelineCosts& costs, const ExactOptions& options);

}  // namespace geopipe
