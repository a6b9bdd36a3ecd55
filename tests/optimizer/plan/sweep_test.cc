#include "optimizer/plan/sweep.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "optimizer/model/groups/node_groups.h"
#include "tests/optimizer/plan/jobs.h"

namespace geopipe {
namespace {

struct KneeCase {
  std::string name;
  std::vector<int64_t> iteration_ns;
  std::optional<size_t> knee;
};

TEST_CASE("the knee is the first value from which on all lie within one percent of each other") {
  const KneeCase row = GENERATE(values<KneeCase>({
      {"nothing", {}, std::nullopt},
      {"one value shows nothing", {100'000}, std::nullopt},
      {"all equal", {100'000, 100'000, 100'000}, 0},
      {"a fall, then flat", {200'000, 150'000, 100'500, 100'000, 100'000}, 2},
      {"just within", {100'999, 100'000}, 0},
      {"one percent is too much", {101'000, 100'000}, std::nullopt},
      {"the last step still helps", {120'000, 110'000, 100'000}, std::nullopt},
      {"small steps add up", {102'400, 101'600, 100'800, 100'000}, 2},
      {"a bump after the flat part", {100'000, 100'000, 105'000, 104'900}, 2},
      {"points without a plan are passed over", {150'000, 0, 100'100, 0, 100'000, 0}, 2},
      {"one plan among none", {0, 100'000, 0}, std::nullopt},
  }));
  INFO(row.name);
  CHECK(KneeIndex(row.iteration_ns) == row.knee);
}

TEST_CASE("values in equal ratios, or whole numbers for ΔN") {
  const SweepAxis bandwidth = MakeSweepAxis(SweepKey::kBandwidth, 1e9, 1e12, 4).value();
  REQUIRE(bandwidth.values.size() == 4);
  CHECK(bandwidth.values[1] == Approx(1e10));
  CHECK(bandwidth.values[3] == 1e12);
  CHECK(MakeSweepAxis(SweepKey::kBandwidth, 1e9, 1e12, 0)->values.size() == 13);
  CHECK(MakeSweepAxis(SweepKey::kLatency, 1, 1000, 4)->values == std::vector<double>{1, 10, 100, 1000});
  CHECK(MakeSweepAxis(SweepKey::kLatency, 7, 7, 0)->values == std::vector<double>{7});
  CHECK(MakeSweepAxis(SweepKey::kLatency, 1, 3, 10)->values == std::vector<double>{1, 2, 3});  // nanoseconds are whole
  CHECK(MakeSweepAxis(SweepKey::kDeltaN, 0, 3, 0)->values == std::vector<double>{0, 1, 2, 3});
  CHECK(MakeSweepAxis(SweepKey::kDeltaN, 0, 100, 3)->values == std::vector<double>{0, 50, 100});
  CHECK(MakeSweepAxis(SweepKey::kDeltaN, 0, 2, 9)->values == std::vector<double>{0, 1, 2});
}

TEST_CASE("ranges that are none are refused") {
  using Row = std::tuple<SweepKey, double, double, int32_t, std::string>;
  const auto [key, low, high, steps, message] = GENERATE(values<Row>({
      {SweepKey::kBandwidth, 2e9, 1e9, 0, "the first value is above the last"},
      {SweepKey::kLatency, 0, 1e6, 0, "cannot begin at a latency of 0"},
      {SweepKey::kLatency, 1, 1e6, 1, "1 steps; there may be from 2 to 200"},
      {SweepKey::kLatency, 1, 1e6, 201, "201 steps; there may be from 2 to 200"},
      {SweepKey::kDeltaN, 0, 1000, 0, "1001 values are more than 200; say how many with --steps"},
  }));
  const auto axis = MakeSweepAxis(key, low, high, steps);
  CHECK(axis.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(axis.status().message()), Catch::Contains(message));
}

TEST_CASE("a sweep of bandwidth plans every point, counts them, and saves what it says") {
  SweepRequest request = test::PaperSweep({MakeSweepAxis(SweepKey::kBandwidth, 1.25e9, 1e11, 4).value()});
  std::vector<int64_t> progress;
  request.progress = [&](int64_t done, int64_t total) {
    progress.push_back(done);
    CHECK(total == 4);
  };
  const Sweep sweep = RunSweep(request).value();
  CHECK(progress == std::vector<int64_t>{0, 1, 2, 3});
  REQUIRE(sweep.points.size() == 4);
  for (const SweepPoint& point : sweep.points) {
    const SweepResult& result = point.results.front();
    REQUIRE(result.feasible);
    CHECK(result.prediction.lower_bound_ns <= result.prediction.iteration_ns);
    CHECK(result.same.micro_batch_size == result.plan.micro_batch_size);
    CHECK(result.same.sequence_length == result.plan.sequence_length);
    CHECK(result.best.iteration_ns <= result.same.iteration_ns);
    CHECK(result.Gain() >= result.GainOverBest());
    CHECK(result.BubbleReduction() >= 0);
  }
  CHECK(sweep.points.front().results.front().prediction.iteration_ns >=
        sweep.points.back().results.front().prediction.iteration_ns);
  // The point is the plan that the same links would get by themselves.
  PlanRequest same = request.base;
  for (LinkSpec& link : same.cluster.links) {
    link.bandwidth_bytes_per_s = 1.25e9;
  }
  CHECK(MakePlan(same)->plan == sweep.points.front().results.front().plan);
  const SweepSummary summary = Summarize(sweep, 0);
  CHECK(summary.feasible == 4);
  CHECK(summary.greatest_point == 0);
  CHECK(summary.greatest_bubble_reduction == sweep.points[0].results[0].BubbleReduction());
  CHECK(summary.mean_gain >= summary.mean_gain_over_best);
}

TEST_CASE("a sweep sets the links between sites, not the networks inside them") {
  SweepRequest request = test::PaperSweep({MakeSweepAxis(SweepKey::kLatency, 4e7, 4e7, 1).value()});
  request.base.cluster = test::RegionsOfGroups();
  request.base.job.placement.sites = {"north", "west"};
  request.base.job.parallelism.tensor = 4;
  request.base.job.parallelism.pipeline = 0;
  PlanRequest same = request.base;
  for (LinkSpec& link : same.cluster.links) {
    link.latency_ns = link.inside() ? link.latency_ns : 40'000'000;
  }
  const PlanResult alone = MakePlan(same).value();
  const SweepResult swept = RunSweep(request)->points.front().results.front();
  CHECK(swept.plan == alone.plan);
  CHECK(swept.prediction == alone.prediction);
  std::erase_if(request.base.cluster.sites, [](const SiteSpec& site) { return SiteOfGroup(site.name) == "west"; });
  request.base.cluster.links = LinksOfGroups(request.base.cluster.sites, {});
  request.base.job.placement.sites = {"north"};
  CHECK(RunSweep(request).status().message() == "the topology has no links whose bandwidth or latency could be swept");
}

TEST_CASE("a grid has a point for every pair, and a knee for every row") {
  const Sweep sweep = RunSweep(test::PaperSweep({MakeSweepAxis(SweepKey::kLatency, 1e6, 5e7, 2).value(),
                                                 MakeSweepAxis(SweepKey::kBandwidth, 1.25e9, 1e11, 3).value()}))
                          .value();
  REQUIRE(sweep.points.size() == 6);
  CHECK(sweep.At(1, 2).at == std::vector<double>{5e7, 1e11});
  CHECK(sweep.At(1, 0).results.front().prediction.iteration_ns >=
        sweep.At(0, 0).results.front().prediction.iteration_ns);
}

TEST_CASE("a sweep that asks for it has the alternatives of every point, and the fastest is the least of their times") {
  SweepRequest request = test::PaperSweep({MakeSweepAxis(SweepKey::kLatency, 1e6, 5e7, 2).value(),
                                           MakeSweepAxis(SweepKey::kBandwidth, 1.25e8, 1e12, 4).value()});
  CHECK_FALSE(RunSweep(request)->points.front().alternatives.has_value());
  request.alternatives = true;
  std::vector<int64_t> progress;
  request.progress = [&](int64_t done, int64_t total) {
    progress.push_back(done);
    CHECK(total == 16);
  };
  const Sweep sweep = RunSweep(request).value();
  CHECK(progress.size() == 16);
  CHECK(progress.back() == 15);
  std::set<AlternativeKind> winners;
  for (const SweepPoint& point : sweep.points) {
    const Alternatives& alternatives = point.alternatives.value();
    CHECK(alternatives.Of(AlternativeKind::kPipeline).iteration_ns == point.results[0].prediction.iteration_ns);
    const Lead lead = LeadOf(alternatives).value();
    winners.insert(lead.kind);
    CHECK(lead.kind != AlternativeKind::kLocalSteps);
    for (const Alternative& each : alternatives.all) {
      if (each.found() && !each.changes_training()) {
        CHECK(alternatives.Of(lead.kind).iteration_ns <= each.iteration_ns);
      }
    }
    // A point equals the plan for the same links alone.
    PlanRequest same = request.base;
    for (LinkSpec& link : same.cluster.links) {
      link.latency_ns = static_cast<int64_t>(point.at[0]);
      link.bandwidth_bytes_per_s = point.at[1];
    }
    SitePlanner sites(same);
    const PlanResult plan = *MakePlan(same);
    const Alternatives alone = FindAlternatives(sites, same.cluster, &plan);
    CHECK(alone.Of(AlternativeKind::kSiteReplicas).iteration_ns ==
          alternatives.Of(AlternativeKind::kSiteReplicas).iteration_ns);
  }
  CHECK(winners.size() == 3);  // one site over thin links, the pipeline, replicas over wide ones
}

TEST_CASE("ΔN that memory has no room for is a point without a plan, and no room at all an error") {
  SweepRequest request = test::PaperSweep({MakeSweepAxis(SweepKey::kDeltaN, 0, 400, 3).value()});
  request.base.job.parallelism.recompute = Recompute::kNone;
  const Sweep sweep = RunSweep(request).value();
  CHECK(sweep.points[0].results[0].feasible);
  CHECK(sweep.points[0].results[0].plan.delta_n == std::vector<int32_t>{0, 0});
  CHECK_FALSE(sweep.points[2].results[0].feasible);
  CHECK(sweep.points[2].results[0].reason.find("GiB") != std::string::npos);
  request.base.cluster = test::ThreeRegions(test::kGiB);
  CHECK(RunSweep(request).status().code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("a point whose search was stopped is a point without a plan, and leaves the others") {
  SweepRequest request = test::PaperSweep({MakeSweepAxis(SweepKey::kDeltaN, 0, 1, 0).value()});
  request.base.cluster = test::ThreeRegions(9 * test::kGiB / 2);
  request.base.method = SearchMethod::kExhaustive;  // which comes to the recompute mode that fits last
  bool stops = false;
  request.progress = [&](int64_t done, int64_t) { stops = done == 0; };
  request.base.should_stop = [&] { return stops; };
  const absl::StatusOr<Sweep> sweep = RunSweep(request);
  REQUIRE(sweep.ok());
  CHECK_FALSE(sweep->points[0].results[0].feasible);
  CHECK(sweep->points[0].results[0].reason.find("stopped") != std::string::npos);
  CHECK(sweep->points[1].results[0].feasible);
  request.progress = [&](int64_t, int64_t) { stops = true; };
  CHECK(RunSweep(request).status().code() == absl::StatusCode::kDeadlineExceeded);
}

TEST_CASE("less latency is better, so its knee is the greatest that still does") {
  const Sweep sweep = RunSweep(test::PaperSweep({MakeSweepAxis(SweepKey::kLatency, 1e5, 1e9, 5).value()})).value();
  const std::optional<size_t> knee = KneeOf(sweep);
  REQUIRE(knee.has_value());
  const auto iteration_ns = [&](size_t i) {
    return static_cast<double>(sweep.points[i].results[0].prediction.iteration_ns);
  };
  CHECK(iteration_ns(*knee) / iteration_ns(0) - 1 < kKneeTolerance);
  REQUIRE(*knee + 1 < sweep.points.size());
  CHECK(iteration_ns(*knee + 1) / iteration_ns(0) - 1 >= kKneeTolerance);
}

TEST_CASE("requests that contradict themselves are refused") {
  const SweepAxis latency = MakeSweepAxis(SweepKey::kLatency, 1e6, 2e6, 2).value();
  const auto code = [](const SweepRequest& request) { return RunSweep(request).status().code(); };
  CHECK(code(test::PaperSweep({})) == absl::StatusCode::kInvalidArgument);
  CHECK(code(test::PaperSweep({latency, latency})) == absl::StatusCode::kInvalidArgument);
  CHECK(code(test::PaperSweep({latency, latency, latency})) == absl::StatusCode::kInvalidArgument);
  SweepRequest unlinked = test::PaperSweep({latency});
  unlinked.base.cluster.links.clear();
  CHECK(code(unlinked) == absl::StatusCode::kInvalidArgument);
  SweepRequest without = test::PaperSweep({MakeSweepAxis(SweepKey::kDeltaN, 0, 1, 0).value()});
  without.schedules = {"1f1b"};
  CHECK(code(without) == absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace geopipe
