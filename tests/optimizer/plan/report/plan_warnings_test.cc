#include "optimizer/plan/report/plan_warnings.h"

#include <catch2/catch.hpp>

#include "optimizer/model/transformer.h"
#include "tests/optimizer/plan/jobs.h"

namespace geopipe {
namespace {

using Catch::Contains;

// Two replicas of tensor 8 on each of 4 stages.
PlanRequest ReplicatedRequest(int32_t zero_stage) {
  PlanRequest request = test::PaperRequest();
  request.job.parallelism.pipeline = 2;
  request.job.parallelism.data = 2;
  request.job.parallelism.zero_stage = zero_stage;
  request.job.placement.sites = {"north", "west"};
  request.job.search.micro_batch_size = {1};
  request.job.search.sequence_length = {4096};
  for (SiteSpec& site : request.cluster.sites) {
    site.network = {.bandwidth_bytes_per_s = 25e9, .latency_ns = 10'000};
    site.device.memory_bytes = 512 * test::kGiB;
  }
  request.cluster.links.push_back({"west", "north", 9 * test::kMillisecond, 50e9});
  return request;
}

TEST_CASE("a replica sends what its ZeRO stage has it send, per micro-batch or once") {
  constexpr int64_t kParameters = 1000;
  const auto bytes = [](int32_t stage, int64_t micro_batches, Precision precision = Precision::kFp32) {
    return ReplicaBytes(kParameters, precision, 4, stage, micro_batches);
  };
  CHECK(bytes(0, 8) == 2 * 4000 * 3 / 4);       // gradients, scattered and gathered
  CHECK(bytes(1, 8) == (4000 + 4000) * 3 / 4);  // gradients scattered, weights gathered
  CHECK(bytes(2, 8) == (8 * 4000 + 4000) * 3 / 4);
  CHECK(bytes(3, 8) == 8 * (4000 + 2 * 4000) * 3 / 4);
  CHECK(bytes(3, 8, Precision::kBf16) == 8 * (4000 + 2 * 2000) * 3 / 4);
  CHECK(ReplicaBytes(kParameters, Precision::kFp32, 1, 3, 8) == 0);
}

TEST_CASE("ZeRO 3 and 2 with many micro-batches are warned of, with bytes and time beside ZeRO 1") {
  const auto [stage, what] =
      GENERATE(table<int32_t, std::string>({{2, "every backward scatters its gradients anew, "},
                                            {3, "every forward and backward gathers the weights anew, "}}));
  const absl::StatusOr<PlanResult> planned = MakePlan(ReplicatedRequest(stage));
  REQUIRE(planned.ok());
  REQUIRE(planned->warnings.size() == 1);
  CHECK_THAT(planned->warnings[0],
             Contains(fmt::format("parallelism.zero_stage is {} with 128 micro-batches: {}", stage, what)) &&
                 Contains(" per replica and iteration where ZeRO 1 sends 36.") && Contains("; an iteration takes ") &&
                 Contains(" and with ZeRO 1 ") && Contains("use zero_stage 1, or larger micro-batches"));
}

TEST_CASE("ZeRO 1 that does not fit is no remedy") {
  const auto plan_with = [](int32_t zero_stage, int64_t memory_gib) {
    PlanRequest request = ReplicatedRequest(zero_stage);
    for (SiteSpec& site : request.cluster.sites) {
      site.device.memory_bytes = memory_gib * test::kGiB;
    }
    request.job.parallelism.recompute = Recompute::kFull;
    return MakePlan(request);
  };
  int64_t memory_gib = 32;
  while (plan_with(1, memory_gib).ok()) {
    --memory_gib;
  }
  const absl::StatusOr<PlanResult> planned = plan_with(3, memory_gib);
  INFO(std::string(planned.status().message()));
  REQUIRE(planned.ok());
  REQUIRE(planned->warnings.size() == 1);
  CHECK_THAT(planned->warnings[0], Contains("; ZeRO 1 does not fit: use larger micro-batches"));
}

TEST_CASE("nothing is said of ZeRO 0 and 1, of few micro-batches and of one replica") {
  CHECK(MakePlan(ReplicatedRequest(0))->warnings.empty());
  CHECK(MakePlan(ReplicatedRequest(1))->warnings.empty());
  PlanRequest few = ReplicatedRequest(3);
  few.job.training.tokens_per_iteration = 2 * 2 * 4096;
  CHECK(MakePlan(few)->warnings.empty());
  PlanRequest alone = ReplicatedRequest(3);
  alone.job.parallelism.data = 1;
  CHECK(MakePlan(alone)->warnings.empty());
}

TEST_CASE("a job without a plan is warned of by the bytes of its largest micro-batches") {
  JobSpec job = ReplicatedRequest(3).job;
  job.search.micro_batch_size = {1, 4};
  const std::optional<std::string> warning = ShardingWarning(job);
  REQUIRE(warning.has_value());
  CHECK_THAT(*warning, Contains("parallelism.zero_stage is 3 with at least 32 micro-batches: ") &&
                           Contains("anew, at least ") &&
                           Contains("; use zero_stage 1 where it fits, or larger micro-batches"));
  job.parallelism.zero_stage.reset();
  CHECK_FALSE(ShardingWarning(job).has_value());
  job.parallelism.zero_stage = 3;
  job.parallelism.data = 0;
  CHECK_FALSE(ShardingWarning(job).has_value());
}

}  // namespace
}  // namespace geopipe
