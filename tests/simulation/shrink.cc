#include "tests/simulation/shrink.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

namespace geopipe::simulation {

Outcome Shrink(const Options& options, Outcome outcome) {
  // Faults after the rule was broken do not count.
  std::vector<Fault>& faults = outcome.faults;
  std::erase_if(faults, [&](const Fault& fault) { return fault.at_ns > outcome.broken_ns; });
  const auto try_with = [&](const std::vector<Fault>& fewer) {
    Outcome tried = Simulate(options, fewer);
    if (tried.broken.empty()) {
      return false;
    }
    outcome = std::move(tried);
    return true;
  };
  for (size_t count = 0; count < faults.size(); ++count) {
    if (try_with(std::vector<Fault>(faults.begin(), faults.begin() + static_cast<std::ptrdiff_t>(count)))) {
      break;
    }
  }
  for (size_t i = faults.size(); i-- > 0;) {
    std::vector<Fault> fewer = faults;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
    try_with(fewer);
  }
  return outcome;
}

std::string Report(const Options& options, const Outcome& outcome) {
  std::string text = fmt::format("seed {}: after {:.3f} s: {}\n", options.seed,
                                 static_cast<double>(outcome.broken_ns) * 1e-9, outcome.broken);
  for (const Fault& fault : outcome.faults) {
    text += fmt::format("  {}\n", Describe(fault));
  }
  return text;
}

}  // namespace geopipe::simulation
