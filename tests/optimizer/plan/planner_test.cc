#include "optimizer/plan/planner.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "optimizer/model/plan/plan_costs.h"
#include "optimizer/plan/evaluation/prediction.h"
#include "optimizer/schedule/validate.h"
#include "tests/optimizer/plan/jobs.h"

namespace geopipe {
namespace {

using Catch::Contains;
using test::PaperRequest;

const Baseline* Find(const PlanResult& result, std::string_view schedule, std::string_view comm,
                     std::string_view scope) {
  for (const Baseline& baseline : result.baselines) {
    if (ScheduleKindName(baseline.schedule) == schedule && CommModeName(baseline.comm) == comm &&
        BaselineScopeName(baseline.scope) == scope) {
      return &baseline;
    }
  }
  return nullptr;
}

TEST_CASE("the plan of the paper-shaped job") {
  const PlanResult result = *MakePlan(PaperRequest());
  const Plan& plan = result.plan;
  CHECK(plan.schedule == ScheduleKind::kGeoPipe);
  CHECK(plan.stages.size() == 8);
  CHECK(plan.delta_n.size() == 2);
  CHECK(plan.micro_batch_size * plan.sequence_length * plan.micro_batches == 1 << 20);
  CHECK(plan.SameRecompute() == Recompute::kNone);
  for (const PipelineRankPlan& rank : plan.pipeline_ranks) {
    CHECK(rank.peak_bytes > 0);
    CHECK(rank.peak_bytes <= rank.capacity_bytes);
  }
  CHECK(Validate(result.schedule).ok());
  CHECK(result.prediction.lower_bound_ns <= result.prediction.iteration_ns);
  CHECK(result.prediction.tokens_per_s ==
        Approx((1 << 20) / (static_cast<double>(result.prediction.iteration_ns) / 1e9)));
  // Two crossings, both directions, m messages of b * s * 5120 * 2 bytes: b * s * m are the tokens.
  CHECK(result.prediction.wan_bytes_per_iteration == int64_t{2} * 2 * (1 << 20) * 5120 * 2);
  CHECK(result.search.space_size == 3 * 6 * (81 + 1));
  CHECK(result.search.evaluations > 0);
  CHECK(result.search.best_so_far_ns.back() == result.prediction.iteration_ns);
  CHECK_FALSE(result.search.stopped_early);
}

TEST_CASE("baselines: same and best of every schedule, and the best single site") {
  const PlanResult result = *MakePlan(PaperRequest());
  const int64_t plan_ns = result.prediction.iteration_ns;
  for (const char* scope : {"same", "best"}) {
    for (const auto& [schedule, comm] : {std::pair{"gpipe", "nonblocking"}, std::pair{"1f1b", "blocking"},
                                         std::pair{"1f1b", "nonblocking"}, std::pair{"geopipe", "nonblocking"}}) {
      INFO(scope << " " << schedule << " " << comm);
      const Baseline* baseline = Find(result, schedule, comm, scope);
      REQUIRE(baseline != nullptr);
      CHECK((!baseline->fits || baseline->iteration_ns >= plan_ns));
    }
  }
  const Baseline* same = Find(result, "1f1b", "blocking", "same");
  CHECK(same->micro_batch_size == result.plan.micro_batch_size);
  CHECK(same->sequence_length == result.plan.sequence_length);
  CHECK(same->iteration_ns > plan_ns);
  CHECK(Find(result, "1f1b", "blocking", "best")->iteration_ns <= same->iteration_ns);
  CHECK(Find(result, "1f1b", "nonblocking", "same")->iteration_ns <= same->iteration_ns);
  CHECK(Find(result, "geopipe", "nonblocking", "same")->iteration_ns == plan_ns);
  CHECK_FALSE(Find(result, "gpipe", "nonblocking", "same")->fits);
  const Baseline& single = result.baselines.back();
  CHECK(single.scope == BaselineScope::kSingleSite);
  CHECK(single.site == "north");
  CHECK(single.fits);
  CHECK(single.iteration_ns > plan_ns);
}

TEST_CASE("the same request gives the same result, the seed is part of it") {
  const PlanResult first = *MakePlan(PaperRequest());
  const PlanResult second = *MakePlan(PaperRequest());
  CHECK(first.plan == second.plan);
  CHECK(first.prediction == second.prediction);
  CHECK(first.search.best_so_far_ns == second.search.best_so_far_ns);
  PlanRequest other = PaperRequest();
  other.job.search.seed = 77;
  const PlanResult third = *MakePlan(other);
  CHECK(third.search.seed == 77);
  CHECK(third.plan == first.plan);  // the optimum does not depend on the seed
}

TEST_CASE("rejected alternatives carry their reason") {
  PlanRequest request = PaperRequest();
  request.cluster.links[1].latency_ns = 60 * test::kMillisecond;
  const PlanResult result = *MakePlan(request);
  const auto reason = [&](const std::string& change) {
    for (const RejectedAlternative& alternative : result.search.rejected) {
      if (alternative.change == change) {
        return alternative.reason;
      }
    }
    return std::string("not listed");
  };
  const std::vector<int32_t>& delta_n = result.plan.delta_n;
  REQUIRE(delta_n[1] > 0);
  CHECK_THAT(reason("delta_n " + std::to_string(delta_n[0]) + "," + std::to_string(delta_n[1] - 1)),
             Catch::StartsWith("slower by "));
  CHECK_THAT(reason("delta_n " + std::to_string(delta_n[0]) + "," + std::to_string(delta_n[1] + 1)),
             Catch::StartsWith("slower by ") || Catch::Equals("equally fast, more memory"));
  CHECK_THAT(reason("sequence_length 4096"), Catch::StartsWith("slower by "));
  CHECK_THAT(reason("schedule gpipe"), Contains("needs") && Contains("GiB of 64.0 GiB"));
}

TEST_CASE("a bandwidth that is not given is named where it keeps the search from degrees") {
  PlanRequest request = PaperRequest();
  request.job.parallelism = {};
  request.job.parallelism.tensor = request.job.parallelism.data = 0;
  const auto named = [&] {
    const PlanResult result = *MakePlan(request);
    return std::ranges::any_of(result.search.rejected, [](const RejectedAlternative& alternative) {
      return alternative.change == "tensor, data above 1" &&
             alternative.reason == "site \"east\" does not say its device.intra_node_bandwidth, which they need";
    });
  };
  CHECK_FALSE(named());
  request.cluster.sites[1].device.intra_node_bandwidth_bytes_per_s = 0;
  CHECK(named());
}

TEST_CASE("a fixed ΔN and a named schedule are obeyed") {
  PlanRequest request = PaperRequest();
  request.fixed_delta_n = {3, 1};
  CHECK(MakePlan(request)->plan.delta_n == std::vector<int32_t>{3, 1});
  request.fixed_delta_n = {2};
  CHECK(MakePlan(request)->plan.delta_n == std::vector<int32_t>{2, 2});
  request.fixed_delta_n.clear();
  request.job.search.schedule = ScheduleKind::kOneFOneB;
  request.comm = CommMode::kBlocking;
  const PlanResult plain = *MakePlan(request);
  CHECK(plain.plan.schedule == ScheduleKind::kOneFOneB);
  CHECK(plain.plan.comm == CommMode::kBlocking);
  CHECK(plain.plan.delta_n == std::vector<int32_t>{0, 0});
  CHECK(Find(plain, "geopipe", "nonblocking", "same")->iteration_ns < plain.prediction.iteration_ns);
}

TEST_CASE("placement auto never does worse than a listed order") {
  PlanRequest request = PaperRequest();
  request.job.parallelism.pipeline = 0;
  const int64_t listed_ns = MakePlan(request)->prediction.iteration_ns;
  request.job.placement.sites.clear();
  CHECK(MakePlan(request)->prediction.iteration_ns <= listed_ns);
  // One site alone is better when links are too slow to be worth it.
  for (LinkSpec& link : request.cluster.links) {
    link.bandwidth_bytes_per_s = 1e6;
  }
  const PlanResult alone = *MakePlan(request);
  CHECK(alone.plan.delta_n.empty());
  CHECK(alone.plan.Crossings().empty());
}

TEST_CASE("measured costs replace the model") {
  PlanRequest request = PaperRequest();
  request.profile.emplace();
  for (const SiteSpec& site : request.cluster.sites) {
    for (const int64_t b : request.job.search.micro_batch_size) {
      for (const int64_t s : request.job.search.sequence_length) {
        request.profile->entries.push_back({.site = site.name,
                                            .node = "n",
                                            .device = 0,
                                            .micro_batch_size = b,
                                            .sequence_length = s,
                                            .embedding = {1000, 0, 1000},
                                            .block = {b * s * 1000, b * s * 1000, b * s * 1000},
                                            .head = {1000, 1000, 1000},
                                            .adamw_ns_per_million_parameters = 0});
      }
    }
  }
  const PlanResult result = *MakePlan(request);
  // Time per token is the same for every b and s, so the smallest micro-batch has the smallest bubble.
  CHECK(result.plan.micro_batch_size == 1);
  CHECK(result.plan.sequence_length == 2048);
  CHECK(result.costs.forward_ns[1] == 5 * 2048 * 1000);
  REQUIRE(result.cost_reports.size() == 3);
  CHECK(result.cost_reports[1].site == "east");
  CHECK(result.cost_reports[1].origin == CostOrigin::kMeasured);
  CHECK(result.cost_reports[1].points.size() == 6);
}

TEST_CASE("a ZeRO stage that is left open is the best of them, and of one replica there is none") {
  PlanRequest request = PaperRequest();
  request.method = SearchMethod::kExhaustive;
  request.job.parallelism.tensor = 4;
  request.job.parallelism.data = 2;
  request.job.search.max_delta_n = 1;
  for (SiteSpec& site : request.cluster.sites) {
    site.network = {.bandwidth_bytes_per_s = 1e10, .latency_ns = 5'000};
  }
  // Memory enough for all of what is not divided, for some of it, and hardly for what is.
  for (const int64_t gib : {64, 24, 12}) {
    CAPTURE(gib);
    for (SiteSpec& site : request.cluster.sites) {
      site.device.memory_bytes = gib * test::kGiB;
    }
    std::optional<PlanResult> best;
    for (const int32_t stage : {1, 2, 3, 0}) {
      request.job.parallelism.zero_stage = stage;
      absl::StatusOr<PlanResult> fixed = MakePlan(request);
      if (fixed.ok()) {
        CHECK(fixed->plan.zero_stage == stage);
        const bool is_better = !best.has_value() || fixed->prediction.iteration_ns < best->prediction.iteration_ns;
        best = is_better ? *std::move(fixed) : std::move(best);
      }
    }
    REQUIRE(best.has_value());
    request.job.parallelism.zero_stage.reset();
    const PlanResult open = *MakePlan(request);
    CHECK(open.prediction.iteration_ns == best->prediction.iteration_ns);
    CHECK(open.cluster_bound_ns <= open.prediction.iteration_ns);
  }
  request.job.parallelism.tensor = 8;
  request.job.parallelism.data = 1;
  request.job.parallelism.zero_stage = 2;
  CHECK(MakePlan(request)->plan.zero_stage == 0);
}

TEST_CASE("a profile of some b on one site also serves the others") {
  PlanRequest request = PaperRequest();
  request.job.parallelism.recompute = Recompute::kFull;
  const ExecutionConfig config = MakeExecutionConfig(request.job, 1, 4096, Recompute::kNone);
  const ModelCosts figures = *AnalyticCosts(request.job.model, config, request.cluster.sites[0]);
  request.profile = Profile{};
  request.profile->entries.push_back(
      {.site = "north",
       .node = "n",
       .device = 0,
       .micro_batch_size = 1,
       .sequence_length = 4096,
       .embedding = figures.embedding,
       .block = {2 * figures.block.forward_ns, 2 * figures.block.input_grad_ns, 2 * figures.block.weight_grad_ns},
       .head = figures.head,
       .adamw_ns_per_million_parameters = 0});
  request.cluster.sites[1].device.peak_flops *= 2;
  request.cluster.sites[2].device.kind = "npu-32gb";
  const PlanResult plain = *MakePlan(PaperRequest());
  CHECK(plain.cost_reports.empty());
  request.job.search.micro_batch_size = {2};
  request.job.search.sequence_length = {4096};
  const PlanResult result = *MakePlan(request);
  const auto origin = [&](size_t site) { return result.cost_reports.at(site).origin; };
  CHECK(origin(0) == CostOrigin::kCalibrated);
  CHECK(origin(1) == CostOrigin::kCorrected);
  CHECK(origin(2) == CostOrigin::kAnalytic);
  CHECK(result.cost_reports[0].residuals.points == 1);
  const ExecutionConfig planned = MakeExecutionConfig(request.job, 2, 4096, Recompute::kFull);
  const auto per_layer = [&](int32_t stage) {
    return result.costs.forward_ns[stage] / result.plan.stages[stage].layers.count();
  };
  const auto analytic = [&](size_t site) {
    return AnalyticCosts(request.job.model, planned, request.cluster.sites[site])->block.forward_ns;
  };
  // Stage 0 holds the embedding, stages 3 and 4 are east's.
  CHECK(static_cast<double>(per_layer(1)) == Approx(2.0 * static_cast<double>(analytic(0))).epsilon(0.1));
  CHECK(static_cast<double>(per_layer(3)) == Approx(2.0 * static_cast<double>(analytic(1))).epsilon(1e-6));
  CHECK(per_layer(6) == analytic(2));
  // Full recomputation runs the same forward again.
  CHECK(result.costs.input_grad_ns[1] > result.costs.forward_ns[1]);
}

TEST_CASE("a given plan can be predicted again") {
  PlanRequest request = PaperRequest();
  request.job = JobOnCluster(std::move(request.job), request.cluster);
  const PlanResult result = *MakePlan(request);
  const PipelineCosts costs =
      *CostsOfPlan(request.job, request.cluster, CostSource(request.job, request.cluster, nullptr), result.plan);
  const PlanPrediction predicted = *PredictPlan(request.job, result.plan, costs);
  CHECK(predicted.prediction == result.prediction);
  CHECK(predicted.costs == result.costs);
  CHECK(predicted.schedule == result.schedule);
  CHECK(predicted.fits);
  Plan wrong = result.plan;
  wrong.micro_batches -= 1;
  CHECK_THAT(std::string(PredictPlan(request.job, wrong, costs).status().message()),
             Contains("but training.tokens_per_iteration is 1048576"));
}

TEST_CASE("contradictions are invalid, not infeasible, a caller can stop the search") {
  PlanRequest request = PaperRequest();
  request.job.training.tokens_per_iteration = 1'000'000;
  absl::Status status = MakePlan(request).status();
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(status.message()), Contains("training.tokens_per_iteration 1000000") && Contains("999424"));
  request = PaperRequest();
  request.job.placement.sites = {"north", "south"};
  CHECK(MakePlan(request).status().code() == absl::StatusCode::kInvalidArgument);
  request = PaperRequest();
  request.should_stop = [] { return true; };
  CHECK(MakePlan(request)->search.stopped_early);
}

TEST_CASE("a search that is stopped before it found anything that fits was stopped, it is not infeasible") {
  PlanRequest request = PaperRequest();
  request.cluster = test::ThreeRegions(9 * test::kGiB / 2);
  request.method = SearchMethod::kExhaustive;  // which comes to other recompute modes last
  REQUIRE(MakePlan(request)->plan.SameRecompute() != Recompute::kNone);
  request.should_stop = [] { return true; };
  const absl::Status status = MakePlan(request).status();
  CHECK(status.code() == absl::StatusCode::kDeadlineExceeded);
  CHECK_THAT(std::string(status.message()), Contains("stopped") && Contains("before it found a plan that fits"));
}

// A small job on five sites of one device each, with everything open.
PlanRequest OpenRequest() {
  PlanRequest request = PaperRequest();
  request.refine = true;
  request.baselines = false;
  request.job.model.num_hidden_layers = 6;
  request.job.training.tokens_per_iteration = 1 << 14;
  request.job.parallelism = {};
  request.job.search.schedule = ScheduleKind::kAuto;
  request.job.search.micro_batch_size = {1};
  request.job.search.sequence_length = {2048};
  request.job.placement.sites.clear();
  const SiteSpec site = request.cluster.sites.front();
  request.cluster = {};
  for (const char* name : {"a", "b", "c", "d", "e"}) {
    SiteSpec& added = request.cluster.sites.emplace_back(site);
    added.name = name;
    added.nodes = added.devices_per_node = 1;
    added.device.peak_flops *= 1 + 0.1 * static_cast<double>(request.cluster.sites.size());
    for (size_t other = 0; other + 1 < request.cluster.sites.size(); ++other) {
      request.cluster.links.push_back({request.cluster.sites[other].name, name, 5 * test::kMillisecond, 50e9});
    }
  }
  return request;
}

TEST_CASE("progress is told by the caller's thread alone, never goes back, and ends with the plan") {
  PlanRequest request = PaperRequest();
  SECTION("of a search by genome") {}
  SECTION("of a search of everything") { request = OpenRequest(); }
  SECTION("of a kind that another stands in for") { request.job.search.schedule = ScheduleKind::kZbH1; }
  SECTION("of a given schedule") {
    request.job.search.schedule = ScheduleKind::kAuto;
    request.schedule = MakeSchedule(ScheduleKind::kOneFOneB, PipelineShape::Linear(8, 64)).value();
  }
  const PlanResult silent = *MakePlan(request);

  bool in_parallel = false;
  request.parallel_for = [&](int64_t count, const std::function<void(int64_t)>& work) {
    in_parallel = true;
    for (int64_t i = 0; i < count; ++i) {
      work(i);
    }
    in_parallel = false;
  };
  std::vector<std::pair<int64_t, int64_t>> told;
  request.progress = [&](int64_t evaluations, int64_t best_ns) {
    CHECK_FALSE(in_parallel);
    told.emplace_back(evaluations, best_ns);
  };
  const PlanResult result = *MakePlan(request);
  REQUIRE_FALSE(told.empty());
  for (size_t i = 1; i < told.size(); ++i) {
    CHECK(told[i].first >= told[i - 1].first);
    CHECK((told[i - 1].second == 0 || (told[i].second != 0 && told[i].second <= told[i - 1].second)));
  }
  CHECK(told.back().first == result.search.evaluations);
  CHECK(told.back().second == result.prediction.iteration_ns);
  CHECK(result.plan == silent.plan);
  CHECK(result.schedule == silent.schedule);
  CHECK(result.prediction.iteration_ns == silent.prediction.iteration_ns);
  CHECK(result.search.evaluations == silent.search.evaluations);
}

}  // namespace
}  // namespace geopipe
