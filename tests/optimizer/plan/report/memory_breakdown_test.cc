#include "optimizer/plan/report/memory_breakdown.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "optimizer/model/plan/plan_memory.h"
#include "optimizer/simulator/simulator.h"
#include "tests/optimizer/plan/jobs.h"

namespace geopipe {
namespace {

// The breakdown of each rank, under any schedule, equals the simulation that the plan was checked with.
void CheckPeaks(const PlanRequest& request) {
  const absl::StatusOr<PlanResult> planned = MakePlan(request);
  REQUIRE(planned.ok());
  const PlanResult& result = *planned;
  INFO(ScheduleKindName(result.plan.schedule));
  const std::vector<int64_t> peak_bytes = Simulate(result.schedule, result.costs)->peak_bytes;
  const std::vector<MemoryBreakdown> ranks = BreakDownMemory(request.job, request.cluster, result);
  REQUIRE(ranks.size() == peak_bytes.size());
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    INFO("rank " << rank);
    CHECK(ranks[rank].peak_bytes() == peak_bytes[rank]);
    CHECK(ranks[rank].peak_bytes() == result.plan.pipeline_ranks[rank].peak_bytes);
    CHECK(ranks[rank].free_bytes() >= 0);
    const int64_t of_micro_batches =
        ranks[rank].activation_bytes + ranks[rank].logits_bytes + ranks[rank].weight_grad_bytes;
    CHECK(peak_bytes[rank] - of_micro_batches == result.costs.memory->static_bytes[rank]);
  }
}

TEST_CASE("the categories make up the peak that the simulator has, whatever the schedule") {
  PlanRequest request = test::PaperRequest();
  request.cluster.links.push_back({"west", "north", 9 * test::kMillisecond, 50e9});  // the way back, for interleaved
  for (const ScheduleKind kind : {ScheduleKind::kGeoPipe, ScheduleKind::kOneFOneB, ScheduleKind::kInterleaved,
                                  ScheduleKind::kZbH1, ScheduleKind::kZbV, ScheduleKind::kGeoPipeZb}) {
    request.job.search.schedule = kind;
    CheckPeaks(request);
  }
  request.job.search.schedule = ScheduleKind::kAuto;
  request.job.parallelism.recompute = Recompute::kFull;
  request.refine = true;
  CheckPeaks(request);
}

TEST_CASE("of the engine's devices, too, which keep states for recovery") {
  PlanRequest request = test::PaperRequest();
  request.job.recovery = Recovery::kMemory;
  for (SiteSpec& site : request.cluster.sites) {
    site.device.kind = kHostDevice;
    site.device.memory_bytes = 256 * test::kGiB;
  }
  CheckPeaks(request);
  const PlanResult result = *MakePlan(request);
  const MemoryBreakdown kept = BreakDownMemory(request.job, request.cluster, result)[0];
  CHECK(kept.recovery_bytes > 0);
  CHECK(kept.host_bytes == 0);
}

TEST_CASE(
    "devices with a memory of their own have the same peaks whether states are kept or not: the host keeps them") {
  PlanRequest request = test::PaperRequest();
  const PlanResult without = *MakePlan(request);
  request.job.recovery = Recovery::kMemory;
  CheckPeaks(request);
  const PlanResult with = *MakePlan(request);
  CHECK(with.plan == without.plan);
  const MemoryBreakdown kept = BreakDownMemory(request.job, request.cluster, with)[0];
  CHECK(kept.recovery_bytes == 0);
  CHECK(kept.host_bytes > 0);
  request.cluster.sites[0].host_memory_bytes = kept.host_bytes - 1;
  CHECK_THAT(std::string(MakePlan(request).status().message()),
             Catch::StartsWith("the job does not fit: its devices on node 0 of site"));
  request.cluster.sites[1].device.kind = kHostDevice;  // then the same program has to fit there, too
  request.cluster.sites[1].device.memory_bytes = 1024 * test::kGiB;
  request.cluster.sites[0].device.memory_bytes = 1024 * test::kGiB;
  request.cluster.sites[2].device.memory_bytes = 1024 * test::kGiB;
  const PlanResult mixed = *MakePlan(request);
  CHECK(BreakDownMemory(request.job, request.cluster, mixed)[0].recovery_bytes > 0);
}

TEST_CASE("only the last stage has logits, the reserve is the device's, and the tightest is found") {
  PlanRequest request = test::PaperRequest();
  request.job.parallelism.recompute = Recompute::kNone;
  for (SiteSpec& site : request.cluster.sites) {
    site.device.reserve_bytes = 4 * test::kGiB;
  }
  const PlanResult result = *MakePlan(request);
  const std::vector<MemoryBreakdown> ranks = BreakDownMemory(request.job, request.cluster, result);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    CHECK((ranks[rank].logits_bytes > 0) == (rank + 1 == ranks.size()));
    CHECK(ranks[rank].reserve_bytes == 4 * test::kGiB);
    CHECK(ranks[rank].capacity_bytes == 60 * test::kGiB);
    CHECK(ranks[rank].weight_grad_bytes == 0);  // unsplit
    CHECK(ranks[rank].in_flight == InFlightOfSchedule(result.schedule)[rank]);
    CHECK(ranks[rank].more_bytes >=
          ranks[rank].activation_bytes / ranks[rank].in_flight);  // messages lie in the host's
    CHECK(ranks[TightestRank(ranks)].free_bytes() <= ranks[rank].free_bytes());
  }
  // Their gradients, in bf16, of b * s tokens and an eighth of 32,000 words.
  CHECK(ranks.back().logits_bytes ==
        ranks.back().in_flight * 2 * result.plan.micro_batch_size * result.plan.sequence_length * 32'000 / 8);
}

}  // namespace
}  // namespace geopipe
