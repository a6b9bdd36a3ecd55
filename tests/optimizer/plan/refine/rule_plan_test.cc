// Plans for the kinds that the genetic search does not run itself.
#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <string>

#include "optimizer/model/plan/plan_costs.h"
#include "optimizer/model/plan/plan_memory.h"
#include "optimizer/plan/evaluation/prediction.h"
#include "optimizer/plan/report/plan_explanation.h"
#include "optimizer/schedule/validate.h"
#include "optimizer/simulator/lower_bound.h"
#include "optimizer/simulator/simulator.h"
#include "tests/optimizer/plan/jobs.h"

namespace geopipe {
namespace {

// Every pair of sites has a link, so that interleaved finds its way back.
PlanRequest RequestFor(ScheduleKind kind, LayerSplit layers) {
  PlanRequest request = test::PaperRequest();
  request.cluster.links.push_back({"west", "north", 9 * test::kMillisecond, 50e9});
  request.job.search.schedule = kind;
  request.job.parallelism.layers = layers;
  if (kind == ScheduleKind::kInterleaved) {
    request.job.parallelism.stages_per_rank = 2;
  }
  return request;
}

TEST_CASE("every kind is planned, and the plan is what its rule makes and the simulator measures") {
  for (const ScheduleRow& row : kSchedules) {
    for (const LayerSplit layers : {LayerSplit::kEven, LayerSplit::kAuto}) {
      const PlanRequest request = RequestFor(row.kind, layers);
      CAPTURE(row.name, static_cast<int>(layers));
      const absl::StatusOr<PlanResult> planned = MakePlan(request);
      REQUIRE(planned.status().ToString() == "OK");
      const Plan& plan = planned->plan;
      CHECK((plan.schedule == row.kind || row.make == nullptr));
      CHECK((plan.Shape() == PipelineShape::Of(row.layout, 8, plan.micro_batches) || row.make == nullptr));
      CHECK(plan.delta_n.size() == plan.Crossings().size());
      CHECK((row.uses_delta_n || row.make == nullptr || *std::ranges::max_element(plan.delta_n) == 0));
      int64_t next_layer = 0;
      for (const StagePlan& stage : plan.stages) {
        CHECK(stage.layers.first == next_layer);
        next_layer = stage.layers.last + 1;
      }
      CHECK(next_layer == request.job.model.num_hidden_layers);
      CHECK(Validate(planned->schedule).ok());
      const SimulationResult simulated = Simulate(planned->schedule, planned->costs, {.record_timeline = true}).value();
      CHECK(simulated.fits);
      CHECK(simulated.iteration_ns == planned->prediction.iteration_ns);
      CHECK(simulated.iteration_ns >= planned->prediction.lower_bound_ns);
      CHECK(planned->search.best_so_far_ns.back() == simulated.iteration_ns);
      for (size_t rank = 0; rank < plan.pipeline_ranks.size(); ++rank) {
        CHECK(plan.pipeline_ranks[rank].peak_bytes == simulated.peak_bytes[rank]);
      }
      CHECK(ExplainPlan(request.job, *planned, simulated)->stages.size() == 8);
      CHECK(MakePlan(request)->schedule == planned->schedule);
    }
  }
}

TEST_CASE("memory of messages that run ahead is counted with the ΔN of the plan, not with none") {
  const PlanRequest request = RequestFor(ScheduleKind::kGeoPipeZb, LayerSplit::kEven);
  const PlanResult planned = MakePlan(request).value();
  REQUIRE(*std::ranges::max_element(planned.plan.delta_n) > 0);
  const CostSource source(request.job, request.cluster, nullptr);
  const JobSpec job = JobOnCluster(JobOfPlan(request.job, planned), request.cluster);
  const PlanPrediction predicted =
      PredictPlan(job, planned.plan, CostsOfPlan(job, request.cluster, source, planned.plan).value()).value();
  REQUIRE(predicted.prediction.iteration_ns == planned.prediction.iteration_ns);
  for (size_t rank = 0; rank < planned.plan.pipeline_ranks.size(); ++rank) {
    CHECK(planned.plan.pipeline_ranks[rank].peak_bytes == predicted.peak_bytes[rank]);
  }
}

TEST_CASE("stages of one rank share its memory: none is counted twice, none is forgotten") {
  const PlanResult linear = MakePlan(RequestFor(ScheduleKind::kZbH1, LayerSplit::kEven)).value();
  const PlanResult folded = MakePlan(RequestFor(ScheduleKind::kZbV, LayerSplit::kEven)).value();
  const auto model_states = [](const PlanRequest& request, const Plan& plan) {
    int64_t bytes = 0;
    for (const StageMemory& stage : MemoryOfPlan(request.job, plan)) {
      bytes += stage.model_state_bytes();
    }
    return bytes;
  };
  const PlanRequest request = RequestFor(ScheduleKind::kZbV, LayerSplit::kEven);
  CHECK(model_states(request, linear.plan) == model_states(request, folded.plan));
  REQUIRE(folded.costs.memory->static_bytes.size() == 8);
  REQUIRE(folded.costs.memory->activation_bytes.size() == 16);
}

TEST_CASE("within less memory a split backward holds less, and a kind that cannot says what it needs") {
  PlanRequest request = RequestFor(ScheduleKind::kZbH2, LayerSplit::kEven);
  request.job.search.micro_batch_size = {1};
  request.job.search.sequence_length = {4096};
  request.job.parallelism.recompute = Recompute::kNone;
  const PlanResult roomy = MakePlan(request).value();
  const auto peak_bytes = [](const PlanResult& result) {
    int64_t peak = 0;
    for (const PipelineRankPlan& rank : result.plan.pipeline_ranks) {
      peak = std::max(peak, rank.peak_bytes);
    }
    return peak;
  };
  request.cluster = test::ThreeRegions(peak_bytes(roomy) * 4 / 5);
  const PlanResult tight = MakePlan(request).value();
  CHECK(peak_bytes(tight) <= peak_bytes(roomy) * 4 / 5);
  CHECK(tight.prediction.iteration_ns >= roomy.prediction.iteration_ns);

  request.job.search.schedule = ScheduleKind::kInterleaved;
  request.job.parallelism.stages_per_rank = 2;
  request.cluster.links.push_back({"west", "north", 9 * test::kMillisecond, 50e9});
  const PlanResult interleaved = MakePlan(request).value();
  request.cluster = test::ThreeRegions(peak_bytes(interleaved) * 95 / 100);
  request.cluster.links.push_back({"west", "north", 9 * test::kMillisecond, 50e9});
  const absl::Status misfit = MakePlan(request).status();
  CHECK(misfit.code() == absl::StatusCode::kFailedPrecondition);
  CHECK(std::string(misfit.message()).starts_with("the job does not fit with schedule interleaved: pipeline rank "));
}

TEST_CASE("what a kind cannot be planned with is said") {
  const auto message = [](const PlanRequest& request) { return std::string(MakePlan(request).status().message()); };
  PlanRequest request = RequestFor(ScheduleKind::kZbV, LayerSplit::kEven);
  request.method = SearchMethod::kExhaustive;
  CHECK(message(request) == "--search exhaustive proves gpipe, 1f1b, geopipe; leave it out for schedule zb-v");
  request.method = SearchMethod::kGenetic;
  request.fixed_delta_n = {2};
  CHECK(message(request) == "delta_n is given, but schedule zb-v has none; use one of geopipe, geopipe-zb, auto");
  request.job.search.schedule = ScheduleKind::kGeoPipeZb;
  CHECK(MakePlan(request)->plan.delta_n == std::vector<int32_t>{2, 2});
  request = RequestFor(ScheduleKind::kInterleaved, LayerSplit::kEven);
  request.cluster = test::ThreeRegions();
  CHECK(message(request).find("there is no link between \"west\" and \"north\"") != std::string::npos);
  request = RequestFor(ScheduleKind::kInterleaved, LayerSplit::kEven);
  request.job.training.tokens_per_iteration = 4 * 4096;
  request.job.search.micro_batch_size = {1};
  request.job.search.sequence_length = {4096};
  const absl::StatusOr<PlanResult> few = MakePlan(request);  // fewer micro-batches than devices are one group
  INFO(few.status().ToString());
  CHECK(few.ok());
}

TEST_CASE("interleaved has as many stages on a rank as the job says, or as many as are best") {
  PlanRequest request = RequestFor(ScheduleKind::kInterleaved, LayerSplit::kAuto);
  request.job.parallelism.stages_per_rank = 0;
  const PlanResult open = MakePlan(request).value();
  int64_t best_ns = std::numeric_limits<int64_t>::max();
  for (const int32_t per_rank : {2, 3, 4, 5}) {
    CAPTURE(per_rank);
    request.job.parallelism.stages_per_rank = per_rank;
    const PlanResult fixed = MakePlan(request).value();
    CHECK(fixed.plan.Shape() == PipelineShape::Of(StageLayout::kLooped, 8, fixed.plan.micro_batches, per_rank));
    CHECK(Validate(fixed.schedule).ok());
    best_ns = std::min(best_ns, fixed.prediction.iteration_ns);
  }
  CHECK(open.prediction.iteration_ns == best_ns);
}

}  // namespace
}  // namespace geopipe
