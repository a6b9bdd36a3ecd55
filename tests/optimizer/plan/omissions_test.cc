#include "optimizer/plan/omissions.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/optimizer/plan/jobs.h"

namespace geopipe {
namespace {

using Catch::Contains;

// Two sites of four nodes, and a job that leaves everything to the planner.
PlanRequest UndescribedRequest() {
  PlanRequest request = test::PaperRequest();
  request.baselines = false;
  request.cluster_bound = false;
  JobSpec& job = request.job;
  job.parallelism = {};
  job.parallelism.sequence_parallel = true;
  job.search.schedule = ScheduleKind::kAuto;
  job.search.micro_batch_size = {1};
  job.search.sequence_length = {4096};
  job.training.tokens_per_iteration = 1 << 18;
  job.placement.sites.clear();
  request.cluster.sites.pop_back();
  request.cluster.links.pop_back();
  for (SiteSpec& site : request.cluster.sites) {
    site.nodes = 4;
    site.network = {.bandwidth_bytes_per_s = 50e9, .latency_ns = 5'000};
  }
  return request;
}

std::vector<Omission> OmissionsOf(const PlanRequest& request) {
  return CostlyOmissions(request, MakePlan(request).value());
}

TEST_CASE("what says all that matters leaves nothing out") { CHECK(OmissionsOf(UndescribedRequest()).empty()); }

TEST_CASE("a network that is not described is missed, with what it would give") {
  PlanRequest request = UndescribedRequest();
  const int64_t with_ns = MakePlan(request)->prediction.iteration_ns;
  for (SiteSpec& site : request.cluster.sites) {
    site.network = {};
  }
  const std::vector<Omission> omissions = OmissionsOf(request);
  REQUIRE(omissions.size() == 1);
  CHECK(omissions[0].key == "network");
  CHECK(omissions[0].iteration_ns == with_ns);
  CHECK_THAT(omissions[0].sentence,
             Contains("north and east give no network") &&
                 Contains("with network: {bandwidth: 400Gbps, latency: 5us} an iteration would take"));
}

TEST_CASE("degrees and schedules that cost more than a tenth are said, and others are not") {
  PlanRequest request = UndescribedRequest();
  request.job.parallelism.tensor = 1;
  request.job.parallelism.data = 1;
  const std::vector<Omission> omissions = OmissionsOf(request);
  const auto degrees = std::ranges::find(omissions, "parallelism", &Omission::key);
  REQUIRE(degrees != omissions.end());
  CHECK_THAT(degrees->sentence, Contains("parallelism pins tensor 1, data 1; with these degrees left to the planner"));

  PlanRequest named = UndescribedRequest();
  named.job.search.schedule = ScheduleKind::kGeoPipe;
  for (const Omission& omission : OmissionsOf(named)) {
    CHECK(omission.iteration_ns <= MakePlan(named)->prediction.iteration_ns / 10 * 9 + 1);
  }
}

TEST_CASE("devices that do not say how they reach each other keep degrees at 1, which is said") {
  PlanRequest request = UndescribedRequest();
  for (SiteSpec& site : request.cluster.sites) {
    site.device.intra_node_bandwidth_bytes_per_s = 0;
  }
  const std::vector<Omission> omissions = OmissionsOf(request);
  CHECK(std::ranges::find(omissions, "device.intra_node_bandwidth", &Omission::key) != omissions.end());
}

TEST_CASE("who stops it is told of no more") {
  PlanRequest request = UndescribedRequest();
  for (SiteSpec& site : request.cluster.sites) {
    site.network = {};
  }
  const PlanResult result = MakePlan(request).value();
  request.should_stop = [] { return true; };
  CHECK(CostlyOmissions(request, result).empty());
}

}  // namespace
}  // namespace geopipe
