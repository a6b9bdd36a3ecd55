#include "runtime/weights/float_formats.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

namespace geopipe {
namespace {

TEST_CASE("fp16 values") {
  CHECK(Fp16ToFp32(0x3c00) == 1.0F);
  CHECK(Fp16ToFp32(0xc000) == -2.0F);
  CHECK(Fp16ToFp32(0x7bff) == 65504.0F);
  CHECK(Fp16ToFp32(0x0001) == std::ldexp(1.0F, -24));
  CHECK(Fp16ToFp32(0x83ff) == -std::ldexp(1023.0F, -24));
  CHECK(Fp16ToFp32(0x0400) == std::ldexp(1.0F, -14));
  CHECK(std::signbit(Fp16ToFp32(0x8000)));
  CHECK(Fp16ToFp32(0x7c00) == std::numeric_limits<float>::infinity());
  CHECK(std::isnan(Fp16ToFp32(0x7e01)));
}

TEST_CASE("bf16 rounds to nearest, ties to even") {
  CHECK(Fp32ToBf16(1.0F) == 0x3f80);
  CHECK(Fp32ToBf16(std::bit_cast<float>(0x3f808000U)) == 0x3f80);  // half way: to even
  CHECK(Fp32ToBf16(std::bit_cast<float>(0x3f818000U)) == 0x3f82);  // half way: to even
  CHECK(Fp32ToBf16(std::bit_cast<float>(0x3f808001U)) == 0x3f81);
  CHECK(Fp32ToBf16(std::numeric_limits<float>::max()) == 0x7f80);  // rounds to infinity
  CHECK(std::isnan(Bf16ToFp32(Fp32ToBf16(std::bit_cast<float>(0x7f800001U)))));
}

TEST_CASE("every bf16 number survives fp32 and back") {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = Bf16ToFp32(static_cast<uint16_t>(bits));
    if (!std::isnan(value)) {
      REQUIRE(Fp32ToBf16(value) == bits);
    }
  }
}

TEST_CASE("fp16 rounds to nearest, ties to even") {
  CHECK(Fp32ToFp16(1.0F) == 0x3c00);
  CHECK(Fp32ToFp16(-2.0F) == 0xc000);
  CHECK(Fp32ToFp16(1.0F + 0x1p-11F) == 0x3c00);                        // half way: to even
  CHECK(Fp32ToFp16(1.0F + 0x3p-11F) == 0x3c02);                        // half way: to even
  CHECK(Fp32ToFp16(std::nextafter(1.0F + 0x1p-11F, 2.0F)) == 0x3c01);  // just above
  CHECK(Fp32ToFp16(65504.0F) == 0x7bff);                               // the largest
  CHECK(Fp32ToFp16(std::nextafter(65520.0F, 0.0F)) == 0x7bff);
  CHECK(Fp32ToFp16(65520.0F) == 0x7c00);
  CHECK(Fp32ToFp16(-std::numeric_limits<float>::infinity()) == 0xfc00);
  CHECK(Fp32ToFp16(0x1p-14F) == 0x0400);  // the smallest normal number
  CHECK(Fp32ToFp16(std::nextafter(0x1p-14F, 0.0F)) == 0x0400);
  CHECK(Fp32ToFp16(0x1p-24F) == 0x0001);  // the smallest of all
  CHECK(Fp32ToFp16(0x1p-25F) == 0x0000);  // half way: to even
  CHECK(Fp32ToFp16(std::nextafter(0x1p-25F, 1.0F)) == 0x0001);
  CHECK(Fp32ToFp16(0x3p-25F) == 0x0002);  // half way: to even
  CHECK(Fp32ToFp16(-0.0F) == 0x8000);
  CHECK(Fp32ToFp16(std::bit_cast<float>(0x80000001U)) == 0x8000);
  CHECK(std::isnan(Fp16ToFp32(Fp32ToFp16(std::bit_cast<float>(0x7f800001U)))));
}

TEST_CASE("every fp16 number survives fp32 and back, and what lies between two goes to the nearer") {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = Fp16ToFp32(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      continue;
    }
    REQUIRE(Fp32ToFp16(value) == bits);
    const bool has_next = (bits & 0x7fffU) < 0x7bffU;
    if (has_next) {
      const float half_way = (value + Fp16ToFp32(static_cast<uint16_t>(bits + 1))) / 2;  // exact in fp32
      REQUIRE(Fp32ToFp16(half_way) == bits + (bits & 1U));
      REQUIRE(Fp32ToFp16(std::nextafter(half_way, value)) == bits);
      REQUIRE(Fp32ToFp16(std::nextafter(half_way, 2 * half_way)) == bits + 1);
    }
  }
}

TEST_CASE("the smallest magnitude that rounds to infinity") {
  for (const FloatFormatRow& row : kFloatFormats) {
    CAPTURE(row.name);
    CHECK(&RowOf(row.format) == &row);
    const std::vector<float> values{row.overflow, std::nextafter(row.overflow, 0.0F)};
    std::vector<std::byte> bytes(2 * static_cast<size_t>(row.bytes));
    EncodeFloats(row.format, values, bytes);
    std::vector<float> decoded(2);
    DecodeFloats(row.format, bytes, decoded);
    CHECK(std::isinf(decoded[0]));
    CHECK(std::isfinite(decoded[1]));
  }
}

TEST_CASE("elements need not be aligned") {
  const std::vector<std::byte> bytes{std::byte{0}, std::byte{0x80}, std::byte{0x3f}, std::byte{0x00}, std::byte{0xc0}};
  std::vector<float> values(2);
  DecodeFloats(FloatFormat::kBf16, std::span(bytes).subspan(1), values);
  CHECK(values == std::vector<float>{1.0F, -2.0F});
}

}  // namespace
}  // namespace geopipe
