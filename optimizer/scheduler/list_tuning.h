// Looks for better list schedules by changing the parameters of the list scheduler, not the schedules themselves
// (problem space search: Storer, Wu and Vaccari, Management Science 1992). A device runs its kinds of work in one
// rhythm over all micro-batches, and one change of urgency changes that rhythm; a local search has to make the same
// change for every micro-batch before any of it pays off.
#pragma once

#include "optimizer/scheduler/instance.h"
#include "optimizer/scheduler/list_scheduler.h"
#include "optimizer/search/prng.h"

namespace geopipe {

// `options` with a few random changes: to the target, to the lookahead, or to how much sooner than necessary the
// forwards or the input gradients of a stage shall start. Its earlier_ns has an entry for each kind of work. REQUIRES:
// options.target_ns >= 0.
ListOptions Retuned(const Instance& instance, ListOptions options, Prng& prng);

}  // namespace geopipe
