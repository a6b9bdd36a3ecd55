#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "optimizer/plan/planner.h"
#include "optimizer/plan/report/explain.h"
#include "tests/optimizer/plan/jobs.h"

namespace geopipe {
namespace {

using Catch::Contains;

std::string Refusal(const PlanRequest& request) {
  const absl::Status status = MakePlan(request).status();
  CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
  return std::string(status.message());
}

TEST_CASE("4.5 GiB devices cannot hold a 13B stage without recomputation: stage, bytes and remedies are named") {
  PlanRequest request = test::PaperRequest();
  request.cluster = test::ThreeRegions(9 * test::kGiB / 2);
  request.job.parallelism.recompute = Recompute::kNone;
  const std::string message = Refusal(request);
  INFO(message);
  CHECK_THAT(message, Catch::StartsWith("the job does not fit: pipeline rank 0 on site \"north\" needs 5."));
  CHECK_THAT(message, Contains(" GiB per device of 4.50 GiB even at micro_batch_size 1, sequence_length 2048, "
                               "delta_n [0,0], recompute none (model states 3.67 GiB, 8 micro-batches in flight of"));
  CHECK_THAT(message, Contains("any of these would relax it: devices with at least 6 GiB;"));
  CHECK_THAT(message, Contains("parallelism.recompute full"));
}

TEST_CASE("a job that pins a tensor degree too small for its devices is told to leave it to the planner") {
  PlanRequest request;
  request.job = test::Llama13bJob();
  request.job.model = *ModelPreset("llama-2-70b");
  request.job.parallelism.tensor = 1;
  request.job.parallelism.pipeline = 16;
  request.job.parallelism.sequence_parallel = false;
  request.job.placement.sites = {};
  request.job.search.micro_batch_size = {1};
  request.job.search.sequence_length = {4096};
  request.cluster = test::ThreeRegions(80 * test::kGiB);
  request.cluster.sites.resize(1);
  request.cluster.sites.front().nodes = 2;
  request.cluster.sites.front().network = {.bandwidth_bytes_per_s = 50e9, .latency_ns = 10'000};
  request.cluster.links.clear();
  request.refine = false;
  const std::string message = Refusal(request);
  INFO(message);
  CHECK_THAT(message, Contains("parallelism.tensor auto, and pipeline auto (it fits with tensor "));
  request.job.parallelism.tensor = 0;
  request.job.parallelism.pipeline = 0;
  CHECK(MakePlan(request).ok());
}

TEST_CASE("every remedy that is named works, and one less does not") {
  PlanRequest request = test::PaperRequest();
  request.cluster = test::ThreeRegions(9 * test::kGiB / 2);
  request.job.parallelism.recompute = Recompute::kNone;
  Refusal(request);
  PlanRequest changed = request;
  changed.cluster = test::ThreeRegions(6 * test::kGiB);
  CHECK(MakePlan(changed).ok());
  changed.cluster = test::ThreeRegions(5 * test::kGiB);
  CHECK_FALSE(MakePlan(changed).ok());
  changed = request;
  changed.job.parallelism.recompute = Recompute::kFull;
  CHECK(MakePlan(changed).ok());
}

TEST_CASE("recompute auto takes the cheapest mode that fits") {
  PlanRequest request = test::PaperRequest();
  CHECK(MakePlan(request)->plan.SameRecompute() == Recompute::kNone);
  request.cluster = test::ThreeRegions(27 * test::kGiB / 5);
  CHECK(MakePlan(request)->plan.SameRecompute() == Recompute::kSelective);
  request.cluster = test::ThreeRegions(9 * test::kGiB / 2);
  CHECK(MakePlan(request)->plan.SameRecompute() == Recompute::kFull);
  request.cluster = test::ThreeRegions(3 * test::kGiB);
  CHECK_THAT(Refusal(request), Contains("recompute full (model states 3.67 GiB"));
}

TEST_CASE("replicas that divide what a device cannot hold whole are taken, or named") {
  PlanRequest request = test::PaperRequest();
  request.job.parallelism.tensor = 4;
  request.job.parallelism.data = 2;
  request.cluster = test::ThreeRegions(6 * test::kGiB);
  std::vector<int32_t> fitting;
  for (const int32_t stage : {0, 1, 2, 3}) {
    request.job.parallelism.zero_stage = stage;
    if (MakePlan(request).ok()) {
      fitting.push_back(stage);
    }
  }
  REQUIRE(!fitting.empty());
  REQUIRE(fitting.front() > 0);
  request.job.parallelism.zero_stage.reset();
  CHECK(std::ranges::count(fitting, MakePlan(request)->plan.zero_stage) == 1);
  request.job.parallelism.zero_stage = 0;
  const std::string message = Refusal(request);
  INFO(message);
  CHECK_THAT(message, Contains("recompute full, zero_stage 0 (model states"));
  CHECK_THAT(message, Contains("parallelism.zero_stage " + std::to_string(fitting.front())));
}

TEST_CASE("a job without any single remedy says so") {
  PlanRequest request = test::PaperRequest();
  request.cluster = test::ThreeRegions(1 << 20);
  request.job.parallelism.pipeline = 8;
  const std::string message = Refusal(request);
  CHECK_THAT(message, Contains("devices with at least"));  // memory alone always helps
  CHECK_THAT(message, !Contains("search.micro_batch_size"));
}

TEST_CASE("the fp32 job is told of bf16, the fixed ΔN of a smaller one, the large b of a smaller one") {
  PlanRequest request = test::PaperRequest();
  request.job.parallelism.recompute = Recompute::kNone;
  request.job.search.micro_batch_size = {4};
  request.job.search.sequence_length = {4096};
  request.cluster = test::ThreeRegions(20 * test::kGiB);
  request.fixed_delta_n = {8};
  request.job.search.schedule = ScheduleKind::kGeoPipe;
  CHECK_THAT(Refusal(request), Contains("a smaller delta_n") && Contains("search.micro_batch_size 1"));
  request.fixed_delta_n.clear();
  request.job.precision = Precision::kFp32;
  request.cluster = test::ThreeRegions(25 * test::kGiB);
  CHECK_THAT(Refusal(request), Contains("precision bf16"));
}

}  // namespace
}  // namespace geopipe
