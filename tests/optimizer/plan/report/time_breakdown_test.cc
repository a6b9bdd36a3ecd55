#include "optimizer/plan/report/time_breakdown.h"

#include <catch2/catch.hpp>
#include <map>

#include "optimizer/plan/report/plan_figures.h"
#include "tests/optimizer/plan/jobs.h"

namespace geopipe {
namespace {

using PartShares = std::map<TimePart, double>;

struct TimedPlan {
  PlanResult result;
  PartShares shares;
  PlanFigures figures;
};

TimedPlan BreakDown(const PlanRequest& request) {
  TimedPlan planned;
  planned.result = MakePlan(request).value();
  const SimulationResult simulated =
      Simulate(planned.result.schedule, planned.result.costs, {.record_timeline = true}).value();
  const CostSource source(request.job, request.cluster, nullptr);
  const auto shares = BreakDownTime(request.job, request.cluster, source, planned.result, simulated);
  REQUIRE(shares.ok());
  double sum_ns = 0;
  for (const TimeShare& share : *shares) {
    CHECK(planned.shares.emplace(share.part, share.ns).second);
    sum_ns += share.ns;
    INFO(TimePartName(share.part));
    CHECK(share.ns >= -1e3);
  }
  CHECK(sum_ns == Approx(static_cast<double>(planned.result.prediction.iteration_ns)).epsilon(1e-9));
  planned.figures = FiguresOf(request.job, request.cluster, planned.result);
  return planned;
}

TEST_CASE("the parts make up the iteration, from the plain work on") {
  const TimedPlan planned = BreakDown(test::PaperRequest());
  const PartShares& shares = planned.shares;
  CHECK(shares.size() == 12);
  CHECK(shares.at(TimePart::kPlainWork) == Approx(static_cast<double>(planned.figures.work_ns)).epsilon(1e-6));
  CHECK(shares.at(TimePart::kIdleDevices) == Approx(0).margin(1e3));  // all are in use
  CHECK(shares.at(TimePart::kTensor) > 0);
  CHECK(shares.at(TimePart::kRecomputation) == 0);
  CHECK(shares.at(TimePart::kExposedReduction) == 0);  // no replicas
  CHECK(shares.at(TimePart::kUpdate) > 0);
}

TEST_CASE("each part is there because of what it is named after") {
  PlanRequest request = test::PaperRequest();
  request.job.parallelism.recompute = Recompute::kNone;
  request.job.search.micro_batch_size = {1};
  request.job.search.sequence_length = {2048};
  const TimedPlan once = BreakDown(request);
  request.job.parallelism.recompute = Recompute::kFull;
  const TimedPlan again = BreakDown(request);
  // The forward once more but for the down projection: of a third of forward and backward together; of collectives,
  // three gathers and scatters of ten.
  const double work_ns = once.shares.at(TimePart::kPlainWork) + once.shares.at(TimePart::kBelowEfficiency);
  CHECK(again.shares.at(TimePart::kRecomputation) ==
        Approx(0.78 * work_ns / 3 + 0.3 * once.shares.at(TimePart::kTensor)).epsilon(0.1));
  CHECK(again.shares.at(TimePart::kTensor) == Approx(once.shares.at(TimePart::kTensor)));

  request.job.parallelism.recompute = Recompute::kNone;
  request.job.parallelism.pipeline = 4;  // half of the devices
  const TimedPlan half = BreakDown(request);
  CHECK(half.shares.at(TimePart::kIdleDevices) == Approx(half.shares.at(TimePart::kPlainWork)).epsilon(1e-6));

  request.job.parallelism.pipeline = 8;
  request.job.search.schedule = ScheduleKind::kOneFOneB;
  for (LinkSpec& link : request.cluster.links) {
    link.latency_ns = 60 * test::kMillisecond;
  }
  const TimedPlan far = BreakDown(request);
  CHECK(far.shares.at(TimePart::kCrossings) > 100 * once.shares.at(TimePart::kCrossings));
}

TEST_CASE("replicas expose a part of their reduction, and idle sites count") {
  PlanRequest request = test::PaperRequest();
  request.job.parallelism.tensor = 4;
  request.job.parallelism.data = 2;
  const TimedPlan planned = BreakDown(request);
  CHECK(planned.shares.at(TimePart::kExposedReduction) > 0);
  request.job.placement.sites = {"north"};
  request.job.parallelism.pipeline = 0;
  const TimedPlan north = BreakDown(request);
  // 24 of 64 devices.
  CHECK(north.shares.at(TimePart::kIdleDevices) ==
        Approx(north.shares.at(TimePart::kPlainWork) * 40 / 24).epsilon(1e-6));
}

TEST_CASE("sites of unequal speed wait for each other, which is imbalance") {
  PlanRequest request = test::PaperRequest();
  request.cluster.sites[1].device.peak_flops /= 2;
  const TimedPlan uneven = BreakDown(request);
  CHECK(uneven.shares.at(TimePart::kImbalance) > 0.1 * uneven.shares.at(TimePart::kPlainWork));
}

}  // namespace
}  // namespace geopipe
