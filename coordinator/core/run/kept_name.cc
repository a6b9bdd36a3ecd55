#include "coordinator/core/run/kept_name.h"

#include <fmt/format.h>

#include <charconv>

namespace geopipe {

std::string KeptName(std::string_view name, int64_t run) { return fmt::format("{}@{}", name, run); }

bool IsKeptName(std::string_view found_under) { return found_under.find('@') != std::string_view::npos; }

RunName RunNameOf(std::string_view found_under) {
  const size_t at = found_under.find('@');
  RunName run{.name = std::string(found_under.substr(0, at))};
  if (at != std::string_view::npos) {
    const std::string_view digits = found_under.substr(at + 1);
    std::from_chars(digits.data(), digits.data() + digits.size(), run.run);
  }
  return run;
}

std::string DisplayName(const RunName& run) {
  return run.run == 0 ? fmt::format("job {}", run.name) : fmt::format("run {} of job {}", run.run, run.name);
}

}  // namespace geopipe
