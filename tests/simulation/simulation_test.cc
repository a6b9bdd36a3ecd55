#include "tests/simulation/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <string>
#include <thread>

#include "runtime/base/log.h"
#include "tests/simulation/seeds.h"
#include "tests/simulation/shrink.h"
#include "tests/support/sanitized.h"

namespace geopipe::simulation {
namespace {

constexpr uint64_t kSeeds = GEOPIPE_SIMULATED_SEEDS;

const bool quiet = [] {
  InitLogging({.program = "test_simulation", .quiet = true});
  return true;
}();

TEST_CASE("no rule is broken, whatever crashes, stops, is cut off or is full") {
  SeedsOptions options;
  options.last = kSeeds;
  options.jobs = static_cast<int32_t>(std::max(1U, std::thread::hardware_concurrency()));
  options.stop_at_broken = true;
  const Tally tally = SimulateSeeds(options);
  if (tally.first_broken.has_value()) {
    Options broken = options.each;
    broken.seed = tally.first_broken->first;
    FAIL(Report(broken, Shrink(broken, Simulate(broken))));
  }
  // The rules were applied to something.
  CHECK(tally.sum.iterations > 500 * static_cast<int64_t>(kSeeds));
  CHECK(tally.sum.completed > static_cast<int64_t>(kSeeds) / 2);
  CHECK(tally.sum.epochs > static_cast<int64_t>(kSeeds));
}

TEST_CASE("seeds that once broke a rule hold") {
  constexpr int kKinds = static_cast<int>(FaultKind::kMountAway);  // that there were
  if (kSanitized) {
    return;  // the seeds above are as good for a sanitizer
  }
  // A resume ends the pause's patience with silence; a site is left though nobody was told that the job was taken;
  // a job is to end with a checkpoint after all its workers, and the iterations since its last one, were lost; an
  // earlier checkpoint hides that the last state was not written; evaluations between two checkpoints, of which the
  // newer cannot be read; a worker that was only out of reach and is stopped when it is back; an epoch that begins
  // before reports that a returned agent repeats; a device is given to another worker while the one before, which is
  // out of reach, has not been alone for its grace; twice a worker that is stuck while its job is RECOVERING; a parked
  // worker that dies before the next epoch; a job that is applied again while workers of the one before are there;
  // files of a node that cannot be opened for long, four times; a pause of a job that has just failed; a pause of one
  // that waits for a full disk to take its last state; nodes promised, twice, to a job that waits for a worker that no
  // agent knows; a worker that no agent knows and that trains on with one out of reach; last reports that go with a
  // worker when all iterations are done.
  for (const uint64_t seed :
       {uint64_t{1001435}, uint64_t{1006338}, uint64_t{492204055}, uint64_t{2595},    uint64_t{3591},    uint64_t{871},
        uint64_t{2042},    uint64_t{1003889}, uint64_t{1004269},   uint64_t{1006037}, uint64_t{201},     uint64_t{2759},
        uint64_t{1000478}, uint64_t{1002979}, uint64_t{1007767},   uint64_t{1009916}, uint64_t{1004070}, uint64_t{1931},
        uint64_t{2617},    uint64_t{1009594}, uint64_t{1008311},   uint64_t{1010151}}) {
    INFO("seed " << seed);
    CHECK(Simulate({.seed = seed, .kinds = kKinds}).broken == "");
  }
  // A worker that is stuck before it has connected; a machine that is replaced while the coordinator crashes.
  for (const uint64_t seed : {uint64_t{1000982}, uint64_t{1006248}}) {
    INFO("seed " << seed);
    CHECK(Simulate({.seed = seed, .kinds = kKinds + 2}).broken == "");
  }
}

TEST_CASE("a seed is the same run each time") {
  const Outcome once = Simulate({.seed = 7});
  const Outcome again = Simulate({.seed = 7});
  CHECK(once.events == again.events);
  CHECK(once.iterations == again.iterations);
  CHECK(Simulate({.seed = 8}).events != once.events);
}

TEST_CASE("seeds that run at the same time are the same runs") {
  SeedsOptions options;
  options.last = 6;
  const Tally one_by_one = SimulateSeeds(options);
  options.jobs = 3;
  const Tally together = SimulateSeeds(options);
  CHECK(together.seeds == 6);
  CHECK(together.sum.events == one_by_one.sum.events);
  CHECK(together.sum.iterations == one_by_one.sum.iterations);
}

TEST_CASE("without faults both jobs are done, each in one epoch") {
  const Outcome outcome = Simulate({.seed = 4, .faults = 0});
  CHECK(outcome.broken == "");
  CHECK(outcome.failed == 0);
  CHECK(outcome.completed >= 2);
}

}  // namespace
}  // namespace geopipe::simulation
