// The number formats in which files hold weights, and fp32 from and to them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

namespace geopipe {

// bf16: sign, 8 exponent bits, 7 fraction bits; fp16: IEEE 754 binary16.
enum class FloatFormat : uint8_t { kFp32, kBf16, kFp16 };

struct FloatFormatRow {
  FloatFormat format;
  std::string_view name;         // as our flags and files say it
  std::string_view safetensors;  // as a .safetensors file says it
  std::string_view torch;        // as config.json says it
  int64_t bytes;                 // of an element
  float overflow;                // the smallest magnitude that rounds to infinity
};

inline constexpr std::array<FloatFormatRow, 3> kFloatFormats{
    {{FloatFormat::kFp32, "fp32", "F32", "float32", 4, std::numeric_limits<float>::infinity()},
     {FloatFormat::kBf16, "bf16", "BF16", "bfloat16", 2, 0x1.ffp127F},
     {FloatFormat::kFp16, "fp16", "F16", "float16", 2, 65520.0F}}};

constexpr const FloatFormatRow& RowOf(FloatFormat format) { return kFloatFormats[static_cast<size_t>(format)]; }

// Exact (subnormals, infinities and NaN kept).
float Bf16ToFp32(uint16_t bits);
float Fp16ToFp32(uint16_t bits);

// Rounds to nearest, ties to even; a NaN stays a (quiet) NaN.
uint16_t Fp32ToBf16(float value);
uint16_t Fp32ToFp16(float value);

// Little-endian elements of `from` to fp32. `bytes` need not be aligned.
// REQUIRES: bytes.size() == values.size() * RowOf(from).bytes.
void DecodeFloats(FloatFormat from, std::span<const std::byte> bytes, std::span<float> values);

// fp32 to little-endian elements of `to`. REQUIRES: bytes.size() == values.size() * RowOf(to).bytes.
void EncodeFloats(FloatFormat to, std::span<const float> values, std::span<std::byte> bytes);

}  // namespace geopipe
