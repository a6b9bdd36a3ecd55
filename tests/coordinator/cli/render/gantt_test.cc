#include <catch2/catch.hpp>
#include <string>

#include "coordinator/cli/render/svg_writer.h"
#include "coordinator/cli/render/timeline.h"
#include "coordinator/cli/render/timeline_phases.h"
#include "optimizer/schedule/schedule_table.h"

namespace geopipe {
namespace {

struct Drawn {
  PipelineCosts costs;
  SimulationResult result;
  TimelineLabels labels;
};

Drawn TwoSites(int32_t micro_batches) {
  Drawn drawn;
  PipelineCosts& costs = drawn.costs;
  costs.shape = PipelineShape::Linear(2, micro_batches);
  costs.forward_ns.assign(2, 10'000'000);
  costs.input_grad_ns.assign(2, 20'000'000);
  costs.boundaries = {{true, "", 1000, 10'000'000, 0}};
  drawn.result =
      Simulate(MakeSchedule(ScheduleKind::kOneFOneB, costs.shape).value(), costs, {.record_timeline = true}).value();
  drawn.labels = LabelsOfCosts(costs, "", 0);
  return drawn;
}

TEST_CASE("a line per device, a separator at the crossing, an axis and a legend") {
  const auto [costs, result, labels] = TwoSites(2);
  CHECK(ToGantt(result, costs, labels, {.columns = 54}) ==
        "site 0  0 ▒▒▒▒▒▒▒▒                ████████    ████████\n"
        "          ╌╌ 10 ms ╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌\n"
        "site 1  1         ▒▒▒▒████████▒▒▒▒████████\n"
        "          ┴───────────────────┴───────────────────┴───\n"
        "          0                   50 ms\n"
        "          ▒ F forward   █ B backward   blank: idle\n");
}

TEST_CASE("names of sites come from the labels, once per site") {
  auto [costs, result, labels] = TwoSites(2);
  labels.sites = {"Zürich", "Zürich"};
  CHECK(ToGantt(result, costs, labels, {.columns = 54}) ==
        "Zürich  0 ▒▒▒▒▒▒▒▒                ████████    ████████\n"
        "        1         ▒▒▒▒████████▒▒▒▒████████\n"
        "          ┴───────────────────┴───────────────────┴───\n"
        "          0                   50 ms\n"
        "          ▒ F forward   █ B backward   blank: idle\n");
}

TEST_CASE("without sites there is no room kept for their names") {
  auto [costs, result, labels] = TwoSites(2);
  labels.sites = {"", ""};
  CHECK_THAT(ToGantt(result, costs, labels, {.columns = 46}),
             Catch::StartsWith("0 ▒▒▒▒▒▒▒▒                ████████    ████████\n"
                               "1         ▒▒▒▒████████▒▒▒▒████████\n"));
}

TEST_CASE("a column of several actions is as high as its busy part") {
  const auto [costs, result, labels] = TwoSites(100);
  // 1F1B's period over a crossing of D = 10 ms is t + D: a stage is busy for 30 ms of 40.
  CHECK(ToGantt(result, costs, labels, {.columns = 30}) ==
        "site 0  0 ▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆\n"
        "          ╌╌ 10 ms ╌╌╌╌╌╌╌╌╌╌╌\n"
        "site 1  1 ▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▅\n"
        "          ┴────────┴─────────┴\n"
        "          0        2 s\n"
        "          ▒ F forward   █ B backward   ▅ busy for a part   blank: idle\n");
  CHECK_THAT(ToGantt(result, costs, labels, {.columns = 30, .colour = true}),
             Catch::StartsWith("site 0  0 \x1b[38;5;214m▆\x1b[0m"));
}

TEST_CASE("a narrow terminal still gets ten columns") {
  const auto [costs, result, labels] = TwoSites(2);
  CHECK_THAT(ToGantt(result, costs, labels, {.columns = 1}), Catch::Contains("┴───┴────┴\n"));
}

TEST_CASE("in colour a character holds two spans of time") {
  const auto [costs, result, labels] = TwoSites(2);
  const std::string text = ToGantt(result, costs, labels, {.columns = 21, .colour = true});  // 11 of 10 ms each
  const std::string f = "\x1b[38;5;74m█\x1b[0m";
  const std::string b = "\x1b[38;5;214m█\x1b[0m";
  CHECK_THAT(text, Catch::StartsWith("site 0  0 " + f + f + "    " + b + b + " " + b + b + "\n"));
  // 5.5 characters: the backward of micro-batch 0 begins in the middle of one.
  const std::string half = ToGantt(result, costs, labels, {.columns = 20, .colour = true});
  CHECK_THAT(half, Catch::Contains("m▌\x1b[0m") || Catch::Contains("m▐\x1b[0m"));
}

TEST_CASE("warm-up, steady phase and drain") {
  const Drawn drawn = TwoSites(100);
  const std::optional<TimelinePhases> phases = PhasesOf(drawn.result);
  REQUIRE(phases.has_value());
  CHECK(phases->steady_ns == 60'000'000);  // stage 0's first backward: three actions and two crossings after its begin
  CHECK(phases->drain_ns < drawn.result.iteration_ns);
  CHECK_FALSE(PhasesOf(TwoSites(2).result).has_value());
  CHECK_FALSE(PhasesOf(SimulationResult{}).has_value());
}

TEST_CASE("shares of time per column") {
  const std::vector<ActionTiming> lane = {{{0, ActionKind::kForward, 0}, 0, 5}, {{0, ActionKind::kBackward, 0}, 5, 20}};
  const auto shares = SharesOf(lane, 40, 4);
  CHECK(shares[0] == std::vector<double>{0.5, 0, 0, 0});
  CHECK(shares[1] == std::vector<double>{0.5, 1, 0, 0});
  CHECK(shares[2] == std::vector<double>(4, 0));
}

}  // namespace
}  // namespace geopipe
