// Tests the planner where orders of sites and degrees are left to it.
#include "optimizer/plan/shape_search.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>

#include "optimizer/plan/planner.h"
#include "optimizer/plan/space/placement.h"
#include "optimizer/plan/space/plan_space.h"
#include "optimizer/plan/space/shapes.h"
#include "runtime/base/thread_pool.h"
#include "tests/optimizer/plan/jobs.h"

namespace geopipe {
namespace {

// Order of sites and all degrees are left to the planner.
PlanRequest OpenRequest(int64_t memory_bytes = 64 * test::kGiB) {
  PlanRequest request = test::PaperRequest();
  request.cluster = test::ThreeRegions(memory_bytes);
  request.job.parallelism.tensor = 0;
  request.job.parallelism.pipeline = 0;
  request.job.parallelism.data = 0;
  request.job.parallelism.layers = LayerSplit::kAuto;
  request.job.placement.sites.clear();
  return request;
}

// Equal sites, each linked with each, too slowly for more than one to be worth it.
ClusterSpec EqualSites(int count) {
  ClusterSpec cluster;
  for (int site = 0; site < count; ++site) {
    cluster.sites.push_back({"site" + std::to_string(site), 1, 8, test::ThreeRegions().sites.front().device});
    for (int other = 0; other < site; ++other) {
      cluster.links.push_back(
          {"site" + std::to_string(other), "site" + std::to_string(site), 50 * test::kMillisecond, 1e6});
    }
  }
  return cluster;
}

void CheckDoesNotFit(const absl::Status& status) {
  CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(status.message()), Catch::StartsWith("the job does not fit: pipeline rank "));
}

TEST_CASE("a job that fits nowhere is infeasible, however large its space and whether or not it is stopped") {
  PlanRequest split = test::PaperRequest();
  split.cluster = test::ThreeRegions(2 * test::kGiB);
  split.job.parallelism.layers = LayerSplit::kAuto;
  split.method = SearchMethod::kExhaustive;
  CheckDoesNotFit(MakePlan(split).status());
  PlanRequest open = OpenRequest(test::kGiB);
  open.should_stop = [] { return true; };
  for (const SearchMethod method : {SearchMethod::kGenetic, SearchMethod::kExhaustive}) {
    open.method = method;
    CheckDoesNotFit(MakePlan(open).status());
  }
  open.cluster = EqualSites(6);
  for (SiteSpec& site : open.cluster.sites) {
    site.device.memory_bytes = test::kGiB;
  }
  open.method = SearchMethod::kGenetic;
  CheckDoesNotFit(MakePlan(open).status());
}

TEST_CASE("close shapes among many sites are those of all that were ranked, not of the few that were searched") {
  PlanRequest request = OpenRequest();
  request.cluster = EqualSites(6);
  int64_t links = 0;
  for (LinkSpec& link : request.cluster.links) {
    link.latency_ns = (1 + links % 5) * 5 * test::kMillisecond;
    link.bandwidth_bytes_per_s = 50e9;
    ++links;
  }
  const ShapeFound found = SearchShapes(request, CostSource(request.job, request.cluster, nullptr)).value();
  REQUIRE(found.space != nullptr);
  CHECK(found.close.size() > 8);
}

TEST_CASE("what does not fit is told of the degrees that need least") {
  PlanRequest request = test::PaperRequest();
  request.cluster = test::ThreeRegions(4 * test::kGiB);
  request.job.parallelism.tensor = 1;
  request.job.parallelism.pipeline = 0;
  request.job.parallelism.zero_stage = 1;
  // "... needs 8.86 GiB per device ..."
  const auto need = [&](int64_t data) {
    request.job.parallelism.data = data;
    const std::string message(MakePlan(request).status().message());
    UNSCOPED_INFO(message);
    CHECK(message.find("data ") == (data == 0 ? message.find("data 2, micro_batch_size") : std::string::npos));
    CHECK_THAT(message, Catch::Contains(" GiB per device of 4.00 GiB even at pipeline "));
    return std::stod(message.substr(message.find(" needs ") + 7));
  };
  const double least_gib = need(0);
  for (const int64_t data : {1, 2, 4, 8}) {
    CHECK(least_gib <= need(data));
  }
  CHECK(least_gib == need(2));
  CHECK(need(8) > need(2) + 2);
}

TEST_CASE("search.max_evaluations is for all orders and degrees together") {
  PlanRequest request = OpenRequest();
  // ΔN that hides nothing leaves every order's bound far below what can be had.
  request.job.search.max_delta_n = 1;
  for (LinkSpec& link : request.cluster.links) {
    link.latency_ns = 100 * test::kMillisecond;
  }
  for (const int64_t budget : {20, 150, 400}) {
    request.job.search.max_evaluations = budget;
    const PlanResult result = *MakePlan(request);
    CHECK(result.search.evaluations <= budget);
    CHECK_FALSE(result.search.stopped_early);
  }
}

TEST_CASE("an order of sites is searched and counted once, however it is come by") {
  PlanRequest request = test::PaperRequest();
  request.job.parallelism.pipeline = 0;
  request.job.placement.sites.clear();
  request.cluster = EqualSites(6);
  const PlanResult result = *MakePlan(request);
  CHECK(result.plan.delta_n.empty());
  // One order stands for all orders of equal sites, and no number of ranks counts twice.
  int64_t genomes = 0;
  SiteOrder sites;
  for (const SiteSpec& site : request.cluster.sites) {
    sites.push_back(site.name);
    for (const Shape& shape : ShapesOf(request.job, request.cluster, sites)) {
      const JobSpec job = JobOf(request.job, shape);
      genomes += PlanSpace::Create(job, request.cluster, CostSource(job, request.cluster, nullptr), request.comm, {},
                                   *PlaceStages(job, request.cluster, sites))
                     ->size();
    }
  }
  CHECK(result.search.space_size <= genomes);
}

TEST_CASE("exhaustive search does not claim a proof over orders that it does not try") {
  PlanRequest request = test::PaperRequest();
  request.job.parallelism.pipeline = 0;
  request.job.placement.sites.clear();
  request.cluster = EqualSites(5);
  request.method = SearchMethod::kExhaustive;
  const absl::Status status = MakePlan(request).status();
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(status.message()), Catch::Contains("5 sites") && Catch::Contains("placement.sites"));
}

TEST_CASE("exhaustive search over orders proves what genetic search finds") {
  PlanRequest request = test::PaperRequest();
  request.job.placement.sites.clear();
  request.job.search.max_delta_n = 4;
  const PlanResult genetic = *MakePlan(request);
  request.method = SearchMethod::kExhaustive;
  const PlanResult exhaustive = *MakePlan(request);
  CHECK(genetic.plan == exhaustive.plan);
}

TEST_CASE("the best other order or degrees are among what was not taken") {
  const auto others = [](const PlanRequest& request) {
    std::vector<RejectedAlternative> found;
    const PlanResult result = *MakePlan(request);
    for (const RejectedAlternative& rejected : result.search.rejected) {
      if (rejected.change.starts_with("sites ") || rejected.change.starts_with("tensor ")) {
        found.push_back(rejected);
      }
    }
    return found;
  };
  PlanRequest request = test::PaperRequest();
  CHECK(others(request).empty());  // there is no other
  request.job.placement.sites.clear();
  std::vector<RejectedAlternative> found = others(request);
  REQUIRE(found.size() == 1);
  CHECK_THAT(found.front().change, Catch::StartsWith("sites "));
  CHECK_THAT(found.front().reason, Catch::StartsWith("slower by ") || Catch::Equals("no faster"));
  request = test::PaperRequest();
  request.job.parallelism.tensor = 0;
  request.job.parallelism.pipeline = 0;
  found = others(request);
  REQUIRE(found.size() == 1);
  CHECK_THAT(found.front().change, Catch::StartsWith("tensor ") && Catch::Contains(", pipeline "));
  CHECK_THAT(found.front().reason, Catch::StartsWith("slower by "));
}

TEST_CASE("on several threads the plan is the same") {
  ThreadPool pool(3);
  PlanRequest request = OpenRequest();
  request.job.search.max_evaluations = 300;
  const PlanResult alone = *MakePlan(request);
  request.parallel_for = [&pool](int64_t count, const std::function<void(int64_t)>& work) { pool.For(count, work); };
  const PlanResult together = *MakePlan(request);
  CHECK(together.plan == alone.plan);
  CHECK(together.search.evaluations == alone.search.evaluations);
  request = test::PaperRequest();
  request.parallel_for = [&pool](int64_t count, const std::function<void(int64_t)>& work) { pool.For(count, work); };
  request.method = SearchMethod::kExhaustive;
  CHECK(MakePlan(request)->plan == MakePlan(test::PaperRequest())->plan);
}

}  // namespace
}  // namespace geopipe
