// The options of a submission to and from their message. FromProto checks sizes, counts and enumerators;
// InvalidArgument begins with the path of the field within the message.
#pragma once

#include <absl/status/statusor.h>

#include "geopipe/v1/run.pb.h"
#include "optimizer/model/run_options.h"

namespace geopipe {

v1::BackendKind ToProto(BackendKind backend);
v1::RunOptions ToProto(const RunOptions& run);

absl::StatusOr<BackendKind> FromProto(v1::BackendKind backend);
// The default message (all fields unset) is the default RunOptions.
absl::StatusOr<RunOptions> FromProto(const v1::RunOptions& message);

}  // namespace geopipe
