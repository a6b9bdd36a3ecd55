#include "optimizer/plan/refine/refine_schedule.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "optimizer/model/plan/plan_memory.h"
#include "optimizer/schedule/schedule_table.h"
#include "optimizer/schedule/validate.h"
#include "optimizer/simulator/simulator.h"
#include "tests/optimizer/plan/jobs.h"

namespace geopipe {
namespace {

PlanRequest RefinedRequest() {
  PlanRequest request = test::PaperRequest();
  request.refine = true;
  return request;
}

PipelineCosts TwoCrossings(int32_t stages, int32_t micro_batches) {
  PipelineCosts costs;
  costs.shape = PipelineShape::Linear(stages, micro_batches);
  costs.boundaries.resize(static_cast<size_t>(stages) - 1);
  costs.boundaries[1].crosses = costs.boundaries[3].crosses = true;
  return costs;
}

TEST_CASE("ΔN is what a schedule runs ahead") {
  const PipelineCosts costs = TwoCrossings(6, 40);
  for (const std::vector<int32_t>& delta_n : {std::vector<int32_t>{0, 0}, {1, 0}, {0, 2}, {3, 1}}) {
    const Schedule schedule =
        MakeSchedule(ScheduleKind::kGeoPipe, costs.shape, std::vector<int32_t>{0, delta_n[0], 0, delta_n[1], 0})
            .value();
    CHECK(EquivalentDeltaN(schedule, costs) == delta_n);
  }
  CHECK(EquivalentDeltaN(MakeSchedule(ScheduleKind::kGpipe, costs.shape).value(), costs) ==
        std::vector<int32_t>{0, 37});
}

TEST_CASE("a searched schedule is shorter, fits, and says what it replaced") {
  const PlanResult by_rule = MakePlan(test::PaperRequest()).value();
  const PlanResult result = MakePlan(RefinedRequest()).value();
  CHECK(result.plan.schedule == ScheduleKind::kAuto);
  CHECK(result.prediction.iteration_ns < by_rule.prediction.iteration_ns);
  CHECK(result.prediction.iteration_ns >= result.prediction.lower_bound_ns);
  CHECK(result.search.best_so_far_ns.back() == result.prediction.iteration_ns);
  CHECK(result.search.evaluations > by_rule.search.evaluations);
  CHECK(Validate(result.schedule).ok());
  const SimulationResult simulated = Simulate(result.schedule, result.costs).value();
  CHECK(simulated.iteration_ns == result.prediction.iteration_ns);
  CHECK(simulated.fits);
  for (size_t rank = 0; rank < result.plan.pipeline_ranks.size(); ++rank) {
    CHECK(result.plan.pipeline_ranks[rank].peak_bytes == simulated.peak_bytes[rank]);
    CHECK(simulated.peak_bytes[rank] <= result.plan.pipeline_ranks[rank].capacity_bytes);
  }
  CHECK(EquivalentDeltaN(result.schedule, result.costs) == result.plan.delta_n);
  for (const Baseline& baseline : result.baselines) {
    CHECK((!baseline.fits || baseline.iteration_ns >= result.prediction.iteration_ns));
    CHECK((baseline.scope != BaselineScope::kSame || baseline.micro_batch_size == result.plan.micro_batch_size));
  }
  const auto replaced =
      std::find_if(result.search.rejected.begin(), result.search.rejected.end(),
                   [](const RejectedAlternative& rejected) { return rejected.change == "schedule geopipe"; });
  REQUIRE(replaced != result.search.rejected.end());
  CHECK_THAT(replaced->reason, Catch::StartsWith("slower by "));
  CHECK(MakePlan(RefinedRequest())->plan == result.plan);
}

TEST_CASE("on slow links, where it runs far ahead, a schedule fits with the messages that this takes") {
  PlanRequest request = RefinedRequest();
  for (LinkSpec& link : request.cluster.links) {
    link.latency_ns = 5 * test::kMillisecond;
    link.bandwidth_bytes_per_s = 10e9 / 8;
  }
  const PlanResult result = MakePlan(request).value();
  CHECK(result.plan.schedule == ScheduleKind::kAuto);
  CHECK(result.prediction.iteration_ns <= result.prediction.lower_bound_ns / 1000 * 1001);
  for (const PipelineRankPlan& rank : result.plan.pipeline_ranks) {
    CHECK(rank.peak_bytes <= rank.capacity_bytes);
  }
}

TEST_CASE("a limit of ΔN holds for schedules that are searched for") {
  PlanRequest request = RefinedRequest();
  for (LinkSpec& link : request.cluster.links) {
    link.latency_ns = 40 * test::kMillisecond;
  }
  const PlanResult open = MakePlan(request).value();
  REQUIRE(std::ranges::max(open.plan.delta_n) > 2);
  request.job.search.max_delta_n = 2;
  const PlanResult limited = MakePlan(request).value();
  CHECK(std::ranges::max(limited.plan.delta_n) <= 2);
  CHECK(limited.plan.schedule != ScheduleKind::kGpipe);
  CHECK(limited.prediction.iteration_ns >= open.prediction.iteration_ns);
}

TEST_CASE("a limit of ΔN leaves W as late as a rule within it has it, and binds several stages on a rank") {
  PlanRequest request = RefinedRequest();
  for (LinkSpec& link : request.cluster.links) {
    link.bandwidth_bytes_per_s /= 8;
  }
  request.job.search.max_delta_n = 4;
  const int64_t searched_ns = MakePlan(request)->prediction.iteration_ns;
  request.job.search.schedule = ScheduleKind::kGeoPipeZb;
  CHECK(searched_ns <= MakePlan(request)->prediction.iteration_ns / 1000 * 1003);
  request.job.search.schedule = ScheduleKind::kAuto;
  request.job.search.max_delta_n = 0;
  request.job.parallelism.stages_per_rank = 2;
  const PlanResult two = MakePlan(request).value();
  const std::vector<int64_t> in_flight = InFlightOfSchedule(two.schedule);
  REQUIRE(in_flight.size() == two.plan.stages.size());
  for (size_t stage = 0; stage < in_flight.size(); ++stage) {
    CHECK(in_flight[stage] <= std::ssize(in_flight) - static_cast<int64_t>(stage));
  }
}

TEST_CASE("what the job names or fixes stays") {
  PlanRequest request = RefinedRequest();
  request.fixed_delta_n = {1};
  CHECK(MakePlan(request)->plan.schedule == ScheduleKind::kGeoPipe);
  request = RefinedRequest();
  request.job.search.schedule = ScheduleKind::kOneFOneB;
  CHECK(MakePlan(request)->plan.schedule == ScheduleKind::kOneFOneB);
  request = RefinedRequest();
  request.comm = CommMode::kBlocking;
  CHECK(MakePlan(request)->plan.schedule != ScheduleKind::kAuto);
}

TEST_CASE("memory that binds still binds") {
  const PlanResult ample = MakePlan(RefinedRequest()).value();
  PlanRequest request = RefinedRequest();
  int64_t most_bytes = 0;
  const PlanResult by_rule = MakePlan(test::PaperRequest()).value();
  for (const PipelineRankPlan& rank : by_rule.plan.pipeline_ranks) {
    most_bytes = std::max(most_bytes, rank.peak_bytes);
  }
  request.cluster = test::ThreeRegions(most_bytes);
  const PlanResult tight = MakePlan(request).value();
  CHECK(tight.prediction.iteration_ns >= ample.prediction.iteration_ns);
  for (const PipelineRankPlan& rank : tight.plan.pipeline_ranks) {
    CHECK(rank.peak_bytes <= most_bytes);
  }
}

TEST_CASE("a caller who stops it gets the plan by rule") {
  PlanRequest request = RefinedRequest();
  request.should_stop = [] { return true; };
  CHECK(MakePlan(request)->plan.schedule != ScheduleKind::kAuto);
}

TEST_CASE("auto has as many stages on a rank as the job says, and left open is no worse") {
  PlanRequest request = RefinedRequest();
  request.cluster.links.push_back({"west", "north", 9 * test::kMillisecond, 50e9});
  request.job.training.tokens_per_iteration = 16 * 4096;  // so few micro-batches that a pipeline fills and drains long
  const int64_t open_ns = MakePlan(request)->prediction.iteration_ns;
  int64_t one_ns = 0;
  for (const int32_t per_rank : {1, 2, 3, 5}) {
    CAPTURE(per_rank);
    request.job.parallelism.stages_per_rank = per_rank;
    const PlanResult fixed = MakePlan(request).value();
    CHECK(fixed.plan.StagesPerRank() == per_rank);
    CHECK(Validate(fixed.schedule).ok());
    const SimulationResult simulated = Simulate(fixed.schedule, fixed.costs).value();
    CHECK(simulated.fits);
    CHECK(simulated.iteration_ns == fixed.prediction.iteration_ns);
    CHECK(fixed.prediction.iteration_ns >= fixed.prediction.lower_bound_ns);
    CHECK(open_ns <= fixed.prediction.iteration_ns / 1000 * 1001);
    one_ns = per_rank == 1 ? fixed.prediction.iteration_ns : one_ns;
  }
  CHECK(open_ns < one_ns / 100 * 95);
  request.comm = CommMode::kBlocking;
  CHECK_THAT(std::string(MakePlan(request).status().message()),
             Catch::StartsWith("parallelism.stages_per_rank is 5, but with blocking messages"));
}

}  // namespace
}  // namespace geopipe
