#include "coordinator/cli/render/sweep_svg.h"

#include <catch2/catch.hpp>
#include <limits>
#include <string>

#include "coordinator/cli/render/heat_map.h"
#include "tests/optimizer/plan/jobs.h"
#include "tests/support/svg_check.h"

namespace geopipe {
namespace {

using test::CheckSvg;
using test::CountOf;

TEST_CASE("a sweep of one figure is a picture of lines that name themselves") {
  const Sweep sweep =
      RunSweep(test::PaperSweep({MakeSweepAxis(SweepKey::kBandwidth, 1.25e9, 1e11, 4).value()})).value();
  const std::string svg = SweepToSvg(sweep, "a & b");
  CheckSvg(svg);
  CHECK(CountOf(svg, "a &amp; b") == 2);
  CHECK(CountOf(svg, ">geopipe</text>") == 2);
  CHECK(CountOf(svg, ">geopipe, 1F1B at its best b and s</text>") == 1);
  CHECK(CountOf(svg, ">iteration time saved against blocking 1F1B, %</text>") == 1);
  CHECK(CountOf(svg, ">1F1B blocking, same b and s</text>") == 2);
  CHECK(CountOf(svg, ">lower bound at geopipe's b and s</text>") == 1);
  CHECK(CountOf(svg, "bandwidth of every link, Gbps (logarithmic)") == 1);
  CHECK(CountOf(svg, "knee: ") == (KneeOf(sweep).has_value() ? 3 : 0));
}

TEST_CASE("a grid is two heat maps with an outline for every row's knee") {
  const Sweep sweep = RunSweep(test::PaperSweep({MakeSweepAxis(SweepKey::kLatency, 1e6, 5e7, 2).value(),
                                                 MakeSweepAxis(SweepKey::kBandwidth, 1.25e9, 1e11, 3).value()}))
                          .value();
  const std::string svg = SweepToSvg(sweep, "grid");
  CheckSvg(svg);
  CHECK(CountOf(svg, "<rect x=") == 2 * 6);
  const size_t knees = (KneeOf(sweep, 0).has_value() ? 1 : 0) + (KneeOf(sweep, 1).has_value() ? 1 : 0);
  CHECK(CountOf(svg, "<rect class=\"k\"") == 2 * knees);
}

TEST_CASE("a point without a plan leaves the picture whole") {
  SweepRequest request = test::PaperSweep({MakeSweepAxis(SweepKey::kDeltaN, 0, 400, 3).value()});
  request.base.job.parallelism.recompute = Recompute::kNone;
  const Sweep sweep = RunSweep(request).value();
  REQUIRE_FALSE(sweep.points[2].results[0].feasible);
  CheckSvg(SweepToSvg(sweep, "ΔN"));
}

TEST_CASE("a knee at the worst value may lie outside") {
  SweepResult result;
  result.feasible = true;
  result.prediction.iteration_ns = 1000;
  Sweep sweep{.axes = {{SweepKey::kBandwidth, {1e9, 2e9}}},
              .schedules = {"geopipe"},
              .points = {{{1e9}, {result}}, {{2e9}, {result}}}};
  CHECK(KneeText(sweep) == "8 Gbps or less");
  sweep.axes = {{SweepKey::kLatency, {1e6, 2e6}}};
  CHECK(KneeText(sweep) == "2 ms or more");
  sweep.axes = {{SweepKey::kDeltaN, {0, 1}}};
  CHECK(KneeText(sweep) == "0");
  sweep.points[1].results[0].feasible = false;
  CHECK(KneeText(sweep).empty());
}

TEST_CASE("a heat map shows numbers, gaps and outlines") {
  HeatMaps maps{.title = "t",
                .note = "n",
                .x_title = "x",
                .y_title = "y",
                .x_labels = {"1", "2"},
                .y_labels = {"3"},
                .outlined = {1},
                .maps = {{.title = "m", .cells = {12.345, std::numeric_limits<double>::quiet_NaN()}}}};
  const std::string svg = HeatMapsToSvg(maps);
  CheckSvg(svg);
  CHECK(CountOf(svg, ">12</text>") == 1);
  CHECK(CountOf(svg, "<rect class=\"x\"") == 1);
  CHECK(CountOf(svg, "<rect class=\"k\"") == 1);
}

// Alternatives that take these times in milliseconds; 0: missing.
Alternatives AlternativesOf(const std::vector<int64_t>& milliseconds) {
  Alternatives alternatives;
  for (size_t i = 0; i < milliseconds.size(); ++i) {
    alternatives.all.push_back({.kind = static_cast<AlternativeKind>(i),
                                .missing = milliseconds[i] == 0 ? "none" : "",
                                .iteration_ns = milliseconds[i] * test::kMillisecond});
  }
  return alternatives;
}

TEST_CASE("a grid with alternatives has a map of the fastest, with lines where it changes") {
  SweepResult result;
  result.feasible = true;
  result.prediction.iteration_ns = 1000;
  Sweep sweep{.axes = {{SweepKey::kLatency, {1e6, 2e6}}, {SweepKey::kBandwidth, {1e9, 2e9}}},
              .schedules = {"geopipe"},
              .points = {}};
  for (const std::vector<int64_t>& milliseconds :
       {std::vector<int64_t>{100, 200, 300, 1}, {100, 75, 300, 1}, {100, 0, 0, 1}, {0, 0, 0, 1}}) {
    sweep.points.push_back({{1e6, 1e9}, {result}, AlternativesOf(milliseconds)});
  }
  const std::string svg = SweepToSvg(sweep, "grid");
  CheckSvg(svg);
  CHECK(CountOf(svg, ">S 50</text>") == 1);
  CHECK(CountOf(svg, ">P 25</text>") == 1);
  CHECK(CountOf(svg, ">S</text>") == 2);          // nothing else there; and in the legend
  CHECK(CountOf(svg, "<rect class=\"x\"") == 1);  // nothing at all, for local steps do not count
  CHECK(CountOf(svg, "<line class=\"b\"") == 3);  // not between the two S
  CHECK(CountOf(svg, ">single site</text>") == 1);
  CHECK(CountOf(svg, ">pipeline over sites</text>") == 1);
  CHECK(CountOf(svg, "replica per site") == 0);  // is the fastest nowhere
  sweep.points.front().alternatives.reset();
  CHECK(CountOf(SweepToSvg(sweep, "grid"), "replica per site") == 0);
  CHECK(CountOf(svg, ">by geopipe against blocking 1F1B ") == 1);
  sweep.schedules = {"geopipe", "auto"};
  CHECK(CountOf(SweepToSvg(sweep, "grid"), ">by the fastest of geopipe, auto against blocking 1F1B ") == 1);
}

TEST_CASE("a picture of lines with alternatives has a strip of the fastest") {
  SweepResult result;
  result.feasible = true;
  result.prediction.iteration_ns = 1000;
  Sweep sweep{.axes = {{SweepKey::kBandwidth, {1e9, 2e9, 4e9}}}, .schedules = {"geopipe"}, .points = {}};
  for (const std::vector<int64_t>& milliseconds :
       {std::vector<int64_t>{100, 200, 300, 1}, {0, 0, 0, 1}, {100, 100, 80, 1}}) {
    sweep.points.push_back({{1e9}, {result}, AlternativesOf(milliseconds)});
  }
  const std::string svg = SweepToSvg(sweep, "line");
  CheckSvg(svg);
  CHECK(CountOf(svg, ">S 50</text>") == 1);
  CHECK(CountOf(svg, ">R 20</text>") == 1);
  CHECK(CountOf(svg, ">replica per site</text>") == 1);
}

TEST_CASE("a tint is the colour mixed with white") {
  CHECK(Tint("#0072B2", 1) == "#0072B2");
  CHECK(Tint("#0072B2", 0) == "#FFFFFF");
  CHECK(Tint("#000000", 0.5) == "#808080");
  CHECK(IsDark("#0072B2"));
  CHECK_FALSE(IsDark("#E69F00"));
}

TEST_CASE("swept figures as text") {
  CHECK(SweepTickText(SweepKey::kBandwidth, 5e10) == "400");
  CHECK(SweepTickText(SweepKey::kBandwidth, 1.249999e11) == "1000");
  CHECK(SweepTickText(SweepKey::kBandwidth, 1.6e12) == "12800");
  CHECK(SweepTickText(SweepKey::kLatency, 5e5) == "0.5");
  CHECK(SweepValueText(SweepKey::kBandwidth, 5e10) == "400 Gbps");
  CHECK(SweepValueText(SweepKey::kLatency, 5e5) == "500 µs");
  CHECK(SweepValueText(SweepKey::kDeltaN, 3) == "3");
  CHECK(SweepAxisUnits(SweepKey::kBandwidth, 5e10) == Approx(400));
  CHECK(SweepAxisUnits(SweepKey::kLatency, 5e5) == Approx(0.5));
}

}  // namespace
}  // namespace geopipe
