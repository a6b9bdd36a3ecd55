#include "optimizer/simulator/timeline.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "optimizer/schedule/generators.h"

namespace geopipe {
namespace {

size_t Count(std::string_view text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size())) {
    ++count;
  }
  return count;
}

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
  recorded.result = Simulate(MakeOneFOneB(costs.shape).value(), costs, {.record_timeline = true}).value();
  return recorded;
}

TEST_CASE("the trace is JSON with one complete event per action and a pair per message") {
  const auto [costs, result] = EightBySixtyFour();
  const nlohmann::json trace = nlohmann::json::parse(ToChromeTrace(result, costs));
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

TEST_CASE("the chart has a box per action, a number in each, and is closed") {
  const auto [costs, result] = EightBySixtyFour();
  const std::string svg = ToSvg(result, costs, "1f1b & \"friends\"");
  CHECK(Count(svg, "<svg ") == 1);
  CHECK(Count(svg, "</svg>") == 1);
  CHECK(Count(svg, "<rect") == Count(svg, "</rect>") + Count(svg, "/>") - Count(svg, "<line") + Count(svg, "</line>"));
  CHECK(Count(svg, "<rect class=\"f\"") == 8 * 64 + 1);  // and the legend's
  CHECK(Count(svg, "<rect class=\"b\"") == 8 * 64 + 1);
  CHECK(Count(svg, "<text class=\"n\"") == 1024);
  CHECK(Count(svg, "<line class=\"m\"") == 128 + 1);
  CHECK(Count(svg, "<line class=\"c\"") == 1 + 1);
  CHECK(Count(svg, "1f1b &amp; &quot;friends&quot;") == 1);
  CHECK(Count(svg, "crossing a&lt;b (chunk 3 to 4): latency 20 ms, 5 ms per message") == 1);
  CHECK(Count(svg, "device 7") == 1);
}

TEST_CASE("an iteration of no time still gives a chart") {
  PipelineCosts costs;
  costs.shape = PipelineShape::Linear(1, 1);
  costs.forward_ns = costs.input_grad_ns = {0};
  const SimulationResult result = Simulate(MakeGpipe(costs.shape).value(), costs, {.record_timeline = true}).value();
  CHECK(Count(ToSvg(result, costs, ""), "<rect class=\"f\"") == 2);
  CHECK(nlohmann::json::parse(ToChromeTrace(result, costs)).at("traceEvents").size() == 2 + 1 + 2);
}

}  // namespace
}  // namespace geopipe
