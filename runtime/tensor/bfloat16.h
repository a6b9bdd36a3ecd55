// The element type of bf16 tensors: storage only. Code that computes with it converts it.
#pragma once

#include <cstdint>

namespace geopipe {

// The upper half of an fp32: sign, 8 exponent bits, 7 fraction bits.
struct BFloat16 {
  uint16_t bits;

  friend bool operator==(BFloat16, BFloat16) = default;  // of bits: a NaN equals itself, 0 differs from -0
};

}  // namespace geopipe
