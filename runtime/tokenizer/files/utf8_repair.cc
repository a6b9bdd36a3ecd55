#include "runtime/tokenizer/files/utf8_repair.h"

#include <cstdint>
#include <cstring>

namespace geopipe {
namespace {

// Bounds of the second byte of a sequence (RFC 3629, and "maximal subpart" of the Unicode standard, 3.9).
struct Lead {
  size_t length = 0;  // 0: begins no sequence
  uint8_t low = 0x80;
  uint8_t high = 0xbf;
};

Lead LeadOf(uint8_t byte) {
  if (byte >= 0xc2 && byte <= 0xdf) {
    return {.length = 2};
  }
  if (byte >= 0xe0 && byte <= 0xef) {
    return {.length = 3,
            .low = static_cast<uint8_t>(byte == 0xe0 ? 0xa0 : 0x80),
            .high = static_cast<uint8_t>(byte == 0xed ? 0x9f : 0xbf)};
  }
  if (byte >= 0xf0 && byte <= 0xf4) {
    return {.length = 4,
            .low = static_cast<uint8_t>(byte == 0xf0 ? 0x90 : 0x80),
            .high = static_cast<uint8_t>(byte == 0xf4 ? 0x8f : 0xbf)};
  }
  return {};
}

}  // namespace

std::optional<InvalidUtf8> FindInvalidUtf8(std::string_view text, size_t from) {
  constexpr uint64_t kHighBits = 0x8080808080808080;
  size_t at = from;
  while (at < text.size()) {
    if (uint64_t word = 0; at + sizeof(word) <= text.size()) {
      std::memcpy(&word, text.data() + at, sizeof(word));
      if ((word & kHighBits) == 0) {
        at += sizeof(word);
        continue;
      }
    }
    const auto byte = static_cast<uint8_t>(text[at]);
    if (byte < 0x80) {
      ++at;
      continue;
    }
    const Lead lead = LeadOf(byte);
    size_t valid = 1;
    for (; valid < lead.length && at + valid < text.size(); ++valid) {
      const auto next = static_cast<uint8_t>(text[at + valid]);
      const bool fits = valid == 1 ? next >= lead.low && next <= lead.high : (next & 0xc0) == 0x80;
      if (!fits) {
        break;
      }
    }
    if (valid != lead.length) {
      return InvalidUtf8{.at = at, .bytes = valid};
    }
    at += valid;
  }
  return std::nullopt;
}

std::string_view RepairUtf8(std::string_view text, std::string& room) {
  std::optional<InvalidUtf8> invalid = FindInvalidUtf8(text);
  if (!invalid.has_value()) {
    return text;
  }
  room.clear();
  size_t done = 0;
  for (; invalid.has_value(); invalid = FindInvalidUtf8(text, done)) {
    room += text.substr(done, invalid->at - done);
    room += "\xef\xbf\xbd";
    done = invalid->at + invalid->bytes;
  }
  return room += text.substr(done);
}

}  // namespace geopipe
