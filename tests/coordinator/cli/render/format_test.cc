#include "coordinator/cli/render/format.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace geopipe {
namespace {

TEST_CASE("counts and lists") {
  CHECK(HumanCount(0) == "0");
  CHECK(HumanCount(999) == "999");
  CHECK(HumanCount(1'000) == "1,000");
  CHECK(HumanCount(-1'234'567) == "-1,234,567");
  CHECK(FormatList(std::vector<int32_t>{}) == "-");
  CHECK(FormatList(std::vector<int32_t>{2, 1}) == "2,1");
  CHECK(NamesText(std::vector<std::string>{"a", "b"}) == "a, b");
  CHECK(NamesText(std::vector<std::string>(48, "s")) == "s, s, s, s, s, s, s, s, s, s and 38 more");
  CHECK(Seconds(1'500'000'000) == 1.5);
}

}  // namespace
}  // namespace geopipe
