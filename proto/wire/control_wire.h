// Parts of the control service's answers that have a value type.
#pragma once

#include <absl/status/statusor.h>

#include "geopipe/v1/control_service.pb.h"
#include "optimizer/plan/report/plan_result.h"

namespace geopipe {

v1::Baseline ToProto(const Baseline& baseline);
// InvalidArgument begins with the name of the field.
absl::StatusOr<Baseline> FromProto(const v1::Baseline& message);

// "PENDING" for JOB_STATE_PENDING; "UNKNOWN" for what this version does not know.
std::string_view JobStateName(v1::JobState state);
// COMPLETED, FAILED, CANCELLED.
bool IsFinal(v1::JobState state);

}  // namespace geopipe
