#include "optimizer/plan/space/site_ranks.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <vector>

#include "optimizer/plan/space/placement.h"
#include "tests/optimizer/plan/jobs.h"

namespace geopipe {
namespace {

using Numbers = std::vector<int64_t>;

TEST_CASE("ranks go where a layer takes the least time, one at least to every site") {
  const Numbers slots{4, 6, 3};
  CHECK(RanksBySpeed(3, slots, Numbers{10, 20, 30}) == Numbers{1, 1, 1});
  CHECK(RanksBySpeed(5, slots, Numbers{10, 20, 30}) == Numbers{3, 1, 1});
  CHECK(RanksBySpeed(8, slots, Numbers{10, 20, 30}) == Numbers{4, 3, 1});
  CHECK(RanksBySpeed(8, slots, Numbers{30, 20, 10}) == Numbers{1, 4, 3});
  CHECK(RanksBySpeed(13, slots, Numbers{10, 20, 30}) == slots);
}

TEST_CASE("sites of the same speed share in proportion to their room") {
  const Numbers slots{5, 9, 3};
  CHECK(RanksBySpeed(9, slots, Numbers{10, 10, 10}) == ShareStages(9, slots));
  CHECK(RanksBySpeed(9, slots, Numbers{10, 10, 4}) == Numbers{2, 4, 3});
}

TEST_CASE("a pipeline that leaves devices idle leaves the slow ones idle") {
  PlanRequest request = test::PaperRequest();
  SiteSpec& slow = request.cluster.sites.front();
  slow.device.peak_flops /= 2;
  request.job.parallelism.pipeline = std::ssize(request.cluster.sites) + 1;
  SiteOrder sites;
  for (const SiteSpec& site : request.cluster.sites) {
    sites.push_back(site.name);
  }
  const CostSource source(request.job, request.cluster, nullptr);
  const Plan plan = PlaceBySpeed(request.job, request.cluster, source, sites).value();
  CHECK(std::ranges::count(plan.pipeline_ranks, slow.name, &PipelineRankPlan::site) == 1);
  const Numbers given(sites.size(), 1);
  request.job.parallelism.pipeline = std::ssize(sites);
  CHECK(PlaceBySpeed(request.job, request.cluster, source, sites, given) ==
        PlaceStages(request.job, request.cluster, sites, given));
}

}  // namespace
}  // namespace geopipe
