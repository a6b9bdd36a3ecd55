#include "runtime/file/crc64.h"

#include <catch2/catch.hpp>
#include <string_view>

namespace geopipe {
namespace {

uint64_t Of(std::string_view text) {
  Crc64 crc;
  crc.Update(std::as_bytes(std::span(text)));
  return crc.value();
}

TEST_CASE("CRC-64/XZ check values") {
  CHECK(Of("") == 0);
  CHECK(Of("123456789") == 0x995DC9BBDF1939FA);
}

TEST_CASE("pieces of any size give the checksum of the whole") {
  const std::string_view text = "the quick brown fox jumps over the lazy dog, and over it again";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    Crc64 crc;
    crc.Update(std::as_bytes(std::span(text.substr(0, cut))));
    crc.Update(std::as_bytes(std::span(text.substr(cut))));
    CHECK(crc.value() == Of(text));
  }
}

}  // namespace
}  // namespace geopipe
