// The schedule by which a plan evaluates: the forwards of the one by which it trains.
#pragma once

#include "optimizer/schedule/schedule.h"

namespace geopipe {

// The forwards of `schedule`, lowered or not, in its order on each device, with their sends and receives. It passes
// Validate with ScheduleWork::kForwards where `schedule` does with ScheduleWork::kTraining. No more results wait
// between two actions of a device than in training, where backwards may wait as well.
Schedule ForwardOnly(const Schedule& schedule);

}  // namespace geopipe
