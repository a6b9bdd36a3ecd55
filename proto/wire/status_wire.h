// absl::Status on the wire: as (code, message), because gRPC's status codes and absl's are the same numbers. Adapters
// build their grpc::Status from these without this layer knowing gRPC.
#pragma once

#include <absl/status/status.h>

#include <string_view>

namespace geopipe {

// google.rpc.Code of a status; 0 is OK.
int StatusCodeToWire(const absl::Status& status);

// Numbers outside the known codes become UNKNOWN. A message is shortened to 64 KiB.
absl::Status StatusFromWire(int code, std::string_view message);

}  // namespace geopipe
