#include "optimizer/plan/report/plan_figures.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "optimizer/plan/report/evaluation_time.h"
#include "optimizer/schedule/schedule_table.h"
#include "tests/optimizer/plan/jobs.h"

namespace geopipe {
namespace {

PlanResult Planned(const JobSpec& job, const ClusterSpec& cluster) {
  PlanRequest request;
  request.job = job;
  request.cluster = cluster;
  absl::StatusOr<PlanResult> result = MakePlan(request);
  INFO(result.status().ToString());
  REQUIRE(result.ok());
  return *std::move(result);
}

TEST_CASE("model FLOPs are six per parameter of a product and token, and attention's") {
  const JobSpec job = test::Llama13bJob();
  const ClusterSpec cluster = test::ThreeRegions();
  const PlanResult result = Planned(job, cluster);
  const PlanFigures figures = FiguresOf(job, cluster, result);
  // Llama-2 13B: h 5120, intermediate 13824, 40 layers, vocabulary 32000.
  const double h = 5120;
  const double parameters = 40 * (4 * h * h + 3 * h * 13824) + h * 32'000;
  const double tokens = 1 << 20;
  const auto s = static_cast<double>(result.plan.sequence_length);
  // Blocked attention: half of two products forward and of five backward.
  CHECK(figures.model_flops == Approx(tokens * (6 * parameters + 7 * 40 * h * s)).epsilon(1e-9));

  const double iteration_s = static_cast<double>(result.prediction.iteration_ns) / 1e9;
  CHECK(figures.flops_per_device_per_s == Approx(figures.model_flops / iteration_s / 64));
  CHECK(figures.mfu == Approx(figures.flops_per_device_per_s / 320e12));
  CHECK(static_cast<double>(figures.work_ns) / 1e9 == Approx(figures.model_flops / (64 * 320e12 * 0.5)));
  CHECK(figures.work_ns < result.prediction.iteration_ns);
  CHECK(figures.job_s == Approx(1000 * iteration_s));
  CHECK(figures.device_hours == Approx(64 * figures.job_s / 3600));
  CHECK(figures.tokens_per_day == Approx(tokens / iteration_s * 86'400));

  // Each crossing carries every micro-batch's activations and gradients, b * s * h of two bytes.
  REQUIRE(figures.links.size() == 2);
  CHECK(figures.links[0].site_a == "north");
  CHECK(figures.links[1].site_b == "west");
  CHECK(figures.links[0].bytes_per_iteration == static_cast<int64_t>(tokens * h * 2));
  CHECK(figures.links[0].utilisation == Approx(tokens * h * 2 / 50e9 / iteration_s));
}

TEST_CASE("evaluations cost forwards, or the time in which the slots of a crossing come back") {
  JobSpec job = test::Llama13bJob();
  ClusterSpec cluster = test::ThreeRegions();
  const PlanResult result = Planned(job, cluster);
  CHECK(FiguresOf(job, cluster, result).evaluation_ns == 0);
  const double training_s = FiguresOf(job, cluster, result).job_s;
  job.evaluation = {.every = 300, .data = job.data, .iterations = 5};
  job.evaluation.data.paths = {"/validation"};
  const PlanFigures figures = FiguresOf(job, cluster, result);
  // Not longer than so many iterations, and not shorter than the forwards of the busiest device.
  int64_t forwards_ns = 0;
  for (const int64_t forward_ns : result.costs.forward_ns) {
    forwards_ns = std::max(forwards_ns, forward_ns * result.plan.micro_batches);
  }
  CHECK(figures.evaluation_ns >= 5 * forwards_ns);
  CHECK(figures.evaluation_ns < 5 * result.prediction.iteration_ns);
  // After 300, 600, 900 and all 1000 iterations.
  CHECK(figures.job_s == Approx(training_s + 4 * static_cast<double>(figures.evaluation_ns) / 1e9));
  CHECK(figures.evaluation_share == Approx(1 - training_s / figures.job_s));

  PlanResult far = result;
  for (BoundaryCost& boundary : far.costs.boundaries) {
    boundary.latency_ns += boundary.crosses ? 10'000'000'000 : 0;
  }
  CHECK(EvaluationPassNs(far) > 10 * EvaluationPassNs(result));
}

TEST_CASE("a pass of evaluation without links takes the slowest stage's forwards") {
  PlanResult result;
  result.plan.micro_batches = 6;
  result.costs.shape = PipelineShape::Linear(3, 6);
  result.costs.forward_ns = {10, 30, 20};
  result.costs.input_grad_ns = {20, 60, 40};
  result.costs.boundaries.resize(2);
  result.schedule = *MakeSchedule(ScheduleKind::kOneFOneB, result.costs.shape, std::vector<int32_t>(2, 0));
  CHECK(EvaluationPassNs(result) == 6 * 30);
  // Boundary 1 has two slots: a forward of 30 ns and a round trip of 100 ns for two micro-batches.
  result.costs.boundaries[1].latency_ns = 45;
  result.costs.boundaries[1].serialization_ns = 10;
  CHECK(EvaluationPassNs(result) == 6 * 130 / 2);
}

TEST_CASE("devices that stay idle are counted, with the reason") {
  JobSpec job = test::Llama13bJob();
  job.parallelism.pipeline = 0;
  ClusterSpec cluster = test::ThreeRegions();
  cluster.sites.push_back({.name = "moon", .nodes = 2, .devices_per_node = 8, .device = cluster.sites[0].device});
  SECTION("sites that the job does not name") {
    const PlanFigures figures = FiguresOf(job, cluster, Planned(job, cluster));
    CHECK(figures.devices() == 80);
    CHECK(figures.used() == 64);
    CHECK(figures.sites[3] == SiteUse{"moon", 16, 0, "placement.sites does not name it"});
  }
  SECTION("a site without a link") {
    job.placement.sites.clear();
    const PlanFigures figures = FiguresOf(job, cluster, Planned(job, cluster));
    CHECK(figures.sites[3] == SiteUse{"moon", 16, 0, "no link of the topology leads to it from the sites of the plan"});
  }
  SECTION("more devices than layers") {
    job.model.num_hidden_layers = 6;
    const PlanFigures figures = FiguresOf(job, cluster, Planned(job, cluster));
    CHECK(figures.used() == 48);
    CHECK(figures.sites[0].reason == "every layer already has a stage of its own");
  }
  SECTION("nodes that tensor ranks do not fill") {
    for (SiteSpec& site : cluster.sites) {
      site.devices_per_node = 9;
    }
    job.parallelism.tensor = 4;
    const PlanFigures figures = FiguresOf(job, cluster, Planned(job, cluster));
    CHECK(figures.sites[0] == SiteUse{"north", 27, 24, "tensor 4 leaves 1 of the 9 devices of a node"});
  }
  SECTION("a site whose devices say no figures") {
    PlanResult result = Planned(job, cluster);
    cluster.sites[3].device.peak_flops = 0;
    const PlanFigures figures = FiguresOf(job, cluster, result);
    CHECK(figures.mfu == 0);
    CHECK(figures.work_ns == 0);
  }
}

}  // namespace
}  // namespace geopipe
