#include "coordinator/cli/render/format.h"

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

TEST_CASE("counts and lists") {
  CHECK(HumanCount(0) == "0");
  CHECK(HumanCount(999) == "999");
  CHECK(HumanCount(1'000) == "1,000");
  CHECK(HumanCount(-1'234'567) == "-1,234,567");
  CHECK(FormatList(std::vector<int32_t>{}) == "-");
  CHECK(FormatList(std::vector<int32_t>{2, 1}) == "2,1");
  CHECK(Seconds(1'500'000'000) == 1.5);
}

}  // namespace
}  // namespace geopipe
