// Converts between gRPC's statuses and ours: the codes are the same numbers.
#pragma once

#include <absl/status/status.h>
#include <grpcpp/support/status.h>

#include <string>

#include "runtime/base/utf8.h"

namespace geopipe {

inline absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

inline grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), ToUtf8(std::string(status.message())));
}

}  // namespace geopipe
