// Conversion between fp32 and the 16-bit formats of weight files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/tensor/tensor.h"

namespace geopipe {

// Exact. bf16: sign, 8 exponent bits, 7 fraction bits; fp16: IEEE 754 binary16 (subnormals, infinities and NaN kept).
float Bf16ToFp32(uint16_t bits);
float Fp16ToFp32(uint16_t bits);

// To nearest, ties to even; a NaN stays a (quiet) NaN.
uint16_t Fp32ToBf16(float value);

// Little-endian elements of `from` (fp32, bf16 or fp16) to fp32. `bytes` need not be aligned.
// REQUIRES: bytes.size() == values.size() * ByteSize(from).
void DecodeFloats(DType from, std::span<const std::byte> bytes, std::span<float> values);

// fp32 to little-endian elements of `to` (fp32 or bf16). REQUIRES: bytes.size() == values.size() * ByteSize(to).
void EncodeFloats(DType to, std::span<const float> values, std::span<std::byte> bytes);

}  // namespace geopipe
