#include "runtime/rehearsal/host/stolen_time.h"

#include <catch2/catch.hpp>

namespace geopipe {
namespace {

TEST_CASE("stolen time is read from the sum over the processors") {
  const auto time = ParseProcessorTime("cpu  100 20 30 400 5 6 7 32 50 60\ncpu0 1 2 3 4 5 6 7 8 9 10\n");
  REQUIRE(time.has_value());
  CHECK(time->wanted == 195);  // of 600: not idle, not waiting for a device
  CHECK(time->stolen == 32);
  CHECK_FALSE(ParseProcessorTime("").has_value());
  CHECK_FALSE(ParseProcessorTime("cpu0 1 2 3 4 5 6 7 8 9 10").has_value());
  CHECK_FALSE(ParseProcessorTime("cpu  1 2 3 4").has_value());  // of a kernel that does not know of it
}

TEST_CASE("the stolen share is that of the wanted time between two readings") {
  CHECK(StolenShare({.wanted = 1000, .stolen = 100}, {.wanted = 3000, .stolen = 200}) == 0.05);
  CHECK(StolenShare({.wanted = 1000, .stolen = 100}, {.wanted = 1000, .stolen = 100}) == 0);
}

TEST_CASE("this host tells of its processors' time") {
  const auto time = ReadProcessorTime();
  REQUIRE(time.has_value());
  CHECK(time->wanted > 0);
  CHECK(time->stolen >= 0);
}

}  // namespace
}  // namespace geopipe
