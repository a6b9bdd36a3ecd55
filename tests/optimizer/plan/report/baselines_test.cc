#include "optimizer/plan/report/baselines.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "optimizer/plan/planner.h"
#include "optimizer/plan/space/fit_candidate.h"
#include "optimizer/plan/space/placement.h"
#include "optimizer/search/prng.h"
#include "tests/optimizer/plan/jobs.h"
#include "tests/optimizer/plan/random_jobs.h"

namespace geopipe {
namespace {

Baseline BaselineOf(const PlanResult& result, std::string_view schedule, std::string_view comm,
                    std::string_view scope) {
  for (const Baseline& baseline : result.baselines) {
    if (ScheduleKindName(baseline.schedule) == schedule && CommModeName(baseline.comm) == comm &&
        BaselineScopeName(baseline.scope) == scope) {
      return baseline;
    }
  }
  FAIL("no such baseline");
  return {};
}

PlanSpace SpaceOf(const PlanRequest& request) {
  return *PlanSpace::Create(request.job, request.cluster, CostSource(request.job, request.cluster, nullptr),
                            request.comm, request.fixed_delta_n,
                            *PlaceStages(request.job, request.cluster, request.job.placement.sites));
}

TEST_CASE("geopipe's best ΔN does not depend on the ΔN that the plan was told to take") {
  Prng prng(3);
  int64_t compared = 0;
  int64_t slower = 0;
  while (compared < 12) {
    PlanRequest request = test::RandomRequest(prng);
    const absl::StatusOr<PlanResult> free = MakePlan(request);
    request.fixed_delta_n = {0};
    const absl::StatusOr<PlanResult> fixed = MakePlan(request);
    if (!free.ok() || !fixed.ok()) {
      continue;
    }
    ++compared;
    const Baseline best = BaselineOf(*fixed, "geopipe", "nonblocking", "best");
    CHECK(best.iteration_ns >= free->prediction.iteration_ns);
    slower += best.iteration_ns > free->prediction.iteration_ns ? 1 : 0;
  }
  CHECK(slower == 0);
}

TEST_CASE("what bounds any ΔN is no bound of the fixed one") {
  PlanRequest request = test::PaperRequest();
  request.job.parallelism.recompute = Recompute::kNone;
  request.fixed_delta_n = {0};
  request.cluster.links[1].latency_ns = 60 * test::kMillisecond;
  const PlanSpace space = SpaceOf(request);
  Candidate candidate = space.CandidateOf({0, 0, 0, 0});
  candidate.delta_n = {8, 8};
  REQUIRE(space.model().Tightest(candidate).excess_bytes() <= 0);
  const int64_t iteration_ns = space.model().Run(candidate).iteration_ns;
  CHECK(space.LowerBoundNs(Genome{0, 0, 0, 0}) > iteration_ns);
  CHECK(space.model().PointOf(candidate).least_ns <= iteration_ns);
}

TEST_CASE("the best of 1f1b and gpipe have the layers that suit them, not those that suit the plan") {
  PlanRequest request = test::PaperRequest();
  request.job.parallelism.layers = LayerSplit::kAuto;
  request.job.parallelism.recompute = Recompute::kNone;
  request.cluster.sites[0].device.memory_bytes = 14 * test::kGiB;
  request.cluster.links[1].latency_ns = 60 * test::kMillisecond;
  const PlanResult result = *MakePlan(request);
  const PlanSpace space = SpaceOf(request);
  for (const auto& [kind, comm, name] : {std::tuple{ScheduleKind::kOneFOneB, CommMode::kNonBlocking, "1f1b"},
                                         std::tuple{ScheduleKind::kOneFOneB, CommMode::kBlocking, "1f1b"},
                                         std::tuple{ScheduleKind::kGpipe, CommMode::kNonBlocking, "gpipe"}}) {
    const Baseline best = BaselineOf(result, name, CommModeName(comm), "best");
    for (int32_t b = 0; b < 3; ++b) {
      for (int32_t s = 0; s < 2; ++s) {
        Candidate candidate{.schedule = kind,
                            .comm = comm,
                            .mode = {},
                            .micro_batch = b,
                            .sequence = s,
                            .layers = {},
                            .delta_n = {0, 0}};
        candidate.layers = BalancedLayers(space.model(), candidate);
        if (space.model().Tightest(candidate).excess_bytes() <= 0) {
          INFO(name << " " << b << " " << s);
          CHECK(best.fits);
          CHECK(best.iteration_ns <= space.model().Run(candidate).iteration_ns);
        }
      }
    }
  }
}

TEST_CASE("the best single site has its own degrees where they are left to the planner") {
  PlanRequest request = test::PaperRequest();
  request.job.parallelism.tensor = 0;
  request.job.parallelism.pipeline = 8;  // of three sites, not of one
  request.job.parallelism.layers = LayerSplit::kAuto;
  const PlanResult result = *MakePlan(request);
  const Baseline& single = result.baselines.back();
  REQUIRE(single.scope == BaselineScope::kSingleSite);
  int64_t least_ns = single.iteration_ns;
  for (const SiteSpec& site : request.cluster.sites) {
    PlanRequest alone = request;
    alone.job.placement.sites = {site.name};
    alone.job.parallelism.pipeline = 0;
    const absl::StatusOr<PlanResult> plan = MakePlan(alone);
    least_ns = plan.ok() ? std::min(least_ns, plan->prediction.iteration_ns) : least_ns;
  }
  CHECK(100 * single.iteration_ns <= 101 * least_ns);  // it is not searched, but tried
}

TEST_CASE("beside a searched schedule, geopipe is as good as the search found it") {
  PlanRequest request = test::PaperRequest();
  request.job.parallelism.layers = LayerSplit::kAuto;
  const PlanResult searched = *MakePlan(request);
  request.refine = true;
  const PlanResult refined = *MakePlan(request);
  REQUIRE(refined.plan.schedule == ScheduleKind::kAuto);
  REQUIRE(searched.plan.schedule == ScheduleKind::kGeoPipe);
  CHECK(BaselineOf(refined, "geopipe", "nonblocking", "best").iteration_ns == searched.prediction.iteration_ns);
  CHECK(BaselineOf(refined, "geopipe", "nonblocking", "same").iteration_ns >= searched.prediction.iteration_ns);
}

}  // namespace
}  // namespace geopipe
