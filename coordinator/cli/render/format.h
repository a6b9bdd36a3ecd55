// Text for people: counts, lists and ratios, and how tables are laid out.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/base/quantities.h"
#include "runtime/base/table.h"
#include "runtime/base/wrap.h"

namespace geopipe {

// Says whether alike rows of a long table share one. Rows of different sites never do.
enum class Rows : uint8_t { kAll, kFolded };

// Layout of text for people.
struct View {
  View(Rows shown = Rows::kAll, int32_t width = kAnyColumns) : rows(shown), columns(width) {}  // NOLINT(*-explicit-*)

  Rows rows;
  int32_t columns;  // of the widest line
};

// "12,345".
std::string HumanCount(int64_t count);
// "2,1"; "-" when empty.
std::string FormatList(std::span<const int32_t> values);
// The same, but of more than eight values each run of equal ones is written once: "0 × 2, 1, 3 × 12".
std::string FormatRuns(std::span<const int32_t> values);
// "a, b, c"; of more than twelve names the first ten and how many more there are.
std::string NamesText(std::span<const std::string> names);

// `part` of `whole`; 0 of nothing.
double Ratio(int64_t part, int64_t whole);
// Relative excess of a value over `base`; 0 where the base is 0.
double Excess(int64_t value, int64_t base);

// Nanoseconds as seconds: the nearest double.
double Seconds(int64_t duration_ns);

}  // namespace geopipe
