// The time that evaluations take a plan that trains.
#pragma once

#include <cstdint>

#include "optimizer/plan/report/plan_result.h"

namespace geopipe {

// Time by which one forward-only pass over an iteration's micro-batches delays the training: what a pass adds to
// several in a row, since passes and iterations follow each other without a drain. It is simulated by the forwards of
// the plan's schedule, and at least the time in which the slots of each crossing come back, because no backward paces
// the forwards: as many activations as a crossing has slots are made and carried in a round trip.
int64_t EvaluationPassNs(const PlanResult& result);

}  // namespace geopipe
