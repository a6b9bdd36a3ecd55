#include "coordinator/cli/job_memory.h"

#include <catch2/catch.hpp>

#include "proto/wire/schedule_wire.h"
#include "proto/wire/telemetry_wire.h"

namespace geopipe {
namespace {

// Two pipeline ranks of tensor 2 x data 2.
v1::JobDetail GridDetail() {
  Plan plan;
  plan.micro_batch_size = plan.sequence_length = plan.micro_batches = 1;
  plan.delta_n = {0};
  plan.grid = {.pipeline = 1, .data = 2, .tensor = 2};
  plan.Append({.site = "north"}, {0, 1, true, false});
  plan.Append({.site = "west"}, {2, 3, false, true});
  v1::JobDetail detail;
  *detail.mutable_plan() = ToProto(plan);
  *detail.add_planned_memory() = ToProto(RankMemory{.weights = 10, .peak = 20});
  *detail.add_planned_memory() = ToProto(RankMemory{.weights = 12, .peak = 24});
  return detail;
}

TEST_CASE("the ranks' measurements stand with the pipeline rank that they are of") {
  v1::JobDetail detail = GridDetail();
  for (const int32_t rank : {1, 4, 7}) {
    v1::MeasuredMemory& measured = *detail.add_measured_memory();
    measured.set_rank(rank);
    *measured.mutable_peaks() = ToProto(RankMemory{.weights = rank, .peak = rank});
  }
  const absl::StatusOr<std::vector<StageRanksMemory>> all = MemoryOfJob(detail);
  REQUIRE(all.ok());
  REQUIRE(all->size() == 2);
  CHECK((*all)[0].site == "north");
  CHECK((*all)[0].ranks == 4);
  REQUIRE((*all)[0].measured.size() == 1);
  CHECK((*all)[0].measured[0].peaks.weights == 1);
  CHECK((*all)[1].first_rank == 4);
  CHECK((*all)[1].planned.peak == 24);
  REQUIRE((*all)[1].measured.size() == 2);
  CHECK((*all)[1].measured[1].rank == 7);
}

TEST_CASE("a job without a plan has no memory, and what does not fit its plan is an error") {
  CHECK(MemoryOfJob(v1::JobDetail())->empty());
  v1::JobDetail few = GridDetail();
  few.mutable_planned_memory()->RemoveLast();
  CHECK(MemoryOfJob(few).status().message() == "planned_memory has 1 entries; the plan has 2 pipeline ranks");
  v1::JobDetail other = GridDetail();
  other.add_measured_memory()->set_rank(8);
  CHECK(MemoryOfJob(other).status().message() == "measured_memory is of rank 8; the plan has 8 ranks");
}

}  // namespace
}  // namespace geopipe
