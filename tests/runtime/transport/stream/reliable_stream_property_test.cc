// Thousands of seeded sequences of faults. A failing one is replayed alone with GEOPIPE_TEST_SEED.
#include <catch2/catch.hpp>
#include <cstdlib>

#include "tests/runtime/transport/stream/stream_world.h"
#include "tests/support/sanitized.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

constexpr uint64_t kSequences = kSanitized ? 1'000 : 10'000;

// Draws anything from a quiet network to a miserable one.
LoopbackFaults DrawFaults(uint64_t seed) {
  SplitMix64 random(seed ^ 0xFA0175);
  LoopbackFaults faults;
  faults.drop = random.Next() % 4 == 0 ? 0 : 0.4 * random.Uniform();
  faults.duplicate = random.Next() % 4 == 0 ? 0 : 0.3 * random.Uniform();
  faults.reorder = random.Next() % 4 == 0 ? 0 : random.Uniform();
  faults.corrupt = random.Next() % 4 == 0 ? 0 : 0.1 * random.Uniform();
  faults.disconnect = random.Next() % 4 == 0 ? 0 : 0.05 * random.Uniform();
  faults.latency_ns = 1 + static_cast<int64_t>(random.Uniform() * 30 * kMs);
  faults.reorder_ns = static_cast<int64_t>(random.Uniform() * 50 * kMs);
  return faults;
}

TEST_CASE("every message is delivered exactly once, in order, whatever the network does") {
  const bool replay = std::getenv("GEOPIPE_TEST_SEED") != nullptr;
  const uint64_t first = TestSeed();
  StreamWorld::Result sum;
  for (uint64_t seed = first; seed < first + (replay ? 1 : kSequences); ++seed) {
    StreamWorld world(seed, DrawFaults(seed), 5, 1200);
    const StreamWorld::Result result = world.Run(2 * kSecond, 20 * kSecond);
    if (!result.error.empty()) {
      FAIL(result.error << "; replay with GEOPIPE_TEST_SEED=" << seed);
    }
    sum.resent += result.resent;
    sum.duplicates += result.duplicates;
    sum.probes += result.probes;
    sum.corrupt += result.corrupt;
  }
  if (!replay) {
    // The faults did happen.
    CHECK(sum.resent > 1000);
    CHECK(sum.duplicates > 1000);
    CHECK(sum.probes > 1000);
    CHECK(sum.corrupt > 100);
  }
}

TEST_CASE("on a quiet network nothing is sent twice") {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    LoopbackFaults faults;
    faults.latency_ns = 30 * kMs;
    StreamWorld world(seed, faults, 20, 5000);
    const StreamWorld::Result result = world.Run(0, 60 * kSecond);
    INFO("seed " << seed);
    CHECK(result.error.empty());
    CHECK(result.resent == 0);
    CHECK(result.duplicates == 0);
  }
}

TEST_CASE("a disconnection costs only what was on its way") {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    LoopbackFaults faults;
    faults.disconnect = 0.01;
    faults.latency_ns = 10 * kMs;
    StreamWorld world(seed, faults, 20, 5000);
    const StreamWorld::Result result = world.Run(2 * kSecond, 60 * kSecond);
    INFO("seed " << seed);
    CHECK(result.error.empty());
    CHECK(result.duplicates * 5 <= result.sent);
  }
}

}  // namespace
}  // namespace geopipe
