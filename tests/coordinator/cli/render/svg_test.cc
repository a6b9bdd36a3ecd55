// The picture of a timeline as a document: well-formed, within its frame, with what occurs and nothing else.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "coordinator/cli/render/svg_writer.h"
#include "coordinator/cli/render/timeline.h"
#include "coordinator/cli/render/timeline_layout.h"
#include "optimizer/schedule/schedule_table.h"
#include "tests/support/svg_check.h"

namespace geopipe {
namespace {

using test::CheckSvg;
using test::CountOf;

struct DrawnTimeline {
  PipelineCosts costs;
  SimulationResult result;
  TimelineLabels labels;

  std::string Svg() const { return ToSvg(result, costs, labels); }
};

PipelineCosts Costs(int32_t devices, int32_t micro_batches, const std::vector<int32_t>& crossings) {
  PipelineCosts costs;
  costs.shape = PipelineShape::Linear(devices, micro_batches);
  costs.forward_ns.assign(static_cast<size_t>(devices), 30'000'001);
  costs.input_grad_ns.assign(static_cast<size_t>(devices), 60'000'000);
  costs.boundaries.resize(static_cast<size_t>(devices) - 1);
  for (const int32_t boundary : crossings) {
    costs.boundaries[static_cast<size_t>(boundary)] = {true, "", 100'000'000, 20'000'000, 5'000'000};
  }
  return costs;
}

DrawnTimeline DrawTimeline(PipelineCosts costs, const Schedule& schedule) {
  DrawnTimeline drawn;
  drawn.costs = std::move(costs);
  drawn.result = Simulate(schedule, drawn.costs, {.record_timeline = true}).value();
  drawn.labels = LabelsOfCosts(drawn.costs, "1f1b & \"friends\"", drawn.result.iteration_ns);
  return drawn;
}

DrawnTimeline OneFOneB(PipelineCosts costs) {
  const Schedule schedule = MakeSchedule(ScheduleKind::kOneFOneB, costs.shape).value();
  return DrawTimeline(std::move(costs), schedule);
}

TEST_CASE("eight stages of 64 micro-batches: a box with its number for every action, in several rows") {
  const DrawnTimeline drawn = OneFOneB(Costs(8, 64, {3}));
  const TimelineLayout layout = LayOutTimeline(drawn.result, drawn.costs, drawn.labels);
  CHECK(layout.systems >= 2);
  CHECK(layout.boxes);
  CHECK(layout.width < 1600);
  const std::string svg = drawn.Svg();
  CheckSvg(svg);
  // An action that spans a break between rows is drawn in both.
  const auto most = size_t{8} * static_cast<size_t>(layout.systems - 1);
  const size_t boxes = CountOf(svg, "<rect class=\"f\"") + CountOf(svg, "<rect class=\"b\"") - 2;  // the legend's
  CHECK(boxes >= 1024);
  CHECK(boxes <= 1024 + most);
  CHECK(CountOf(svg, "<text class=\"n\"") >= 1024);
  CHECK(CountOf(svg, "<line class=\"m\"") >= 128 + 1);
  CHECK(CountOf(svg, "1f1b &amp; &quot;friends&quot;") == 2);
  CHECK(CountOf(svg, ">site 0</text>") == static_cast<size_t>(layout.systems));
  CHECK(CountOf(svg, ">site 1</text>") == static_cast<size_t>(layout.systems));
  CHECK(CountOf(svg, ">20 ms, 160 Gbps</text>") == static_cast<size_t>(layout.systems));
  CHECK(CountOf(svg, ">device 7</text>") == static_cast<size_t>(layout.systems));
  CHECK(CountOf(svg, ">warm-up</text>") == 1);
  CHECK(CountOf(svg, ">drain</text>") >= 1);
  CHECK(CountOf(svg, "0.0 % above the lower bound of") == 1);
}

TEST_CASE("the legend names what occurs and nothing else") {
  DrawnTimeline drawn = OneFOneB(Costs(2, 2, {}));
  std::string svg = drawn.Svg();
  CheckSvg(svg);
  CHECK(CountOf(svg, "F forward") == 1);
  CHECK(CountOf(svg, "idle") == 1);
  for (const std::string_view absent :
       {"I input", "W weight", "held by", "weight update", "message between", "later stages", "site"}) {
    CHECK(CountOf(svg, absent) == 0);
  }
  PipelineCosts costs = Costs(2, 4, {0});
  costs.comm = CommMode::kBlocking;
  costs.boundaries[0].acknowledgement_ns = 20'000'000;
  costs.epilogue_ns = 50'000'000;
  drawn = OneFOneB(costs);
  svg = drawn.Svg();
  CheckSvg(svg);
  for (const std::string_view present : {"held by", "weight update", "message between sites"}) {
    CHECK(CountOf(svg, present) == 1);
  }
  CHECK(CountOf(svg, "<rect class=\"hold\"") == 8 + 1);
  CHECK(CountOf(svg, "<rect class=\"e\"") == 2 + 1);
}

TEST_CASE("a split backward has its own boxes, and no B in the legend") {
  PipelineCosts costs = Costs(1, 2, {});
  costs.weight_grad_ns.assign(1, 20'000'000);
  Schedule schedule;
  schedule.shape = costs.shape;
  for (const std::string_view action : {"0F0", "0F1", "0I0", "0W0", "0I1", "0W1"}) {
    schedule.devices.resize(1);
    schedule.devices[0].push_back(ParseAction(action).value());
  }
  const std::string svg = DrawTimeline(costs, schedule).Svg();
  CheckSvg(svg);
  CHECK(CountOf(svg, "<rect class=\"i\"") == 2 + 1);
  CHECK(CountOf(svg, "<rect class=\"w\"") == 2 + 1);
  CHECK(CountOf(svg, "B backward") == 0);
}

TEST_CASE("actions thinner than two pixels become shares of time") {
  const DrawnTimeline drawn = OneFOneB(Costs(32, 256, {9, 19}));
  const TimelineLayout layout = LayOutTimeline(drawn.result, drawn.costs, drawn.labels);
  CHECK_FALSE(layout.boxes);
  CHECK(layout.systems == 1);
  const std::string svg = drawn.Svg();
  CheckSvg(svg);
  CHECK(CountOf(svg, "<path class=\"f\"") == 32);
  CHECK(CountOf(svg, "<path class=\"b\"") == 32);
  CHECK(CountOf(svg, "heights are shares of ") == 1);
  CHECK(CountOf(svg, ">warm-up</text>") == 1);
  CHECK(CountOf(svg, ">drain</text>") == 1);
}

TEST_CASE("below shares of time a part of the steady phase has boxes with numbers and messages") {
  const DrawnTimeline drawn = OneFOneB(Costs(32, 256, {9, 19}));
  const TimelineLayout layout = LayOutTimeline(drawn.result, drawn.costs, drawn.labels);
  REQUIRE(layout.has_detail());
  CHECK(layout.shows_boxes(layout.systems));
  CHECK(layout.SystemTop(layout.systems) + layout.lanes_end < layout.height);
  const std::string svg = drawn.Svg();
  CHECK(CountOf(svg, ">a part of the steady phase, enlarged</text>") == 1);
  const size_t boxes = CountOf(svg, "<rect class=\"f\"") + CountOf(svg, "<rect class=\"b\"");
  CHECK(boxes > 32 * 10);
  CHECK(boxes < 32 * 256 / 2);
  CHECK(CountOf(svg, "<text class=\"n") > 32 * 10);
  CHECK(CountOf(svg, "message between") == 1);
  CHECK_FALSE(
      LayOutTimeline(OneFOneB(Costs(4, 16, {})).result, drawn.costs, OneFOneB(Costs(4, 16, {})).labels).has_detail());
}

TEST_CASE("labels of phases that are too narrow for them do not vanish") {
  const std::string svg = OneFOneB(Costs(2, 300, {})).Svg();
  CheckSvg(svg);
  CHECK(CountOf(svg, ">warm-up</text>") == 1);
  CHECK(CountOf(svg, ">drain</text>") >= 1);
}

TEST_CASE("any number of devices and micro-batches gives a picture that is whole") {
  const auto [devices, micro_batches] =
      GENERATE(table<int32_t, int32_t>({{1, 1}, {2, 2}, {2, 1000}, {4, 16}, {16, 32}, {17, 40}, {65, 4}, {200, 2}}));
  CAPTURE(devices, micro_batches);
  std::vector<int32_t> crossings;
  for (int32_t boundary = 2; boundary + 1 < devices; boundary += 3) {
    crossings.push_back(boundary);
  }
  DrawnTimeline drawn = OneFOneB(Costs(devices, micro_batches, crossings));
  drawn.labels.sites[0] = "an unusually long name of a site <somewhere> far away ΔΔΔΔ";
  CheckSvg(drawn.Svg());
}

TEST_CASE("an iteration of no time still gives a picture") {
  PipelineCosts costs;
  costs.shape = PipelineShape::Linear(1, 1);
  costs.forward_ns = costs.input_grad_ns = {0};
  const std::string svg = OneFOneB(costs).Svg();
  CheckSvg(svg);
  CHECK(CountOf(svg, "<rect class=\"f\"") == 2);
}

TEST_CASE("axes have round steps") {
  const auto [span, most, step] = GENERATE(table<double, double, double>(
      {{10, 10, 1}, {10, 5, 2}, {10, 4, 5}, {10, 1, 10}, {11, 1, 20}, {0.7, 7, 0.1}, {6.5e9, 13, 5e8}, {1, 3, 0.5}}));
  CAPTURE(span, most);
  CHECK(NiceStep(span, most) == Approx(step));
}

TEST_CASE("text in pictures is escaped") { CHECK(EscapeXml("a<b>&\"\n") == "a&lt;b&gt;&amp;&quot; "); }

}  // namespace
}  // namespace geopipe
