// Memory of a job's devices, as the coordinator tells it.
#pragma once

#include <absl/status/statusor.h>

#include <vector>

#include "coordinator/cli/render/rank_memory_output.h"
#include "geopipe/v1/control_service.pb.h"

namespace geopipe {

// Memory by pipeline rank; empty where the job has no plan, or computes nothing. InvalidArgument: the detail does not
// fit together.
absl::StatusOr<std::vector<StageRanksMemory>> MemoryOfJob(const v1::JobDetail& detail);

}  // namespace geopipe
