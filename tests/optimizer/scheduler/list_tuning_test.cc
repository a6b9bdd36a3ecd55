#include "optimizer/scheduler/list_tuning.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "optimizer/schedule/validate.h"
#include "optimizer/scheduler/auto_schedule.h"
#include "optimizer/simulator/lower_bound.h"
#include "tests/support/auto_cases.h"
#include "tests/support/seed.h"

namespace geopipe {

TEST_CASE("every tuned list schedule is valid and within memory", "[scheduler]") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  Prng prng(seed);
  for (uint64_t i = 0; i < 20; ++i) {
    const SitedCase sited = MakeSitedCase(seed + 4'000 + i);
    INFO("case " << i);
    const Instance instance = MakeInstance(sited.costs);
    ListScheduler scheduler(instance);
    ListOptions options{LowerBoundNs(sited.costs), Lookahead::kWorstLateness};
    for (int change = 0; change < 10; ++change) {
      options = Retuned(instance, std::move(options), prng);
      REQUIRE(scheduler.Build(options));
      CHECK(Fits(instance, scheduler.sequences()));
      CHECK(Validate(ToSchedule(instance, sited.costs.shape, scheduler.sequences())).ok());
    }
  }
}

TEST_CASE("in time everything that may change does, and a seed decides how", "[scheduler]") {
  const Instance instance = MakeInstance(MakeSitedCase(7).costs);
  const ListOptions plain{1'000'000, Lookahead::kWorstLateness};
  Prng prng(1);
  Prng same(1);
  bool target = false;
  bool lookahead = false;
  std::vector<bool> urgency(instance.duration_ns.size(), false);
  for (int change = 0; change < 1'000; ++change) {
    const ListOptions tuned = Retuned(instance, plain, prng);
    CHECK(Retuned(instance, plain, same).earlier_ns == tuned.earlier_ns);
    target = target || tuned.target_ns != plain.target_ns;
    lookahead = lookahead || tuned.lookahead != plain.lookahead;
    REQUIRE(tuned.earlier_ns.size() == urgency.size());
    for (size_t work = 0; work < urgency.size(); ++work) {
      urgency[work] = urgency[work] || tuned.earlier_ns[work] != 0;
    }
  }
  CHECK(target);
  CHECK(lookahead);
  for (int32_t stage = 0; stage < instance.stages; ++stage) {
    CHECK(urgency[WorkOf(stage, Phase::kForward)]);
    CHECK(urgency[WorkOf(stage, Phase::kInput)]);
    CHECK_FALSE(urgency[WorkOf(stage, Phase::kWeight)]);
  }
}

}  // namespace geopipe
