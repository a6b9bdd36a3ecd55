#include "coordinator/cli/render/memory_unit.h"

#include <fmt/format.h>

namespace geopipe {
namespace {

constexpr int64_t kKiB = int64_t{1} << 10;
constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kGiB = int64_t{1} << 30;

}  // namespace

MemoryUnit::MemoryUnit(int64_t greatest_bytes)
    : bytes(greatest_bytes >= kGiB   ? kGiB
            : greatest_bytes >= kMiB ? kMiB
                                     : kKiB),
      name(bytes == kGiB   ? "GiB"
           : bytes == kMiB ? "MiB"
                           : "KiB") {}

std::string MemoryUnit::Of(int64_t value_bytes) const {
  const double units = static_cast<double>(value_bytes) / static_cast<double>(bytes);
  constexpr double kTen = 9.995;
  constexpr double kHundred = 99.95;
  return value_bytes == 0   ? "0"
         : units < kTen     ? fmt::format("{:.2f}", units)
         : units < kHundred ? fmt::format("{:.1f}", units)
                            : fmt::format("{:.0f}", units);
}

}  // namespace geopipe
