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

uint16_t Fp32ToFp16(float value) {
  constexpr uint32_t kInfinity = 0x7c00;
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000U;
  const float magnitude = std::abs(value);
  uint32_t result = 0;
  if (std::isnan(value)) {
    result = kInfinity | 0x200U | ((bits >> 13) & 0x3ffU);
  } else if (magnitude >= RowOf(FloatFormat::kFp16).overflow) {
    result = kInfinity;
  } else if (magnitude < 0x1p-14F) {
    // Subnormal, in units of 2^-24: in this range the units of fp32 are the same, so the sum rounds as it should.
    result = std::bit_cast<uint32_t>(magnitude + 0.5F) - std::bit_cast<uint32_t>(0.5F);
  } else {
    const uint32_t rebiased = (bits & 0x7fffffffU) - ((127U - 15U) << 23);
    result = (rebiased + 0xfffU + ((rebiased >> 13) & 1U)) >> 13;
  }
  return static_cast<uint16_t>(sign | result);
}

void DecodeFloats(FloatFormat from, std::span<const std::byte> bytes, std::span<float> values) {
  static_assert(std::endian::native == std::endian::little, "weights are little-endian");
  GP_CHECK(bytes.size() == values.size() * static_cast<size_t>(RowOf(from).bytes), "{} bytes for {} values",
           bytes.size(), values.size());
  if (from == FloatFormat::kFp32) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return;
  }
  const bool is_bf16 = from == FloatFormat::kBf16;
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t half = 0;
    std::memcpy(&half, &bytes[2 * i], 2);
    values[i] = is_bf16 ? Bf16ToFp32(half) : Fp16ToFp32(half);
  }
}

void EncodeFloats(FloatFormat to, std::span<const float> values, std::span<std::byte> bytes) {
  GP_CHECK(bytes.size() == values.size() * static_cast<size_t>(RowOf(to).bytes), "{} bytes for {} values", bytes.size(),
           values.size());
  if (to == FloatFormat::kFp32) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return;
  }
  const bool is_bf16 = to == FloatFormat::kBf16;
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half = is_bf16 ? Fp32ToBf16(values[i]) : Fp32ToFp16(values[i]);
    std::memcpy(&bytes[2 * i], &half, 2);
  }
}

}  // namespace geopipe
