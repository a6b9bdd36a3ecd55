#include "runtime/base/table.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace geopipe {
namespace {

int32_t WidestLine(const std::string& text) {
  int32_t widest = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    widest = std::max(widest, DisplayWidth(line));
  }
  return widest;
}

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

TEST_CASE("headings give way first, then the widest text, never a number") {
  Table table({"RANK", "BUBBLE SAVED", "WHY"});
  table.AddRow({"0", "12.5 %", "the way over north to east and back takes longer than its work"});
  table.AddRow({"1", "≤ 8.0 %", "its own compute"});
  CHECK(table.Render() ==
        "RANK  BUBBLE SAVED  WHY\n"
        "   0        12.5 %  the way over north to east and back takes longer than its work\n"
        "   1       ≤ 8.0 %  its own compute\n");
  CHECK(table.Render(77) ==
        "       BUBBLE\n"
        "RANK    SAVED  WHY\n"
        "   0   12.5 %  the way over north to east and back takes longer than its work\n"
        "   1  ≤ 8.0 %  its own compute\n");
  CHECK(table.Render(50) ==
        "       BUBBLE\n"
        "RANK    SAVED  WHY\n"
        "   0   12.5 %  the way over north to east and back\n"
        "               takes longer than its work\n"
        "   1  ≤ 8.0 %  its own compute\n");
}

TEST_CASE("what is too wide even so is told in parts that name their rows") {
  Table table({"LATENCY", "SEARCHED", "B", "ITERATION", "BUBBLE", "SAVED"}, 2);
  table.AddRow({"0.50 ms", "geopipe", "4", "11.643 s", "9.3 %", "1.2 %"});
  table.AddRow({"50.0 ms", "auto", "8", "12.004 s", "9.9 %", "10.0 %"});
  CHECK(table.Render(40) ==
        "LATENCY  SEARCHED  B  ITERATION  BUBBLE\n"
        "0.50 ms  geopipe   4   11.643 s   9.3 %\n"
        "50.0 ms  auto      8   12.004 s   9.9 %\n"
        "\n"
        "LATENCY  SEARCHED   SAVED\n"
        "0.50 ms  geopipe    1.2 %\n"
        "50.0 ms  auto      10.0 %\n");
}

TEST_CASE("no line is wider than it may be, whatever the cells hold") {
  Table table({"JOB", "SITES", "CAUSE", "EPOCH"});
  table.AddRow(
      {std::string(64, 'j'), "s1,s2,s3,s4,s5,s6,s7,s8,s9,s10,s11,s12", "no room at 日本 for the 3 ranks", "1"});
  table.AddRow({"short", "s1", "/a/very/long/path/without/a/single/blank/in/it/that/goes/on", "123456"});
  table.AddRow({"", "", "", ""});
  for (int32_t columns = 20; columns < 200; ++columns) {
    INFO(columns << "\n" << table.Render(columns));
    CHECK(WidestLine(table.Render(columns)) <= columns);
  }
}

}  // namespace
}  // namespace geopipe
