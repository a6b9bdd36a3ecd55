#include "coordinator/cli/format.h"

#include <catch2/catch.hpp>
#include <vector>

namespace geopipe {
namespace {

TEST_CASE("a table aligns text to the left and numbers to the right") {
  Table table({"NAME", "COUNT", "µ"});
  table.AddRow({"a", "5", "µs"});
  table.AddRow({"longer", "1,234", "x"});
  table.AddRow({"b", "-", "yy"});
  CHECK(table.rows() == 3);
  CHECK(table.Render() ==
        "NAME    COUNT  µ\n"
        "a           5  µs\n"
        "longer  1,234  x\n"
        "b           -  yy\n");
}

TEST_CASE("durations read well at every size") {
  CHECK(HumanDuration(0) == "0 ns");
  CHECK(HumanDuration(812) == "812 ns");
  CHECK(HumanDuration(3'210) == "3.21 µs");
  CHECK(HumanDuration(20'000'000) == "20.0 ms");
  CHECK(HumanDuration(6'510'000'000) == "6.510 s");
  CHECK(HumanDuration(125'000'000'000) == "2 min 05 s");
  CHECK(HumanDuration(11'520'000'000'000) == "3 h 12 min");
}

TEST_CASE("bytes, bandwidths, counts, ratios and lists") {
  CHECK(HumanBytes(512) == "512 B");
  CHECK(HumanBytes(1536) == "1.50 KiB");
  CHECK(HumanBytes(int64_t{64} << 30) == "64.0 GiB");
  CHECK(HumanBandwidth(125e6) == "1.00 Gbps");
  CHECK(HumanBandwidth(5e10) == "400 Gbps");
  CHECK(HumanCount(0) == "0");
  CHECK(HumanCount(999) == "999");
  CHECK(HumanCount(1'000) == "1,000");
  CHECK(HumanCount(-1'234'567) == "-1,234,567");
  CHECK(HumanPercent(0.115) == "11.5 %");
  CHECK(FormatList(std::vector<int32_t>{}) == "-");
  CHECK(FormatList(std::vector<int32_t>{2, 1}) == "2,1");
  CHECK(Seconds(1'500'000'000) == 1.5);
}

}  // namespace
}  // namespace geopipe
