// Genetic and exhaustive search agree on the whole plan, not only on its time.
#include <algorithm>
#include <catch2/catch.hpp>

#include "optimizer/plan/planner.h"
#include "optimizer/search/prng.h"
#include "tests/optimizer/plan/jobs.h"
#include "tests/optimizer/plan/random_jobs.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

TEST_CASE("the paper-shaped job: genetic search finds the exhaustive plan") {
  PlanRequest request = test::PaperRequest();
  const PlanResult genetic = *MakePlan(request);
  request.method = SearchMethod::kExhaustive;
  const PlanResult exhaustive = *MakePlan(request);
  CHECK(genetic.plan == exhaustive.plan);
  CHECK(genetic.prediction == exhaustive.prediction);
  CHECK(exhaustive.search.method == SearchMethod::kExhaustive);
  CHECK(genetic.search.evaluations * 10 <= exhaustive.search.evaluations);
}

TEST_CASE("the paper-shaped job with layers to split: branch and bound proves the same plan") {
  PlanRequest request = test::PaperRequest();
  request.job.parallelism.layers = LayerSplit::kAuto;
  const PlanResult genetic = *MakePlan(request);
  CHECK(genetic.search.space_size > 1'000'000'000);
  request.method = SearchMethod::kExhaustive;
  const PlanResult exhaustive = *MakePlan(request);
  CHECK(genetic.plan == exhaustive.plan);
}

TEST_CASE("random jobs: the exhaustive plan with a tenth of the evaluations") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  Prng prng(seed);
  int compared = 0;
  for (int i = 0; compared < 20 && i < 60; ++i) {
    PlanRequest request = test::RandomSearchableRequest(prng);
    request.method = SearchMethod::kExhaustive;
    const absl::StatusOr<PlanResult> exhaustive = MakePlan(request);
    if (!exhaustive.ok()) {
      REQUIRE(exhaustive.status().code() == absl::StatusCode::kFailedPrecondition);
      continue;
    }
    ++compared;
    INFO("job " << i << " of space " << exhaustive->search.space_size);
    REQUIRE(exhaustive->search.space_size <= 50'000);
    request.method = SearchMethod::kGenetic;
    request.job.search.max_evaluations = std::max<int64_t>(1, exhaustive->search.space_size / 10);
    const PlanResult genetic = *MakePlan(request);
    CHECK(genetic.plan == exhaustive->plan);
    CHECK(genetic.search.evaluations <= request.job.search.max_evaluations);
  }
  CHECK(compared == 20);
}

}  // namespace
}  // namespace geopipe
