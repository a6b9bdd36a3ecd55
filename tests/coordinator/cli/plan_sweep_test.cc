#include "coordinator/cli/plan_sweep.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace geopipe {
namespace {

TEST_CASE("a sweep names a figure and its range") {
  const auto axes = ParseSweeps(std::vector<std::string>{"latency=0.5ms..50ms", "bandwidth=10Gbps..400Gbps"}, "3,4");
  REQUIRE(axes.ok());
  REQUIRE(axes->size() == 2);
  CHECK(axes->at(0).key == SweepKey::kLatency);
  CHECK(axes->at(0).values == std::vector<double>{5e5, 5e6, 5e7});
  CHECK(axes->at(1).key == SweepKey::kBandwidth);
  CHECK(axes->at(1).values.size() == 4);
  CHECK(axes->at(1).values.back() == 5e10);
  const auto delta_n = ParseSweeps(std::vector<std::string>{"delta_n=0..4"}, "");
  REQUIRE(delta_n.ok());
  CHECK(delta_n->at(0).values == std::vector<double>{0, 1, 2, 3, 4});
}

TEST_CASE("a wrong sweep is one sentence that begins with the flag") {
  using Row = std::tuple<std::vector<std::string>, std::string, std::string>;
  const auto [texts, steps, message] = GENERATE(values<Row>({
      {{"bandwidth"}, "", "--sweep bandwidth: it must name a figure, its first value and its last"},
      {{"bandwidth=10Gbps"}, "", "--sweep bandwidth=10Gbps: it must name a figure"},
      {{"width=1..2"}, "", "--sweep width=1..2: 'width' cannot be swept; use bandwidth, latency or delta_n"},
      {{"bandwidth=10..400Gbps"}, "", "--sweep bandwidth=10..400Gbps: "},
      {{"bandwidth=-1Gbps..400Gbps"}, "", "--sweep bandwidth=-1Gbps..400Gbps: "},
      {{"latency=5ms..nan"}, "", "--sweep latency=5ms..nan: "},
      {{"latency=50ms..5ms"}, "", "--sweep latency=50ms..5ms: the first value is above the last"},
      {{"delta_n=-1..4"}, "", "--sweep delta_n=-1..4: ΔN is -1"},
      {{"delta_n=0..9999999"}, "", "--sweep delta_n=0..9999999: ΔN is 9999999"},
      {{"delta_n=0..4", "delta_n=0..4"}, "", "--sweep delta_n=0..4: this figure is swept already"},
      {{"delta_n=0..4", "latency=1ms..2ms", "bandwidth=1Gbps..2Gbps"}, "", "--sweep bandwidth=1Gbps..2Gbps: a third"},
      {{"delta_n=0..4"}, "0", "--steps 0: '0' is not a number from 1 on"},
      {{"delta_n=0..4"}, "x", "--steps x: 'x' is not a number from 1 on"},
      {{"delta_n=0..4"}, "2,", "--steps 2,: '' is not a number from 1 on"},
      {{"delta_n=0..4"}, "2,3", "--steps 2,3: 2 numbers for 1 sweeps"},
      {{"latency=1ms..2ms"}, "1000", "--sweep latency=1ms..2ms: 1000 steps"},
  }));
  const auto axes = ParseSweeps(texts, steps);
  CHECK(axes.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(axes.status().message()), Catch::StartsWith(message));
  CHECK_THAT(std::string(axes.status().message()), !Catch::Contains("\n"));
}

SweepResult Result(int64_t iteration_ns) {
  SweepResult result;
  result.feasible = true;
  result.plan.micro_batch_size = 2;
  result.plan.sequence_length = 2048;
  result.plan.delta_n = {1, 2};
  result.prediction = {.iteration_ns = iteration_ns, .bubble_ratio = 0.1, .lower_bound_ns = 900'000'000};
  const auto baseline = [](int64_t b, int64_t time_ns, double bubble_ratio) {
    return Baseline{.site = "",
                    .micro_batch_size = b,
                    .sequence_length = 2048,
                    .iteration_ns = time_ns,
                    .bubble_ratio = bubble_ratio};
  };
  result.same = baseline(2, 2 * iteration_ns, 0.4);
  result.best = baseline(4, iteration_ns * 5 / 4, 0.25);
  return result;
}

Sweep TwoPoints() {
  Sweep sweep;
  sweep.axes = {{SweepKey::kLatency, {1e6, 2e6, 4e6}}};
  sweep.schedules = {"geopipe"};
  sweep.points = {{{1e6}, {Result(1'000'000'000)}}, {{2e6}, {Result(1'004'000'000)}}, {{4e6}, {SweepResult{}}}};
  sweep.points[2].results[0].reason = "too small";
  return sweep;
}

TEST_CASE("the table shows the plan beside 1F1B, marks the knee and sums up") {
  const std::string text = SweepText(TwoPoints());
  CHECK_THAT(text,
             Catch::StartsWith("LATENCY  B     S  PLAN ΔN  ITERATION  BUBBLE  1F1B SAME  BUBBLE  BUBBLE SAVED  TIME "
                               "SAVED  1F1B BEST  TIME SAVED\n"
                               "   1 ms  2  2048      1,2    1.000 s  10.0 %    2.000 s  40.0 %        75.0 %      "
                               "50.0 %    1.250 s      20.0 %\n"));
  CHECK_THAT(text, Catch::Contains("    1.255 s      20.0 %  < knee\n"));
  CHECK_THAT(text,
             Catch::Contains("          -           -  no plan\n\n"
                             "1F1B BEST: blocking 1F1B with the b, s and layers that suit it at each point, the "
                             "baseline of a sweep\n"
                             "1F1B SAME: with the b, s and layers of that row's plan, so it may also change where the "
                             "plan does\n"
                             "knee: latency 2 ms; less saves less than 1 % of the iteration\n"
                             "geopipe saves at most 75.00 % of blocking 1F1B's bubble (latency 1 ms) and on average "
                             "50.00 % of its iteration time at the same b, s and layers; 20.00 % on average against "
                             "1F1B at its own best b and s\n"));
  CHECK_THAT(text, Catch::EndsWith("no plan at latency 4 ms: too small\n"));
}

TEST_CASE(
    "the knees of a grid's rows share a line where they are the same, and ΔN has a column where it means something") {
  Sweep sweep = TwoPoints();
  sweep.points[2].results[0] = Result(1'005'000'000);
  sweep.axes.insert(sweep.axes.begin(), SweepAxis{SweepKey::kBandwidth, {1.25e9, 2.5e9}});
  const std::vector<SweepPoint> row = sweep.points;
  sweep.points.insert(sweep.points.end(), row.begin(), row.end());
  for (SweepPoint& point : sweep.points) {
    point.at.insert(point.at.begin(), 1.25e9);
  }
  CHECK_THAT(SweepText(sweep),
             Catch::Contains("\nknee: latency 4 ms or more at every bandwidth; less saves less than 1 % "
                             "of the iteration\ngeopipe saves at most "));
  CHECK(SweepText(sweep).find("PLAN ΔN") != std::string::npos);
  for (SweepPoint& point : sweep.points) {
    point.results[0].plan.schedule = ScheduleKind::kOneFOneB;
  }
  CHECK(SweepText(sweep).find("PLAN ΔN") == std::string::npos);
}

TEST_CASE("CSV has a line per point in base units, and JSON the same") {
  const std::string csv = SweepCsv(TwoPoints());
  CHECK_THAT(csv, Catch::StartsWith("latency_s,searched,schedule,micro_batch_size,"));
  CHECK_THAT(csv,
             Catch::Contains("\n0.001,geopipe,geopipe,2,2048,1 2,1,0.1,0.9,2,0.4,4,2048,1.25,0.25,0.75,0.5,0.2,0,,,,,\n"
                             "0.002,geopipe,geopipe,2,2048,1 2,1.004,"));
  CHECK_THAT(csv, Catch::EndsWith(",1,,,,,\n0.004,geopipe,,,,,,,,,,,,,,,,,,,,,,\n"));
  size_t at = 0;
  while (at < csv.size()) {
    const size_t end = csv.find('\n', at);
    const std::string line = csv.substr(at, end - at);
    CHECK(std::count(line.begin(), line.end(), ',') == 23);
    at = end + 1;
  }
  const Json json = SweepToJson(TwoPoints());
  CHECK(json["axes"][0]["values"] == Json::array({0.001, 0.002, 0.004}));
  CHECK(json["points"][0]["results"][0]["bubble_reduction"] == 0.75);
  CHECK(json["points"][2]["results"][0]["reason"] == "too small");
  CHECK(json["knees"] == Json::array({0.002}));
  CHECK(json["summary"][0]["mean_gain"] == 0.5);
}

TEST_CASE("the alternatives of every point are columns and fields, and the fastest is the least of their times") {
  Sweep sweep = TwoPoints();
  sweep.points.resize(1);
  sweep.axes[0].values.resize(1);
  Alternatives& alternatives = sweep.points[0].alternatives.emplace();
  for (const auto& [kind, milliseconds] :
       {std::pair(AlternativeKind::kSingleSite, 2000), std::pair(AlternativeKind::kPipeline, 1000),
        std::pair(AlternativeKind::kSiteReplicas, 800), std::pair(AlternativeKind::kLocalSteps, 500)}) {
    alternatives.all.push_back({.kind = kind, .iteration_ns = int64_t{1'000'000} * milliseconds});
  }
  CHECK_THAT(SweepCsv(sweep), Catch::Contains(",knee,single_site_iteration_s,site_replicas_iteration_s,"
                                              "local_steps_iteration_s,fastest,fastest_saves\n"));
  CHECK_THAT(SweepCsv(sweep), Catch::EndsWith(",0,2,0.8,0.5,site-replicas,0.2\n"));
  const Json point = SweepToJson(sweep)["points"][0];
  CHECK(point["alternatives_s"] ==
        Json({{"single-site", 2.0}, {"pipeline", 1.0}, {"site-replicas", 0.8}, {"local-steps", 0.5}}));
  CHECK(point["fastest"] == "site-replicas");
  CHECK(point["fastest_saves"].get<double>() == Approx(0.2));
  CHECK_THAT(SweepText(sweep), Catch::EndsWith("fastest: replica per site everywhere\n"));
}

}  // namespace
}  // namespace geopipe
