#include "optimizer/plan/evaluation/schedule_bound.h"

#include <catch2/catch.hpp>

#include "optimizer/schedule/schedule_table.h"
#include "optimizer/search/prng.h"
#include "optimizer/simulator/simulator.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

PipelineCosts EqualStages(int32_t stages, int32_t micro_batches, int64_t latency_ns) {
  PipelineCosts costs;
  costs.shape = PipelineShape::Linear(stages, micro_batches);
  costs.forward_ns.assign(stages, 1'000'000);
  costs.input_grad_ns.assign(stages, 2'000'000);
  costs.boundaries.resize(stages - 1);
  costs.boundaries[stages / 2 - 1].crosses = true;
  costs.boundaries[stages / 2 - 1].latency_ns = latency_ns;
  return costs;
}

int64_t SimulatedNs(ScheduleKind kind, const PipelineCosts& costs, const std::vector<int32_t>& delta_n) {
  return Simulate(*MakeSchedule(kind, costs.shape, delta_n), costs)->iteration_ns;
}

TEST_CASE("one crossing between equal stages: the bound's slope is the period 2(t + D) / (2 + ΔN)") {
  constexpr int64_t kT = 3'000'000;
  for (const int32_t delta_n : {0, 1, 2, 3, 5, 20}) {
    const int64_t latency_ns = 7'000'000;
    std::vector<int32_t> boundary_delta_n(7, 0);
    boundary_delta_n[3] = delta_n;
    const int32_t round = 2 + delta_n;
    const int64_t short_ns =
        ScheduleBoundNs(ScheduleKind::kGeoPipe, EqualStages(8, 40 * round, latency_ns), boundary_delta_n);
    const int64_t long_ns =
        ScheduleBoundNs(ScheduleKind::kGeoPipe, EqualStages(8, 80 * round, latency_ns), boundary_delta_n);
    CHECK(long_ns - short_ns == 40 * std::max<int64_t>(round * kT, 2 * (kT + latency_ns)));
  }
}

TEST_CASE("no schedule is faster than its bound, and most are close to it") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  Prng prng(seed);
  int close = 0;
  int nonblocking = 0;
  for (int i = 0; i < 400; ++i) {
    const auto stages = static_cast<int32_t>(prng.Between(1, 10));
    PipelineCosts costs;
    costs.shape = PipelineShape::Linear(stages, static_cast<int32_t>(prng.Between(1, 60)));
    costs.comm = static_cast<CommMode>(prng.Below(3));
    costs.epilogue_ns = prng.Between(0, 1000);
    const int64_t shared_latency_ns = prng.Between(0, 2000);
    const int64_t shared_serialization_ns = prng.Between(0, 400);
    std::vector<int32_t> delta_n;
    for (int32_t stage = 0; stage < stages; ++stage) {
      costs.forward_ns.push_back(prng.Between(0, 300));
      costs.input_grad_ns.push_back(prng.Between(0, 400));
      costs.weight_grad_ns.push_back(prng.Between(0, 300));
    }
    for (int32_t boundary = 0; boundary + 1 < stages; ++boundary) {
      BoundaryCost cost;
      delta_n.push_back(0);
      if (prng.Chance(1, 3)) {
        cost.crosses = true;
        cost.latency_ns = prng.Between(0, 2000);
        cost.serialization_ns = prng.Between(0, 400);
        if (prng.Chance(1, 2)) {
          cost.link = "shared";
          cost.latency_ns = shared_latency_ns;
          cost.serialization_ns = shared_serialization_ns;
        }
        cost.acknowledgement_ns = prng.Chance(1, 2) ? cost.latency_ns : 0;
        delta_n.back() = static_cast<int32_t>(prng.Below(9));
      }
      cost.overhead_ns = prng.Between(0, 20);
      costs.boundaries.push_back(cost);
    }
    REQUIRE(ValidateCosts(costs).ok());
    const ScheduleKind kind = prng.Chance(1, 4) ? ScheduleKind::kGpipe : ScheduleKind::kGeoPipe;
    const int64_t bound_ns = ScheduleBoundNs(kind, costs, delta_n);
    const int64_t simulated_ns = SimulatedNs(kind, costs, delta_n);
    CHECK(bound_ns <= simulated_ns);
    CHECK(UnsplitBoundNs(costs) <= bound_ns);
    // The other modes wait for what the bound knows nothing of.
    nonblocking += costs.comm == CommMode::kNonBlocking ? 1 : 0;
    close += costs.comm == CommMode::kNonBlocking && 100 * bound_ns >= 90 * simulated_ns ? 1 : 0;
  }
  CHECK(2 * close > nonblocking);
}

}  // namespace
}  // namespace geopipe
