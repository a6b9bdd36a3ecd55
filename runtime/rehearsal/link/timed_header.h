// Header that the link shapers of two ends send each other, ahead of every frame or alone: magic u32, kind u8, time
// i64, little-endian. An end without a shaper refuses it; so a shaper puts no header ahead of frames until the peer has
// sent such a header itself.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

namespace geopipe {

struct TimedHeader {
  enum class Kind : uint8_t {
    kFrame = 1,  // a frame follows; when it is due at the receiver
    kRequest,    // alone; when it was sent
    kEcho,       // alone; of the request
  };
  static constexpr size_t kBytes = 13;

  Kind kind = Kind::kFrame;
  int64_t ns = 0;

  std::array<std::byte, kBytes> Encode() const {
    std::array<std::byte, kBytes> bytes{};
    std::memcpy(bytes.data(), &kMagic, sizeof kMagic);
    std::memcpy(bytes.data() + 4, &kind, sizeof kind);
    std::memcpy(bytes.data() + 5, &ns, sizeof ns);
    return bytes;
  }

  // Decodes the beginning of `bytes`; nullopt: it is something else.
  static std::optional<TimedHeader> Decode(std::span<const std::byte> bytes) {
    uint32_t magic = 0;
    uint8_t kind = 0;
    TimedHeader header;
    if (bytes.size() < kBytes) {
      return std::nullopt;
    }
    std::memcpy(&magic, bytes.data(), sizeof magic);
    std::memcpy(&kind, bytes.data() + 4, sizeof kind);
    std::memcpy(&header.ns, bytes.data() + 5, sizeof header.ns);
    header.kind = static_cast<Kind>(kind);
    const bool alone = header.kind == Kind::kRequest || header.kind == Kind::kEcho;
    const bool whole = alone ? bytes.size() == kBytes : header.kind == Kind::kFrame;
    return magic == kMagic && whole ? std::optional(header) : std::nullopt;
  }

 private:
  static_assert(std::endian::native == std::endian::little);
  static constexpr uint32_t kMagic = 0x54435047;  // "GPCT"
};

}  // namespace geopipe
