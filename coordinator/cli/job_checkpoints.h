// The checkpoints of a job as its coordinator knows them: complete on all nodes.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "geopipe/v1/control_service.pb.h"

namespace geopipe {

// "2026-01-31 12:00:05" in UTC.
std::string TimeText(int64_t unix_time_ns);

// Returns the folder where the newest of them is, on the nodes that have written it; "" when there is none.
std::string NewestCheckpointFolder(const v1::JobDetail& detail);
// Returns a table of them, where the newest is and, if the latest attempt came to nothing, why; "" when there is
// nothing to tell.
std::string CheckpointText(const v1::JobDetail& detail, int32_t columns);
nlohmann::ordered_json CheckpointsToJson(const v1::JobDetail& detail);

// geopipectl checkpoint now: asks for one and waits until it is complete.
absl::StatusOr<int> RunCheckpointNow(std::span<const std::string> arguments);

}  // namespace geopipe
