#include "runtime/base/quantities.h"

#include <catch2/catch.hpp>
#include <random>

#include "tests/support/seed.h"

namespace geopipe {
namespace {

TEST_CASE("Quantities are read in base units") {
  CHECK(ParseDuration("20ms").value() == 20'000'000);
  CHECK(ParseDuration("0.1 ms").value() == 100'000);
  CHECK(ParseDuration("1.5s").value() == 1'500'000'000);
  CHECK(ParseDuration("2min").value() == 120'000'000'000);
  CHECK(ParseDuration("0.5ns").value() == 1);
  CHECK(ParseDuration("0").value() == 0);
  CHECK(ParseBandwidth("400Gbps").value() == 50e9);
  CHECK(ParseBandwidth("1.6TB/s").value() == 1.6e12);
  CHECK(ParseBytes("64GiB").value() == int64_t{64} << 30);
  CHECK(ParseBytes("1kB").value() == 1000);
  CHECK(ParseRatio("15%").value() == 0.15);
  CHECK(ParseNumber("3.0e-4").value() == 3e-4);
  CHECK(ParseInteger("1e6").value() == 1'000'000);
  CHECK(ParseInteger("-9223372036854775808").value() == INT64_MIN);
}

TEST_CASE("A wrong quantity is refused with an example") {
  CHECK(ParseDuration("20").status().message() == "'20' has no unit; write it like 20ms, 1.5s or 10min");
  CHECK(ParseDuration("20 GiB").status().message() ==
        "'20 GiB' has the unknown unit 'GiB'; write it like 20ms, 1.5s or 10min");
  CHECK(ParseDuration("soon").status().message() == "'soon' is not a duration; write it like 20ms, 1.5s or 10min");
  CHECK(ParseDuration("-1s").status().message() == "'-1s' is negative; a duration is not");
  CHECK(ParseDuration("1e30s").status().message() == "'1e30s' is too long; the longest duration is 9000000000s");
  CHECK_FALSE(ParseDuration("nans").ok());
  CHECK_FALSE(ParseDuration("").ok());
  CHECK_FALSE(ParseBandwidth("0bps").ok());
  CHECK_FALSE(ParseBandwidth("0").ok());
  CHECK_FALSE(ParseBandwidth("1e400Gbps").ok());
  CHECK_FALSE(ParseBytes("1e30GiB").ok());
  CHECK_FALSE(ParseRatio("0.15").ok());
  CHECK_FALSE(ParseInteger("1.5").ok());
  CHECK_FALSE(ParseInteger("9223372036854775808").ok());
  CHECK_FALSE(ParseNumber("1x").ok());
  CHECK_FALSE(ParseNumber("inf").ok());
}

TEST_CASE("Quantities are shown in the unit a person would take") {
  CHECK(FormatDuration(20'000'000) == "20ms");
  CHECK(FormatDuration(1'500'000'000) == "1.5s");
  CHECK(FormatDuration(100'000'000'000) == "100s");
  CHECK(FormatDuration(0) == "0s");
  CHECK(FormatDuration(1) == "1ns");
  CHECK(FormatBandwidth(50e9) == "400Gbps");
  CHECK(FormatBytes(int64_t{64} << 30) == "64GiB");
  CHECK(FormatBytes(0) == "0B");
  CHECK(FormatRatio(0.15) == "15%");
  CHECK(FormatRatio(0.07) == "7%");
}

TEST_CASE("What is shown is read back") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (int i = 0; i < 2000; ++i) {
    const auto value = static_cast<int64_t>(random() >> (11 + random() % 53));
    CAPTURE(value);
    CHECK(ParseDuration(FormatDuration(value)).value() == value);
    CHECK(ParseBytes(FormatBytes(value)).value() == value);
  }
}

}  // namespace
}  // namespace geopipe
