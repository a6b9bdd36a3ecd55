#include "optimizer/plan/given_schedule.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "optimizer/plan/planner.h"
#include "optimizer/schedule/csv.h"
#include "optimizer/schedule/lowering.h"
#include "optimizer/schedule/schedule_table.h"
#include "tests/optimizer/plan/jobs.h"

namespace geopipe {
namespace {

using Catch::Contains;
using test::PaperRequest;

// Asks for 2^20 tokens: 512 micro-batches of 2048, 256 of 4096, ...
PlanRequest RequestOf(Schedule schedule) {
  PlanRequest request = PaperRequest();
  request.job.search.schedule = ScheduleKind::kAuto;
  request.job.parallelism.pipeline = 0;
  request.cluster.links.push_back({"north", "west", 10 * test::kMillisecond, 50e9});
  request.baselines = false;
  request.cluster_bound = false;
  request.schedule = std::move(schedule);
  return request;
}

TEST_CASE("a plan with a given schedule runs exactly it") {
  for (const ScheduleKind kind : {ScheduleKind::kOneFOneB, ScheduleKind::kZbV, ScheduleKind::kInterleaved}) {
    const PipelineShape shape = PipelineShape::Of(RowOf(kind).layout, 8, 64);
    const Schedule schedule = MakeSchedule(kind, shape).value();
    const absl::StatusOr<PlanResult> result = MakePlan(RequestOf(schedule));
    CAPTURE(ScheduleKindName(kind), result.status().ToString());
    REQUIRE(result.ok());
    CHECK(result->schedule == Lower(schedule).value());
    CHECK(result->plan.Shape() == shape);
    CHECK(result->plan.schedule == ScheduleKind::kCsv);
    CHECK(result->plan.micro_batch_size * result->plan.sequence_length * result->plan.grid.data * 64 == 1 << 20);
    CHECK(result->prediction.iteration_ns >= result->prediction.lower_bound_ns);
  }
}

TEST_CASE("1f1b as a given schedule is as fast as 1f1b by name") {
  const Schedule schedule = MakeSchedule(ScheduleKind::kOneFOneB, PipelineShape::Linear(8, 64)).value();
  PlanRequest given = RequestOf(schedule);
  PlanRequest named = given;
  named.schedule.reset();
  named.job.search.schedule = ScheduleKind::kOneFOneB;
  named.job.parallelism.pipeline = 8;
  for (JobSpec* job : {&given.job, &named.job}) {
    job->search.micro_batch_size = {4};
    job->search.sequence_length = {4096};
    job->parallelism.layers = LayerSplit::kEven;
  }
  const absl::StatusOr<PlanResult> one = MakePlan(given);
  const absl::StatusOr<PlanResult> other = MakePlan(named);
  CAPTURE(one.status().ToString(), other.status().ToString());
  REQUIRE(one.ok());
  REQUIRE(other.ok());
  CHECK(one->prediction.iteration_ns == other->prediction.iteration_ns);
  CHECK(one->schedule == other->schedule);
}

TEST_CASE("a stage is on the rank whose row it is in") {
  Schedule schedule = MakeSchedule(ScheduleKind::kOneFOneB, PipelineShape::Linear(8, 64)).value();
  std::ranges::reverse(schedule.devices);
  std::ranges::reverse(schedule.shape.placement);
  const absl::StatusOr<PlanResult> result = MakePlan(RequestOf(schedule));
  CAPTURE(result.status().ToString());
  REQUIRE(result.ok());
  CHECK(result->plan.stages.front().pipeline_rank == 7);
  CHECK(result->plan.stages.back().pipeline_rank == 0);
  CHECK(result->schedule == Lower(schedule).value());
}

TEST_CASE("what a given schedule and its job say otherwise is refused by its key") {
  struct Row {
    PipelineShape shape;
    void (*change)(JobSpec&);
    std::string words;
  };
  const PipelineShape linear = PipelineShape::Linear(8, 64);
  const auto keep = [](JobSpec& /*job*/) {};
  const std::vector<Row> rows{
      {linear, [](JobSpec& job) { job.search.schedule = ScheduleKind::kGeoPipe; }, "search.schedule is geopipe"},
      {linear, [](JobSpec& job) { job.parallelism.pipeline = 4; },
       "parallelism.pipeline is 4, and the schedule has 8 pipeline ranks"},
      {linear, [](JobSpec& job) { job.parallelism.stages_per_rank = 2; },
       "parallelism.stages_per_rank is 2, and the schedule has 1"},
      {PipelineShape{2, 3, 64, {0, 1, 1}}, keep, "has 2 stages in its row 2 and 1 in its first"},
      {PipelineShape{3, 2, 64, {0, 2}}, keep, "has 0 stages in its row 2 and 1 in its first"},
      {PipelineShape::Linear(64, 64), keep, "has 64 stages, but model.num_hidden_layers is 40"},
      {PipelineShape::Linear(8, 63), keep, "it is not a multiple of 63; change the tokens"},
      {PipelineShape::Linear(8, 1), keep, "the three must multiply to 1048576"},
  };
  for (const Row& row : rows) {
    JobSpec job = RequestOf({}).job;
    row.change(job);
    CAPTURE(row.words);
    CHECK_THAT(std::string(JobWithSchedule(job, row.shape).status().message()), Contains(row.words));
  }
  const JobSpec job = JobWithSchedule(RequestOf({}).job, linear).value();
  CHECK(job.parallelism.pipeline == 8);
  CHECK(job.parallelism.stages_per_rank == 1);
  CHECK(JobWithSchedule(job, linear).value() == job);
  CHECK_THAT(std::string(JobWithSchedule(job, "0F0,0Q0").status().message()), Contains("row 1, cell 2"));
}

TEST_CASE("a given schedule that does not fit says which rank, and what would help") {
  PlanRequest request = RequestOf(MakeSchedule(ScheduleKind::kGpipe, PipelineShape::Linear(8, 256)).value());
  for (SiteSpec& site : request.cluster.sites) {
    site.device.memory_bytes = 12 * test::kGiB;
  }
  request.job.parallelism.recompute = Recompute::kNone;
  const absl::StatusOr<PlanResult> result = MakePlan(request);
  CAPTURE(result.status().ToString());
  CHECK(absl::IsFailedPrecondition(result.status()));
}

}  // namespace
}  // namespace geopipe
