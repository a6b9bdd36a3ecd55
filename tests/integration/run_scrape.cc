#include "tests/integration/run_scrape.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>

#include "runtime/base/clock.h"
#include "runtime/base/files.h"
#include "tests/integration/processes.h"
#include "tests/support/durations.h"
#include "tests/support/scrape.h"

namespace geopipe {
namespace {

constexpr const char* kCoordinator = "geopipe-coordinator";

std::string ArgumentAfter(const ProcessInfo& process, const std::string& flag) {
  for (size_t i = 0; i + 1 < process.arguments.size(); ++i) {
    if (process.arguments[i] == flag) {
      return process.arguments[i + 1];
    }
  }
  return "";
}

// File with the process's metrics address; empty for processes that are not ours.
std::filesystem::path AddressFile(const ProcessInfo& process) {
  if (process.Runs("geopipe-worker")) {
    return ArgumentAfter(process, "--metrics-address-file");
  }
  if (process.Runs("geopipe-agent") || process.Runs(kCoordinator)) {
    const std::filesystem::path config = ArgumentAfter(process, "--config");
    return config.parent_path() / config.stem() / "metrics.address";
  }
  return {};
}

// The run's processes that can be scraped already.
std::vector<Scraped> FindProcesses(Command& playground) {
  std::vector<Scraped> found;
  for (const ProcessInfo& info : Descendants(playground.process().pid())) {
    const std::filesystem::path file = AddressFile(info);
    const absl::StatusOr<std::string> address = file.empty() ? absl::NotFoundError("") : ReadFile(file, 100);
    if (address.ok()) {
      const std::string program = std::filesystem::path(info.arguments.front()).filename().string();
      found.push_back({program, address->substr(0, address->find('\n')), ""});
    }
  }
  return found;
}

double IterationsDone(const std::vector<Scraped>& processes) {
  const auto coordinator = std::ranges::find(processes, kCoordinator, &Scraped::program);
  REQUIRE(coordinator != processes.end());
  return SeriesValue(Scrape(coordinator->address), "geopipe_iterations_total").value_or(0);
}

}  // namespace

std::vector<Scraped> ScrapeInMidRun(Command& playground, size_t processes, double iterations) {
  const int64_t deadline_ns = Clock::Real().NowNs() + 60 * kSecond;
  std::vector<Scraped> found;
  double done = 0;
  while (found.size() < processes || done < iterations) {
    INFO(playground.out());
    INFO(playground.err());
    REQUIRE_FALSE(playground.process().Wait(50'000'000).has_value());
    REQUIRE(Clock::Real().NowNs() < deadline_ns);
    found = FindProcesses(playground);
    done = found.size() < processes ? 0 : IterationsDone(found);
  }
  for (Scraped& process : found) {
    process.text = Scrape(process.address);
  }
  return found;
}

}  // namespace geopipe
