// bf16 numbers by their bits.
#pragma once

#include <bit>
#include <cstdint>

namespace geopipe {

// The nearest to a finite number, ties to even.
inline uint16_t Bf16Of(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

inline float ValueOfBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

}  // namespace geopipe
