// absl::Status as gRPC's; the codes are the same numbers.
#pragma once

#include <absl/status/status.h>
#include <grpcpp/support/status.h>

#include <string>

#include "proto/wire/status_wire.h"
#include "runtime/base/utf8.h"

namespace geopipe {

inline grpc::Status ToGrpcStatus(const absl::Status& status) {
  return status.ok() ? grpc::Status::OK
                     : grpc::Status(static_cast<grpc::StatusCode>(StatusCodeToWire(status)),
                                    ToUtf8(std::string(status.message())));
}

}  // namespace geopipe
