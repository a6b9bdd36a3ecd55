#include "runtime/model/stage_profiler.h"

#include <catch2/catch.hpp>

#include "runtime/backend/cpu_backend.h"
#include "tests/runtime/model/pipeline_driver.h"

namespace geopipe {
namespace {

// Every look at the clock takes 1000 ns.
class TickingClock final : public Clock {
 public:
  int64_t NowNs() const override { return now_ns_ += 1000; }
  int64_t UnixNowNs() const override { return NowNs(); }
  void SleepUntilNs(int64_t /*monotonic_ns*/) override {}

 private:
  mutable int64_t now_ns_ = 0;
};

StageProfilerOptions Options() {
  StageProfilerOptions options;
  options.model = SmallOptions(true).model;
  options.micro_batch_size = 2;
  options.sequence_length = 8;
  return options;
}

TEST_CASE("a profile holds the median duration of every part") {
  Allocator allocator(1 << 24);
  const auto backend = *CpuBackend::Create(1, allocator);
  TickingClock clock;
  const auto profile = ProfileStage(Options(), allocator, *backend, clock);
  REQUIRE(profile.ok());
  const PartCosts one_tick{1000, 1000, 1000};
  CHECK(profile->embedding == one_tick);
  CHECK(profile->block == one_tick);
  CHECK(profile->head == one_tick);
  const double block_parameters = 2 * 24 + 2 * 24 * 24 + 2 * 8 * 24 + 3 * 24 * 40;
  CHECK(profile->adamw_ns_per_million_parameters == static_cast<int64_t>(1000 * 1e6 / block_parameters));
  CHECK(allocator.usage(MemoryCategory::kWeights).bytes == 0);
}

TEST_CASE("profiling stops when its time is spent") {
  Allocator allocator(1 << 24);
  const auto backend = *CpuBackend::Create(1, allocator);
  TickingClock clock;
  StageProfilerOptions options = Options();
  options.time_budget_ns = 3 * 100'000;
  REQUIRE(ProfileStage(options, allocator, *backend, clock).ok());
  // A warm-up and at least one repetition beyond the budget for each of three parts, five looks at the clock each.
  CHECK(clock.NowNs() < 3 * (100'000 + 3 * 6'000) + 10'000);
}

TEST_CASE("a part that does not fit is the allocator's error") {
  const auto profile = [](Allocator& allocator) {
    const auto backend = *CpuBackend::Create(1, allocator);
    TickingClock clock;
    return ProfileStage(Options(), allocator, *backend, clock).status();
  };
  Allocator ample(int64_t{1} << 30);
  REQUIRE(profile(ample).ok());
  Allocator enough(ample.total().peak_bytes);
  CHECK(profile(enough).ok());
  Allocator scarce(ample.total().peak_bytes - 1);
  CHECK(absl::IsResourceExhausted(profile(scarce)));
}

}  // namespace
}  // namespace geopipe
