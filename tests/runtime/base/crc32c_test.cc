#include "runtime/base/crc32c.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <numeric>
#include <string_view>
#include <vector>

#include "optimizer/base/splitmix64.h"

namespace geopipe {
namespace {

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

TEST_CASE("CRC-32C of the published vectors") {
  // RFC 3720, B.4, and the catalogue's check value.
  std::vector<std::byte> ascending(32);
  for (size_t i = 0; i < ascending.size(); ++i) {
    ascending[i] = static_cast<std::byte>(i);
  }
  for (const auto crc : {&Crc32c, &Crc32cPortable}) {
    CHECK(crc(Bytes("123456789"), 0) == 0xE3069283);
    CHECK(crc(std::vector<std::byte>(32), 0) == 0x8A9136AA);
    CHECK(crc(std::vector<std::byte>(32, std::byte{0xFF}), 0) == 0x62A8AB43);
    CHECK(crc(ascending, 0) == 0x46DD794E);
    CHECK(crc({}, 0) == 0);
  }
}

TEST_CASE("CRC-32C by instruction and by table agree and can be continued") {
  SplitMix64 random(3);
  std::vector<std::byte> bytes(10'000);  // the instruction sums three pieces of 1 KiB at a time
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(random.Next());
  }
  const std::span<const std::byte> all(bytes);
  for (size_t cut = 0; cut <= 40; ++cut) {
    CHECK(Crc32c(all.subspan(cut)) == Crc32cPortable(all.subspan(cut)));
    CHECK(Crc32c(all.subspan(cut), Crc32c(all.first(cut))) == Crc32c(all));
    CHECK(Crc32c(all.first(3 * 1024 + cut), 5) == Crc32cPortable(all.first(3 * 1024 + cut), 5));
    CHECK(Crc32c(all.first(3 * 1024 - cut), 5) == Crc32cPortable(all.first(3 * 1024 - cut), 5));
  }
}

}  // namespace
}  // namespace geopipe
