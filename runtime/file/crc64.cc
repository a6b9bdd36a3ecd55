#include "runtime/file/crc64.h"

#include <array>
#include <bit>
#include <cstring>

namespace geopipe {
namespace {

constexpr uint64_t kReflectedPolynomial = 0xC96C5795D7870F42;
constexpr int kSlices = 8;

using Tables = std::array<std::array<uint64_t, 256>, kSlices>;

// Slicing-by-8 (Kounavis and Berry, 2005): tables[k][b] is the remainder of byte b followed by k zero bytes, so that
// eight bytes cost eight independent look-ups instead of a chain of eight.
constexpr Tables MakeTables() {
  Tables tables{};
  for (uint64_t byte = 0; byte < 256; ++byte) {
    uint64_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) {
      remainder = (remainder >> 1) ^ ((remainder & 1) != 0 ? kReflectedPolynomial : 0);
    }
    tables[0][byte] = remainder;
  }
  for (size_t byte = 0; byte < 256; ++byte) {
    for (size_t k = 1; k < kSlices; ++k) {
      const uint64_t previous = tables[k - 1][byte];
      tables[k][byte] = (previous >> 8) ^ tables[0][previous & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

}  // namespace

void Crc64::Update(std::span<const std::byte> bytes) {
  static_assert(std::endian::native == std::endian::little, "words are read in the order of the polynomial");
  uint64_t state = state_;
  while (bytes.size() >= 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), 8);
    word ^= state;
    state = 0;
    for (size_t k = 0; k < kSlices; ++k) {
      state ^= kTables[kSlices - 1 - k][(word >> (8 * k)) & 0xff];
    }
    bytes = bytes.subspan(8);
  }
  for (const std::byte byte : bytes) {
    state = (state >> 8) ^ kTables[0][(state ^ static_cast<uint64_t>(byte)) & 0xff];
  }
  state_ = state;
}

}  // namespace geopipe
