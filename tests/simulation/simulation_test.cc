#include "tests/simulation/simulation.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>

namespace geopipe::simulation {
namespace {

constexpr uint64_t kSeeds = 500;

TEST_CASE("no rule is broken, whatever crashes, stops, is cut off or is full") {
  int64_t iterations = 0;
  int64_t completed = 0;
  int64_t epochs = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Options options{.seed = seed};
    const Outcome outcome = Simulate(options);
    if (!outcome.broken.empty()) {
      FAIL(Report(options, Shrink(options, outcome)));
    }
    iterations += outcome.iterations;
    completed += outcome.completed;
    epochs += outcome.epochs;
  }
  // The rules were held against something.
  CHECK(iterations > 500 * static_cast<int64_t>(kSeeds));
  CHECK(completed > static_cast<int64_t>(kSeeds) / 2);
  CHECK(epochs > static_cast<int64_t>(kSeeds));
}

TEST_CASE("a seed is the same run each time") {
  const Outcome once = Simulate({.seed = 7});
  const Outcome again = Simulate({.seed = 7});
  CHECK(once.events == again.events);
  CHECK(once.iterations == again.iterations);
  CHECK(Simulate({.seed = 8}).events != once.events);
}

TEST_CASE("without faults both jobs are done, each in one epoch") {
  const Outcome outcome = Simulate({.seed = 3, .faults = 0});
  CHECK(outcome.broken == "");
  CHECK(outcome.failed == 0);
  CHECK(outcome.completed >= 2);
}

}  // namespace
}  // namespace geopipe::simulation
