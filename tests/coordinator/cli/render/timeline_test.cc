#include "coordinator/cli/render/timeline.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "optimizer/schedule/schedule_table.h"

namespace geopipe {
namespace {

struct Recorded {
  PipelineCosts costs;
  SimulationResult result;
};

// Eight devices, 64 micro-batches, one crossing on a link whose name needs escaping.
Recorded EightBySixtyFour() {
  Recorded recorded;
  PipelineCosts& costs = recorded.costs;
  costs.shape = PipelineShape::Linear(8, 64);
  costs.forward_ns.assign(8, 30'000'001);
  costs.input_grad_ns.assign(8, 60'000'000);
  costs.boundaries.resize(7);
  costs.boundaries[3] = {true, "a<b", 1000, 20'000'000, 5'000'000};
  recorded.result =
      Simulate(MakeSchedule(ScheduleKind::kOneFOneB, costs.shape).value(), costs, {.record_timeline = true}).value();
  return recorded;
}

TEST_CASE("the trace is JSON with one complete event per action and a pair per message") {
  const auto [costs, result] = EightBySixtyFour();
  const nlohmann::json trace = nlohmann::json::parse(ToChromeTrace(result, costs, LabelsOfCosts(costs, "", 0)));
  std::map<std::string, int> phases;
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    ++phases[event.at("ph").get<std::string>()];
  }
  CHECK(phases["X"] == 1024);
  CHECK(phases["b"] == 128);
  CHECK(phases["e"] == 128);
  CHECK(phases["s"] == 128);
  CHECK(phases["f"] == 128);
  CHECK(phases["M"] == 4 + 8);  // names and places of two processes, names of eight threads
  const auto second = std::find_if(trace["traceEvents"].begin(), trace["traceEvents"].end(),
                                   [](const nlohmann::json& event) { return event["name"] == "0F1"; });
  REQUIRE(second != trace["traceEvents"].end());
  CHECK(second->at("cat") == "F");
  CHECK(second->at("tid") == 0);
  CHECK(second->at("ts").get<double>() == Approx(30'000.001));
  CHECK(second->at("dur").get<double>() == Approx(30'000.001));
  CHECK(second->at("args") == nlohmann::json{{"stage", 0}, {"micro_batch", 1}});
}

TEST_CASE("an iteration of no time still gives a trace") {
  PipelineCosts costs;
  costs.shape = PipelineShape::Linear(1, 1);
  costs.forward_ns = costs.input_grad_ns = {0};
  const SimulationResult result =
      Simulate(MakeSchedule(ScheduleKind::kGpipe, costs.shape).value(), costs, {.record_timeline = true}).value();
  const TimelineLabels labels = LabelsOfCosts(costs, "", 0);
  CHECK(nlohmann::json::parse(ToChromeTrace(result, costs, labels)).at("traceEvents").size() == 2 + 1 + 2);
}

TEST_CASE("devices between crossings are a site, and the trace says so") {
  const auto [costs, result] = EightBySixtyFour();
  TimelineLabels labels = LabelsOfCosts(costs, "", 0);
  CHECK(labels.sites ==
        std::vector<std::string>{"site 0", "site 0", "site 0", "site 0", "site 1", "site 1", "site 1", "site 1"});
  CHECK(CrossingText(costs, labels, 4) == "20 ms, 1.6 Mbps");
  CHECK(CrossingText(costs, labels, 3).empty());
  labels.device = "stage";
  labels.places.assign(8, "node 1");
  const std::string trace = ToChromeTrace(result, costs, labels);
  CHECK(trace.find("\"stage 4 (site 1, node 1)\"") != std::string::npos);
}

}  // namespace
}  // namespace geopipe
