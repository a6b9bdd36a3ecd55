#include "optimizer/plan/plan_space.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "optimizer/search/prng.h"
#include "tests/optimizer/plan/jobs.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

using test::Llama13bJob;
using test::ThreeRegions;

PlanSpace MakeSpace(const JobSpec& job, const ClusterSpec& cluster, const std::vector<int32_t>& fixed = {}) {
  return *PlanSpace::Create(job, cluster, nullptr, CommMode::kNonBlocking, fixed,
                            *PlaceStages(job, cluster, job.placement.sites), Recompute::kNone);
}

TEST_CASE("seeds hide the round trip: ceil(2 D / t)") {
  const JobSpec job = Llama13bJob();
  ClusterSpec cluster = ThreeRegions();
  cluster.links[0].latency_ns = 100 * test::kMillisecond;
  const PlanSpace space = MakeSpace(job, cluster);
  for (const Genome& seed : space.Seeds()) {
    const PipelineCosts costs = space.CostsOf(space.CandidateOf(seed));
    int64_t period_ns = 0;
    for (int32_t stage = 0; stage < 8; ++stage) {
      period_ns = std::max(period_ns, costs.forward_ns[stage] + costs.BackwardNs(stage));
    }
    const auto hides = [&](const BoundaryCost& boundary) {
      const int64_t round_trip_ns = 2 * (boundary.latency_ns + boundary.serialization_ns);
      int64_t delta_n = 0;
      while (delta_n * period_ns < round_trip_ns) {
        ++delta_n;
      }
      return static_cast<int32_t>(std::min<int64_t>(delta_n, job.search.max_delta_n));
    };
    CHECK(seed.delta_n == std::vector<int32_t>{hides(costs.boundaries[2]), hides(costs.boundaries[4])});
  }
  CHECK(space.Seeds().size() == 6);
}

TEST_CASE("the closed form of memory is the simulator's peak") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  Prng prng(seed);
  JobSpec job = Llama13bJob();
  job.training.tokens_per_iteration = 4096 * 4 * 6;
  const ClusterSpec cluster = ThreeRegions();
  const PlanSpace space = MakeSpace(job, cluster);
  for (int i = 0; i < 60; ++i) {
    const Candidate candidate{prng.Chance(1, 3) ? ScheduleKind::kGpipe : ScheduleKind::kGeoPipe,
                              prng.Chance(1, 2) ? CommMode::kBlocking : CommMode::kNonBlocking,
                              static_cast<int32_t>(prng.Below(3)),
                              static_cast<int32_t>(prng.Below(2)),
                              {static_cast<int32_t>(prng.Below(9)), static_cast<int32_t>(prng.Below(9))}};
    const SimulationResult result = space.Run(candidate);
    const Plan plan = space.PlanOf(candidate);
    for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
      CHECK(plan.stages[stage].peak_bytes == result.peak_bytes[stage]);
    }
    CHECK(result.fits == (space.Tightest(candidate).excess_bytes() <= 0));
    CHECK(result.iteration_ns >= space.LowerBoundNs(candidate.micro_batch, candidate.sequence));
  }
}

TEST_CASE("repair lowers ΔN just enough for memory") {
  const JobSpec job = Llama13bJob();
  const ClusterSpec cluster = ThreeRegions(60 * test::kGiB);
  const PlanSpace space = MakeSpace(job, cluster);
  Genome genome{0, 2, 1, {8, 8}};
  REQUIRE(space.Tightest(space.CandidateOf(genome)).excess_bytes() > 0);
  Genome zero = genome;
  zero.delta_n = {0, 0};
  REQUIRE(space.Tightest(space.CandidateOf(zero)).excess_bytes() <= 0);
  space.Repair(genome);
  CHECK(space.Tightest(space.CandidateOf(genome)).excess_bytes() <= 0);
  for (int32_t& delta_n : genome.delta_n) {
    ++delta_n;
    CHECK(space.Tightest(space.CandidateOf(genome)).excess_bytes() > 0);
    --delta_n;
  }
}

TEST_CASE("b and s that do not divide the tokens are out of the race") {
  JobSpec job = Llama13bJob();
  job.training.tokens_per_iteration = 3 * 2 * 2048;
  const ClusterSpec cluster = ThreeRegions();
  const PlanSpace space = MakeSpace(job, cluster);
  CHECK(space.Divides(0, 0));
  CHECK(space.Divides(1, 0));
  CHECK_FALSE(space.Divides(2, 0));  // 3 * 2 * 2048 / (4 * 2048)
  CHECK(space.Divides(0, 1));
  CHECK_FALSE(space.Divides(1, 1));
  CHECK_FALSE(space.Evaluate({0, 2, 0, {0, 0}}).feasible);
  CHECK(space.size() == 3 * (81 + 1));
}

TEST_CASE("a fixed ΔN is taken as given and leaves the genome") {
  const JobSpec job = Llama13bJob();
  const ClusterSpec cluster = ThreeRegions();
  const PlanSpace one = MakeSpace(job, cluster, {12});
  CHECK(one.genome_space().crossings == 0);
  CHECK(one.CandidateOf({0, 0, 0, {}}).delta_n == std::vector<int32_t>{12, 12});
  CHECK(MakeSpace(job, cluster, {3, 1}).CandidateOf({0, 0, 0, {}}).delta_n == std::vector<int32_t>{3, 1});
  const auto error = [&](const JobSpec& changed, const std::vector<int32_t>& fixed) {
    return std::string(PlanSpace::Create(changed, cluster, nullptr, CommMode::kNonBlocking, fixed,
                                         *PlaceStages(changed, cluster, changed.placement.sites), Recompute::kNone)
                           .status()
                           .message());
  };
  CHECK(error(job, {1, 2, 3}) ==
        "delta_n has 3 numbers, but the pipeline crosses sites 2 times; give one number for all crossings or one for "
        "each");
  CHECK(error(job, {-1}) == "delta_n is -1; it must be from 0 to 1048576");
  JobSpec plain = job;
  plain.search.schedule = "1f1b";
  CHECK(error(plain, {1}) == "delta_n is given, but schedule 1f1b has none; use schedule geopipe or auto");
}

}  // namespace
}  // namespace geopipe
