#include "runtime/transport/crc32c.h"

#include <array>
#include <cstring>

namespace geopipe {
namespace {

constexpr uint32_t kReflectedPolynomial = 0x82F63B78;

// tables[k][b]: the checksum of byte b followed by k zero bytes; eight bytes are folded at a time.
using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables MakeTables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? kReflectedPolynomial : 0);
    }
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < tables.size(); ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

uint64_t LoadLittleEndian64(const std::byte* data) {
  uint64_t word = 0;
  std::memcpy(&word, data, sizeof word);
  return word;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t HardwareCrc32c(std::span<const std::byte> bytes, uint32_t crc) {
  uint64_t state = ~crc;
  const std::byte* data = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; left -= 8, data += 8) {
    state = __builtin_ia32_crc32di(state, LoadLittleEndian64(data));
  }
  auto narrow = static_cast<uint32_t>(state);
  for (; left > 0; --left, ++data) {
    narrow = __builtin_ia32_crc32qi(narrow, static_cast<uint8_t>(*data));
  }
  return ~narrow;
}
#endif

}  // namespace

uint32_t Crc32cPortable(std::span<const std::byte> bytes, uint32_t crc) {
  uint32_t state = ~crc;
  const std::byte* data = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; left -= 8, data += 8) {
    const uint64_t word = LoadLittleEndian64(data) ^ state;
    state = 0;
    for (size_t k = 0; k < 8; ++k) {
      state ^= kTables[7 - k][(word >> (8 * k)) & 0xFF];
    }
  }
  for (; left > 0; --left, ++data) {
    state = (state >> 8) ^ kTables[0][(state ^ static_cast<uint32_t>(*data)) & 0xFF];
  }
  return ~state;
}

uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t crc) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) {
    return HardwareCrc32c(bytes, crc);
  }
#endif
  return Crc32cPortable(bytes, crc);
}

}  // namespace geopipe
