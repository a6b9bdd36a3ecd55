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

TEST_CASE("elements need not be aligned") {
  const std::vector<std::byte> bytes{std::byte{0}, std::byte{0x80}, std::byte{0x3f}, std::byte{0x00}, std::byte{0xc0}};
  std::vector<float> values(2);
  DecodeFloats(DType::kBf16, std::span(bytes).subspan(1), values);
  CHECK(values == std::vector<float>{1.0F, -2.0F});
}

}  // namespace
}  // namespace geopipe
