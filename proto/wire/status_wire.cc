#include "proto/wire/status_wire.h"

#include <cstdint>

#include "proto/wire/fields.h"

namespace geopipe {
namespace {

// Bytes of the valid UTF-8 sequence at the front of `text` (RFC 3629: no overlong forms, no surrogates), or 0.
size_t SequenceLength(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) {
    return 1;
  }
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) {
    return 0;
  }
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) {
      return 0;
    }
  }
  const unsigned char second = byte(1);
  const bool overlong = (lead == 0xe0 && second < 0xa0) || (lead == 0xf0 && second < 0x90);
  const bool beyond = (lead == 0xed && second > 0x9f) || (lead == 0xf4 && second > 0x8f);
  return overlong || beyond ? 0 : length;
}

}  // namespace

int StatusCodeToWire(const absl::Status& status) { return static_cast<int>(status.code()); }

absl::Status StatusFromWire(int code, std::string_view message) {
  constexpr int kLastCode = static_cast<int>(absl::StatusCode::kUnauthenticated);
  const bool known = code >= 0 && code <= kLastCode;
  return absl::Status(known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
                      ToUtf8(message.substr(0, wire::kMaxTextBytes)));
}

std::string ToUtf8(std::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  while (!text.empty()) {
    const size_t length = SequenceLength(text);
    if (length == 0) {
      valid += '?';
      text.remove_prefix(1);
    } else {
      valid += text.substr(0, length);
      text.remove_prefix(length);
    }
  }
  return valid;
}

}  // namespace geopipe
