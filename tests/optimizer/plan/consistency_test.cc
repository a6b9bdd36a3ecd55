// Plans that agree with each other: better links, more devices and fewer choices never make an iteration other than
// they should. consistency_bench (tests/bench) does the same with more and larger jobs.
#include "tests/optimizer/plan/consistency.h"

#include <catch2/catch.hpp>
#include <string>

#include "tests/optimizer/plan/random_jobs.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

constexpr int kPairs = 20;  // in each of four cases
constexpr int kJobs = 2;    // in each of three
constexpr int64_t kTolerancePpm = 3'000;
constexpr int64_t kMaxDevices = 32;

// The beginning of a line of cases that no other part draws.
Prng DrawsOf(uint64_t seed, int part, int index) {
  return Prng(seed * 1'000'003 + static_cast<uint64_t>(part) * 10'007 + static_cast<uint64_t>(index));
}

// A small job with everything open on two or more linked sites.
PlanRequest LinkedRequest(Prng& prng, int64_t max_devices) {
  while (true) {
    PlanRequest request = test::RandomOpenRequest(prng);
    const bool is_linked = !std::ranges::all_of(request.cluster.links, &LinkSpec::inside);
    if (is_linked && test::DevicesOf(request.cluster) <= max_devices) {
      request.baselines = false;
      request.cluster_bound = false;
      return request;
    }
  }
}

bool IsWithin(int64_t iteration_ns, int64_t bound_ns, int64_t tolerance_ppm) {
  return iteration_ns - bound_ns <= bound_ns / 1'000'000 * tolerance_ppm;
}

void CheckPairs(int part) {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  int planned = 0;
  for (int index = 0; index < kPairs; ++index) {
    Prng prng = DrawsOf(seed, part, index);
    const PlanRequest worse = LinkedRequest(prng, kMaxDevices - 8);  // it may get more
    PlanRequest better = worse;
    test::Improved improved = test::DrawImproved(prng, worse.cluster);
    better.cluster = std::move(improved.cluster);
    INFO("part " << part << ", pair " << index << ": " << improved.change);
    const absl::StatusOr<PlanResult> before = MakePlan(worse);
    if (!before.ok()) {
      continue;
    }
    const absl::StatusOr<PlanResult> after = MakePlan(better);
    INFO(after.status().ToString());
    REQUIRE(after.ok());
    ++planned;
    INFO(before->prediction.iteration_ns << " ns before, " << after->prediction.iteration_ns << " ns after");
    CHECK(IsWithin(after->prediction.iteration_ns, before->prediction.iteration_ns, kTolerancePpm));
  }
  CHECK(planned > kPairs / 2);
}

TEST_CASE("less latency, more bandwidth and more devices never make a plan slower by more than 0.3 %, first part") {
  CheckPairs(0);
}

TEST_CASE("less latency, more bandwidth and more devices never make a plan slower by more than 0.3 %, second part") {
  CheckPairs(1);
}

TEST_CASE("less latency, more bandwidth and more devices never make a plan slower by more than 0.3 %, third part") {
  CheckPairs(2);
}

TEST_CASE("less latency, more bandwidth and more devices never make a plan slower by more than 0.3 %, fourth part") {
  CheckPairs(3);
}

// True for kinds that run farther ahead than a limit of ΔN lets others.
bool RunsAheadByRule(ScheduleKind kind) { return kind == ScheduleKind::kGpipe || kind == ScheduleKind::kZbH2; }

void CheckPins(int part) {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  int planned = 0;
  for (int index = 0; planned < kJobs; ++index) {
    REQUIRE(index < 10 * kJobs);
    Prng prng = DrawsOf(seed, 10 + part, index);
    PlanRequest request = LinkedRequest(prng, kMaxDevices);
    request.job.search.schedule = ScheduleKind::kAuto;
    request.job.search.max_delta_n.reset();
    if (part == 2) {
      request.job.search.max_delta_n = static_cast<int32_t>(prng.Between(0, 8));
    }
    request.job.parallelism.zero_stage.reset();
    const absl::StatusOr<PlanResult> open = MakePlan(request);
    if (!open.ok()) {
      continue;
    }
    ++planned;
    const int64_t open_ns = open->prediction.iteration_ns;
    const JobSpec job = request.job;
    for (test::Pinned& pinned : test::OwnPins(job, open->plan)) {
      INFO("part " << part << ", job " << index << ", own " << pinned.choice);
      request.job = std::move(pinned.job);
      const absl::StatusOr<PlanResult> same = MakePlan(request);
      REQUIRE(same.ok());
      // A search through fewer choices may come a little farther where ΔN is limited.
      const int64_t tolerance_ppm = job.search.max_delta_n.has_value() ? kTolerancePpm : 0;
      CHECK(IsWithin(same->prediction.iteration_ns, open_ns, tolerance_ppm));
      CHECK(IsWithin(open_ns, same->prediction.iteration_ns, tolerance_ppm));
    }
    for (test::Pinned& pinned : test::OtherPins(job, request.cluster, open->plan)) {
      if (job.search.max_delta_n.has_value() && RunsAheadByRule(pinned.job.search.schedule)) {
        continue;
      }
      INFO("part " << part << ", job " << index << ", " << pinned.choice);
      request.job = std::move(pinned.job);
      const absl::StatusOr<PlanResult> other = MakePlan(request);
      CHECK((!other.ok() || IsWithin(open_ns, other->prediction.iteration_ns, kTolerancePpm)));
    }
  }
}

TEST_CASE(
    "a plan's own choices, pinned, change nothing, and no other choice is better by more than 0.3 %, first part") {
  CheckPins(0);
}

TEST_CASE(
    "a plan's own choices, pinned, change nothing, and no other choice is better by more than 0.3 %, second part") {
  CheckPins(1);
}

TEST_CASE(
    "a plan's own choices, pinned, change nothing, and no other choice is better by more than 0.3 %, third part") {
  CheckPins(2);
}

}  // namespace
}  // namespace geopipe
