#include "proto/wire/status_wire.h"

#include <string>

#include "proto/wire/fields.h"

namespace geopipe {

int StatusCodeToWire(const absl::Status& status) { return static_cast<int>(status.code()); }

absl::Status StatusFromWire(int code, std::string_view message) {
  constexpr int kLastCode = static_cast<int>(absl::StatusCode::kUnauthenticated);
  const bool known = code >= 0 && code <= kLastCode;
  return absl::Status(known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
                      std::string(message.substr(0, wire::kMaxTextBytes)));
}

}  // namespace geopipe
