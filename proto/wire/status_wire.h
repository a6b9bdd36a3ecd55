// absl::Status on the wire: as (code, message), because gRPC's status codes and absl's are the same numbers. Adapters
// build their grpc::Status from these without this layer knowing gRPC.
#pragma once

#include <absl/status/status.h>

#include <string>
#include <string_view>

namespace geopipe {

// google.rpc.Code of a status; 0 is OK.
int StatusCodeToWire(const absl::Status& status);

// Numbers outside the known codes become UNKNOWN. A message is shortened to 64 KiB, and made valid UTF-8 by replacing
// what is not.
absl::Status StatusFromWire(int code, std::string_view message);

// `text` with every byte that is not part of valid UTF-8 replaced by '?': proto3 strings must be UTF-8, and what other
// programs print need not be.
std::string ToUtf8(std::string_view text);

}  // namespace geopipe
