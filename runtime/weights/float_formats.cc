#include "runtime/weights/float_formats.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "optimizer/base/check.h"

namespace geopipe {

float Bf16ToFp32(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

float Fp16ToFp32(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000U} << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fU;
  const uint32_t fraction = bits & 0x3ffU;
  if (exponent == 0x1f) {  // infinity or NaN
    return std::bit_cast<float>(sign | 0x7f800000U | (fraction << 13));
  }
  if (exponent == 0) {  // zero or subnormal: fraction * 2^-24
    const float magnitude = std::ldexp(static_cast<float>(fraction), -24);
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 127 - 15) << 23) | (fraction << 13));
}

uint16_t Fp32ToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) {
    return static_cast<uint16_t>((bits >> 16) | 0x40U);
  }
  return static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

void DecodeFloats(DType from, std::span<const std::byte> bytes, std::span<float> values) {
  static_assert(std::endian::native == std::endian::little, "weights are little-endian");
  GP_CHECK(bytes.size() == values.size() * ByteSize(from), "{} bytes for {} values", bytes.size(), values.size());
  if (from == DType::kFp32) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return;
  }
  GP_CHECK(from == DType::kBf16 || from == DType::kFp16, "weights of {}", DTypeName(from));
  const bool is_bf16 = from == DType::kBf16;
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t half = 0;
    std::memcpy(&half, &bytes[2 * i], 2);
    values[i] = is_bf16 ? Bf16ToFp32(half) : Fp16ToFp32(half);
  }
}

void EncodeFloats(DType to, std::span<const float> values, std::span<std::byte> bytes) {
  GP_CHECK(bytes.size() == values.size() * ByteSize(to), "{} bytes for {} values", bytes.size(), values.size());
  if (to == DType::kFp32) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return;
  }
  GP_CHECK(to == DType::kBf16, "weights written as {}", DTypeName(to));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half = Fp32ToBf16(values[i]);
    std::memcpy(&bytes[2 * i], &half, 2);
  }
}

}  // namespace geopipe
