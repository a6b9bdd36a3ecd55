// Between gRPC's statuses and ours, whose codes are the same numbers; and the bound on every message.
#pragma once

#include <absl/status/status.h>
#include <grpcpp/support/status.h>

#include <string>

namespace geopipe::agent {

// A PrepareCommand carries the schedule of all devices.
inline constexpr int kMaxMessageBytes = 256 << 20;

inline absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

inline grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

}  // namespace geopipe::agent
