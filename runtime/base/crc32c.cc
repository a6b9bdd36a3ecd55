#include "runtime/base/crc32c.h"

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
// The instruction takes three cycles and one may begin in every cycle, so three neighbouring pieces are summed side by
// side. A checksum is linear over GF(2): that of pieces a, b, c in a row is that of a followed by zeros in place of b
// and c, plus that of b followed by zeros in place of c, plus that of c.
constexpr size_t kLaneBytes = 1024;

// operator[i]: the checksum that bit i becomes behind the zeros.
using ZerosOperator = std::array<uint32_t, 32>;

constexpr uint32_t Apply(const ZerosOperator& zeros, uint32_t crc) {
  uint32_t result = 0;
  for (const uint32_t column : zeros) {
    result ^= (crc & 1) != 0 ? column : 0;
    crc >>= 1;
  }
  return result;
}

// [k][b]: the checksum that byte b at position k of a checksum becomes behind kLaneBytes zeros.
using LaneTables = std::array<std::array<uint32_t, 256>, 4>;

constexpr LaneTables MakeLaneTables() {
  ZerosOperator zeros{};  // one zero byte; squared until there are kLaneBytes
  for (size_t bit = 0; bit < zeros.size(); ++bit) {
    const uint32_t crc = uint32_t{1} << bit;
    zeros[bit] = (crc >> 8) ^ kTables[0][crc & 0xFF];
  }
  for (size_t bytes = 1; bytes < kLaneBytes; bytes *= 2) {
    ZerosOperator twice{};
    for (size_t bit = 0; bit < zeros.size(); ++bit) {
      twice[bit] = Apply(zeros, zeros[bit]);
    }
    zeros = twice;
  }
  LaneTables tables{};
  for (size_t k = 0; k < tables.size(); ++k) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      tables[k][byte] = Apply(zeros, byte << (8 * k));
    }
  }
  return tables;
}

static_assert((kLaneBytes & (kLaneBytes - 1)) == 0 && kLaneBytes % 8 == 0);
constexpr LaneTables kLaneTables = MakeLaneTables();

uint64_t BehindLane(uint64_t crc) {
  return kLaneTables[0][crc & 0xFF] ^ kLaneTables[1][(crc >> 8) & 0xFF] ^ kLaneTables[2][(crc >> 16) & 0xFF] ^
         kLaneTables[3][(crc >> 24) & 0xFF];
}

__attribute__((target("sse4.2"))) uint32_t HardwareCrc32c(std::span<const std::byte> bytes, uint32_t crc) {
  uint64_t state = ~crc;
  const std::byte* data = bytes.data();
  size_t left = bytes.size();
  for (; left >= 3 * kLaneBytes; left -= 3 * kLaneBytes, data += 3 * kLaneBytes) {
    uint64_t second = 0;
    uint64_t third = 0;
    for (size_t i = 0; i < kLaneBytes; i += 8) {
      state = __builtin_ia32_crc32di(state, LoadLittleEndian64(data + i));
      second = __builtin_ia32_crc32di(second, LoadLittleEndian64(data + kLaneBytes + i));
      third = __builtin_ia32_crc32di(third, LoadLittleEndian64(data + 2 * kLaneBytes + i));
    }
    state = BehindLane(BehindLane(state) ^ second) ^ third;
  }
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
