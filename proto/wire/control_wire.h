// Parts of the control service's answers that have a value type.
#pragma once

#include <absl/status/statusor.h>

#include <string_view>
#include <vector>

#include "geopipe/v1/control_service.pb.h"
#include "optimizer/model/plan/plan_params.h"
#include "optimizer/plan/report/plan_result.h"
#include "optimizer/simulator/simulator.h"

namespace geopipe {

v1::Baseline ToProto(const Baseline& baseline);
// InvalidArgument begins with the name of the field.
absl::StatusOr<Baseline> FromProto(const v1::Baseline& message);

// Actions that every pipeline rank's first replica ran, in the order in which they were recorded. InvalidArgument when
// the timeline is not of the plan's grid, or names an action of none of its stages.
absl::StatusOr<std::vector<std::vector<ActionTiming>>> ActionsOf(const v1::IterationTimeline& timeline,
                                                                 const Plan& plan);

// "PENDING" for JOB_STATE_PENDING; "UNKNOWN" for a state that this version does not know.
std::string_view JobStateName(v1::JobState state);
// COMPLETED, FAILED, CANCELLED.
bool IsFinal(v1::JobState state);

}  // namespace geopipe
