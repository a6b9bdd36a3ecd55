#include "optimizer/plan/space/plan_space.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <span>

#include "optimizer/plan/space/fit_candidate.h"
#include "optimizer/plan/space/placement.h"
#include "optimizer/search/prng.h"
#include "tests/optimizer/plan/jobs.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

using test::Llama13bJob;
using test::ThreeRegions;

JobSpec PlainJob() {
  JobSpec job = Llama13bJob();
  job.parallelism.recompute = Recompute::kNone;
  return job;
}

// `layers` shared out over `stages` at random, at least one each.
std::vector<int32_t> RandomLayers(Prng& prng, size_t stages, int32_t layers) {
  std::vector<int32_t> split(stages, 1);
  for (int32_t i = 0; i < layers - static_cast<int32_t>(stages); ++i) {
    ++split[prng.Below(prng.Chance(1, 4) ? 1 : stages)];
  }
  return split;
}

PlanSpace MakeSpace(const JobSpec& job, const ClusterSpec& cluster, const std::vector<int32_t>& fixed = {}) {
  return *PlanSpace::Create(job, cluster, CostSource(job, cluster, nullptr), CommMode::kNonBlocking, fixed,
                            *PlaceStages(job, cluster, job.placement.sites));
}

TEST_CASE("seeds hide the round trip: ceil(2 D / t)") {
  const JobSpec job = PlainJob();
  ClusterSpec cluster = ThreeRegions();
  cluster.links[0].latency_ns = 100 * test::kMillisecond;
  const PlanSpace space = MakeSpace(job, cluster);
  const std::vector<Genome> seeds = space.Seeds();
  for (int32_t b = 0; b < 3; ++b) {
    for (int32_t s = 0; s < 2; ++s) {
      Genome genome{0, 0, b, s, 0, 0};
      const PipelineCosts costs = space.model().CostsOf(space.CandidateOf(genome));
      int64_t period_ns = 0;
      for (int32_t stage = 0; stage < 8; ++stage) {
        period_ns = std::max(period_ns, costs.forward_ns[stage] + costs.BackwardNs(stage));
      }
      const auto hides = [&](const BoundaryCost& boundary) {
        const int64_t round_trip_ns = 2 * (boundary.latency_ns + boundary.serialization_ns);
        return static_cast<int32_t>(
            std::min<int64_t>((round_trip_ns + period_ns - 1) / period_ns, space.model().max_delta_n()));
      };
      genome[4] = hides(costs.boundaries[2]);
      genome[5] = hides(costs.boundaries[4]);
      space.Repair(genome);
      CHECK(std::find(seeds.begin(), seeds.end(), genome) != seeds.end());
      CHECK(std::find(seeds.begin(), seeds.end(), Genome{0, 0, b, s, 0, 0}) != seeds.end());
    }
  }
}

TEST_CASE("the closed form of memory is the simulator's peak, no bound exceeds the simulated time") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  Prng prng(seed);
  JobSpec job = Llama13bJob();
  job.parallelism.layers = LayerSplit::kAuto;
  job.training.tokens_per_iteration = 4096 * 4 * prng.Between(1, 12);
  ClusterSpec cluster = ThreeRegions();
  cluster.links[0].latency_ns = prng.Between(1, 200) * test::kMillisecond;
  cluster.links[1].bandwidth_bytes_per_s = 1e9 * static_cast<double>(prng.Between(1, 50));
  cluster.sites[2].device.peak_flops *= 0.6;
  const PlanSpace space = MakeSpace(job, cluster);
  for (int i = 0; i < 120; ++i) {
    const Candidate candidate{.schedule = prng.Chance(1, 3) ? ScheduleKind::kGpipe : ScheduleKind::kGeoPipe,
                              .comm = static_cast<CommMode>(prng.Below(3)),
                              .mode = {static_cast<Recompute>(prng.Below(3)), 0},
                              .micro_batch = static_cast<int32_t>(prng.Below(3)),
                              .sequence = static_cast<int32_t>(prng.Below(2)),
                              .layers = RandomLayers(prng, 8, 40),
                              .delta_n = {static_cast<int32_t>(prng.Below(9)), static_cast<int32_t>(prng.Below(9))}};
    const SimulationResult result = space.model().Run(candidate);
    const Plan plan = space.model().PlanOf(candidate);
    for (size_t rank = 0; rank < plan.pipeline_ranks.size(); ++rank) {
      CHECK(plan.pipeline_ranks[rank].peak_bytes == result.peak_bytes[rank]);
    }
    CHECK(result.fits == (space.model().Tightest(candidate).excess_bytes() <= 0));
    CHECK(result.iteration_ns >= space.model().BoundNs(candidate));
    const Genome niche{0, static_cast<int32_t>(candidate.mode.recompute), candidate.micro_batch, candidate.sequence};
    CHECK(space.model().BoundNs(candidate) >= space.LowerBoundNs(niche));
    CHECK(space.LowerBoundNs(niche) >= space.LowerBoundNs());
    // Costs composed from parts equal the cost model's of the whole plan. (The space is one of nonblocking plans, where
    // nothing waits for an acknowledgement.)
    const PipelineCosts composed = space.model().CostsOf(candidate);
    const PipelineCosts whole =
        *CostsOfPlan(space.model().job(), cluster, CostSource(space.model().job(), cluster, nullptr), plan);
    CHECK(composed.memory == whole.memory);
    CHECK((candidate.comm != CommMode::kNonBlocking || composed == whole));
  }
}

TEST_CASE("the bound of a beginning holds for all that begin so") {
  Prng prng(TestSeed());
  JobSpec job = Llama13bJob();
  job.parallelism.layers = LayerSplit::kAuto;
  job.search.schedule = ScheduleKind::kGeoPipe;
  ClusterSpec cluster = ThreeRegions();
  cluster.sites[1].device.peak_flops *= 0.4;
  const PlanSpace space = MakeSpace(job, cluster);
  for (int i = 0; i < 60; ++i) {
    Genome genome{0, static_cast<int32_t>(prng.Below(3)), static_cast<int32_t>(prng.Below(3)),
                  static_cast<int32_t>(prng.Below(2))};
    for (const int32_t layers : RandomLayers(prng, 8, 40)) {
      genome.push_back(layers);
    }
    genome.push_back(static_cast<int32_t>(prng.Below(9)));
    genome.push_back(static_cast<int32_t>(prng.Below(9)));
    REQUIRE(space.genome_space().Contains(genome));
    int64_t before_ns = 0;
    for (size_t length = PlanSpace::kChoices; length <= genome.size(); ++length) {
      const int64_t bound_ns = space.LowerBoundNs(std::span(genome).first(length));
      CHECK(bound_ns >= before_ns);
      before_ns = bound_ns;
    }
    CHECK(space.model().Run(space.CandidateOf(genome)).iteration_ns >= before_ns);
  }
}

TEST_CASE("layers are balanced: slower devices, the head and small memories have fewer") {
  JobSpec job = PlainJob();
  job.parallelism.layers = LayerSplit::kAuto;
  ClusterSpec cluster = ThreeRegions();
  const auto balanced = [&] {
    const PlanSpace space = MakeSpace(job, cluster);
    return BalancedLayers(space.model(), space.CandidateOf(space.Seeds().front()));
  };
  CHECK(balanced() == std::vector<int32_t>(8, 5));
  for (double* figure : {&cluster.sites[1].device.peak_flops, &cluster.sites[1].device.memory_bandwidth_bytes_per_s,
                         &cluster.sites[1].device.intra_node_bandwidth_bytes_per_s}) {
    *figure /= 2;
  }
  CHECK(balanced() == std::vector<int32_t>{5, 6, 6, 3, 3, 6, 6, 5});
  const std::vector<int32_t> fast = balanced();
  cluster.sites[0].device.memory_bytes = 5 * test::kGiB;
  const std::vector<int32_t> tight = balanced();
  CHECK(tight[0] < fast[0]);
  job.parallelism.layers = LayerSplit::kEven;
  CHECK(balanced() == std::vector<int32_t>(8, 5));
}

TEST_CASE("repair moves layers and recomputes more where less ΔN is not enough") {
  JobSpec job = Llama13bJob();
  job.parallelism.layers = LayerSplit::kAuto;
  ClusterSpec cluster = ThreeRegions();
  cluster.sites[0].device.memory_bytes = 7 * test::kGiB;
  const PlanSpace space = MakeSpace(job, cluster);
  Genome genome{0, 0, 0, 0, 5, 5, 5, 5, 5, 5, 5, 5, 8, 8};
  REQUIRE(space.model().Tightest(space.CandidateOf(genome)).excess_bytes() > 0);
  space.Repair(genome);
  const Candidate moved = space.CandidateOf(genome);
  CHECK(space.model().Tightest(moved).excess_bytes() <= 0);
  CHECK(moved.mode.recompute == Recompute::kNone);
  for (SiteSpec& site : cluster.sites) {
    site.device.memory_bytes = 9 * test::kGiB / 2;
  }
  const PlanSpace small = MakeSpace(job, cluster);
  genome = {0, 0, 0, 0, 5, 5, 5, 5, 5, 5, 5, 5, 8, 8};
  small.Repair(genome);
  const Candidate frugal = small.CandidateOf(genome);
  CHECK(small.model().Tightest(frugal).excess_bytes() <= 0);
  CHECK(frugal.mode.recompute != Recompute::kNone);
}

TEST_CASE("repair lowers ΔN just enough for memory") {
  const JobSpec job = PlainJob();
  const ClusterSpec cluster = ThreeRegions(40 * test::kGiB);
  const PlanSpace space = MakeSpace(job, cluster);
  Genome genome{0, 0, 2, 1, 8, 8};
  REQUIRE(space.model().Tightest(space.CandidateOf(genome)).excess_bytes() > 0);
  REQUIRE(space.model().Tightest(space.CandidateOf({0, 0, 2, 1, 0, 0})).excess_bytes() <= 0);
  space.Repair(genome);
  CHECK(space.model().Tightest(space.CandidateOf(genome)).excess_bytes() <= 0);
  for (const size_t gene : {4, 5}) {
    ++genome[gene];
    CHECK(space.model().Tightest(space.CandidateOf(genome)).excess_bytes() > 0);
    --genome[gene];
  }
}

TEST_CASE("the bound of one ZeRO stage stands for those of all") {
  const uint64_t seed = TestSeed(1);
  Prng prng(seed);
  JobSpec job = PlainJob();
  job.parallelism.tensor = 4;
  job.parallelism.data = 2;
  for (int i = 0; i < 20; ++i) {
    INFO("GEOPIPE_TEST_SEED=" << seed << ", case " << i);
    ClusterSpec cluster = ThreeRegions();
    for (SiteSpec& site : cluster.sites) {
      site.network = {.bandwidth_bytes_per_s = 1e8 * static_cast<double>(prng.Between(1, 1000)), .latency_ns = 5'000};
      site.device.intra_node_bandwidth_bytes_per_s = 1e9 * static_cast<double>(prng.Between(1, 200));
    }
    job.parallelism.layers = prng.Chance(1, 2) ? LayerSplit::kAuto : LayerSplit::kEven;
    for (const int32_t held : {1, 2, 3}) {
      job.parallelism.zero_stage = held;
      const int64_t bound_ns = MakeSpace(job, cluster).LowerBoundOfZeroStagesNs();
      for (const int32_t other : {0, 1, 2, 3}) {
        if (other >= held || held == 1) {  // what holds more does not fit where this stands for the others
          job.parallelism.zero_stage = other;
          CHECK(bound_ns <= MakeSpace(job, cluster).LowerBoundNs());
        }
      }
    }
    job.parallelism.zero_stage.reset();
    const PlanSpace all = MakeSpace(job, cluster);
    CHECK(all.model().modes().size() == 4);
    job.parallelism.zero_stage = 1;
    CHECK(all.size() == 4 * MakeSpace(job, cluster).size());
  }
}

TEST_CASE("b and s that do not divide the tokens are out of the race") {
  JobSpec job = PlainJob();
  job.training.tokens_per_iteration = 3 * 2 * 2048;
  const ClusterSpec cluster = ThreeRegions();
  const PlanSpace space = MakeSpace(job, cluster);
  CHECK(space.model().Divides(0, 0));
  CHECK(space.model().Divides(1, 0));
  CHECK_FALSE(space.model().Divides(2, 0));  // 3 * 2 * 2048 / (4 * 2048)
  CHECK(space.model().Divides(0, 1));
  CHECK_FALSE(space.model().Divides(1, 1));
  CHECK_FALSE(space.Evaluate({0, 0, 2, 0, 0, 0}).feasible);
  CHECK(space.size() == 3 * (81 + 1));
}

TEST_CASE("a fixed ΔN is taken as given and leaves the genome") {
  const JobSpec job = PlainJob();
  const ClusterSpec cluster = ThreeRegions();
  const PlanSpace one = MakeSpace(job, cluster, {12});
  CHECK_FALSE(one.searches_delta_n());
  CHECK(one.CandidateOf({0, 0, 0, 0}).delta_n == std::vector<int32_t>{12, 12});
  CHECK(MakeSpace(job, cluster, {3, 1}).CandidateOf({0, 0, 0, 0}).delta_n == std::vector<int32_t>{3, 1});
  const auto error = [&](const JobSpec& changed, const std::vector<int32_t>& fixed) {
    return std::string(PlanSpace::Create(changed, cluster, CostSource(changed, cluster, nullptr),
                                         CommMode::kNonBlocking, fixed,
                                         *PlaceStages(changed, cluster, changed.placement.sites))
                           .status()
                           .message());
  };
  CHECK(error(job, {1, 2, 3}) ==
        "delta_n has 3 numbers, but the pipeline crosses sites 2 times; give one number for all crossings or one for "
        "each");
  CHECK(error(job, {-1}) == "delta_n is -1; it must be from 0 to 1048576");
  JobSpec plain = job;
  plain.search.schedule = ScheduleKind::kOneFOneB;
  CHECK(error(plain, {1}) == "delta_n is given, but schedule 1f1b has none; use one of geopipe, geopipe-zb, auto");
}

}  // namespace
}  // namespace geopipe
