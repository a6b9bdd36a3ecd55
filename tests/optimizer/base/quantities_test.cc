#include "optimizer/base/quantities.h"

#include <algorithm>
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
  CHECK(ParseDuration("10µs").value() == 10'000);
  CHECK(ParseDuration("10 μs").value() == 10'000);
  CHECK(ParseDuration(" 2 min 05 s ").value() == 125'000'000'000);
  CHECK(ParseDuration("0.5ns").value() == 1);
  CHECK(ParseDuration("0").value() == 0);
  CHECK(ParseBandwidth("400Gbps").value() == 50e9);
  CHECK(ParseBandwidth("1.6TB/s").value() == 1.6e12);
  CHECK(ParseBytes("64GiB").value() == int64_t{64} << 30);
  CHECK(ParseBytes("1kB").value() == 1000);
  CHECK(ParseBytes("300KB").value() == 300'000);  // as Hugging Face writes it
  CHECK_FALSE(ParseBytes("300kib").ok());
  CHECK_FALSE(ParseBytes("300Kb").ok());
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
  CHECK_FALSE(ParseDuration("2 min 05").ok());
  CHECK_FALSE(ParseBandwidth("0bps").ok());
  CHECK_FALSE(ParseBandwidth("0").ok());
  CHECK_FALSE(ParseBandwidth("1e400Gbps").ok());
  CHECK(ParseBandwidth("1e300Gbps").status().message() ==
        "'1e300Gbps' is too large; the largest bandwidth is 8000Tbps");
  CHECK(ParseBandwidth("8000Tbps").value() == 1e15);
  for (const auto& [text, plain] : {std::pair{"10ms", "10e-3"}, {"2.5 us", "2.5e-6"}, {"7ns", "7e-9"}, {"3s", "3"}}) {
    CHECK(ParseNumber(text).status().message() ==
          "'" + std::string(text) + "' has a unit and must be a plain number; write it like " + plain);
  }
  CHECK(ParseNumber("989TFLOPS").status().message() ==
        "'989TFLOPS' has a unit and must be a plain number; write it like 989e12");
  CHECK(ParseNumber("1.5 PFLOP/s").status().message() ==
        "'1.5 PFLOP/s' has a unit and must be a plain number; write it like 1.5e15");
  CHECK(ParseInteger("4M").status().message() == "'4M' has a unit and must be a plain number; write it like 4e6");
  CHECK(ParseNumber("5e3k").status().message() == "'5e3k' is not a number; write it like 3.0e-4");
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

TEST_CASE("Quantities are rounded for people") {
  CHECK(HumanDuration(0) == "0 ns");
  CHECK(HumanDuration(812) == "812 ns");
  CHECK(HumanDuration(3'210) == "3.21 µs");
  CHECK(HumanDuration(20'000'000) == "20.0 ms");
  CHECK(HumanDuration(6'510'000'000) == "6.510 s");
  CHECK(HumanDuration(125'000'000'000) == "125.00 s");
  CHECK(HumanDuration(85'804'000'000) == "85.80 s");
  CHECK(HumanDuration(11'520'360'000'000) == "3.2001 h");
  CHECK(HumanAge(999'000'000) == "0 s");
  CHECK(HumanAge(125'000'000'000) == "2 min 05 s");
  CHECK(HumanAge(11'520'000'000'000) == "3 h 12 min");
  CHECK(HumanBytes(512) == "512 B");
  CHECK(HumanBytes(1536) == "1.50 KiB");
  CHECK(HumanBytes(int64_t{64} << 30) == "64.0 GiB");
  CHECK(HumanBytes((int64_t{1} << 40) - 1) == "1.00 TiB");
  CHECK(HumanBandwidth(125e6) == "1.00 Gbps");
  CHECK(HumanBandwidth(5e10) == "400 Gbps");
  CHECK(HumanPercent(0.115) == "11.5 %");
  CHECK(HumanPercent(-0.0001) == "0.0 %");
  CHECK(HumanPercent(-0.001) == "-0.1 %");
  CHECK(Counted(1, "site") == "1 site");
  CHECK(Counted(0, "site") == "0 sites");
  CHECK(ShortDuration(0) == "0 ns");
  CHECK(ShortDuration(1'500) == "1.5 µs");
  CHECK(ShortDuration(20'000'000) == "20 ms");
  CHECK(ShortDuration(6'510'000'000) == "6.51 s");
  CHECK(ShortBandwidth(2.0e10) == "160 Gbps");
  CHECK(ShortBandwidth(1.25e11) == "1 Tbps");
  CHECK(ShortBandwidth(50) == "400 bps");
}

TEST_CASE("What is rounded for people is read back as rounded") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (int i = 0; i < 2000; ++i) {
    const auto value = static_cast<int64_t>(random() >> (4 + random() % 60)) + 1;
    const auto exact = static_cast<double>(value);
    CAPTURE(value);
    CHECK(static_cast<double>(ParseDuration(HumanDuration(value)).value()) == Approx(exact).epsilon(0.017));
    CHECK(static_cast<double>(ParseDuration(ShortDuration(value)).value()) == Approx(exact).epsilon(0.001));
    CHECK(static_cast<double>(ParseBytes(HumanBytes(value)).value()) == Approx(exact).epsilon(0.01));
    const double bandwidth = std::min(exact, 9e14);  // rounded, still below the largest that is read
    CHECK(ParseBandwidth(HumanBandwidth(bandwidth)).value() == Approx(bandwidth).epsilon(0.01));
    CHECK(ParseBandwidth(ShortBandwidth(bandwidth)).value() == Approx(bandwidth).epsilon(0.01));
    CHECK(ParseRatio(HumanPercent(exact)).value() == Approx(exact));
  }
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
