#include "coordinator/cli/plan_output.h"

#include <catch2/catch.hpp>

namespace geopipe {
namespace {

Plan TwoStages() {
  Plan plan;
  plan.schedule = ScheduleKind::kGeoPipe;
  plan.micro_batch_size = 4;
  plan.sequence_length = 128;
  plan.delta_n = {2};
  plan.micro_batches = 8;
  StagePlan first{.index = 0, .site = "north", .node = 0, .devices = {0, 1, 2, 3}, .layers = {0, 3, true, false}};
  first.peak_bytes = 1'000;
  first.capacity_bytes = 4'000;
  StagePlan last{.index = 1, .site = "east", .node = 1, .devices = {0}, .layers = {4, 5, false, true}};
  plan.stages = {first, last};
  plan.idle = {{"east", 1, {1, 2, 3}}};
  return plan;
}

TEST_CASE("the JSON of a plan has the keys of the contract") {
  const Json json = PlanToJson(TwoStages());
  CHECK(json["schedule"] == "geopipe");
  CHECK(json["comm"] == "nonblocking");
  CHECK(json["micro_batch_size"] == 4);
  CHECK(json["sequence_length"] == 128);
  CHECK(json["delta_n"] == Json::array({2}));
  CHECK(json["micro_batches"] == 8);
  CHECK(json["recompute"] == "none");
  REQUIRE(json["stages"].size() == 2);
  CHECK(json["stages"][0]["index"] == 0);
  CHECK(json["stages"][0]["site"] == "north");
  CHECK(json["stages"][0]["layers"] == Json::array({0, 3}));
  CHECK(json["stages"][0]["devices"].size() == 4);
  CHECK(json["stages"][0]["peak_bytes"] == 1'000);
  CHECK(json["stages"][0]["capacity_bytes"] == 4'000);
}

TEST_CASE("seconds in JSON are the nearest doubles of the nanoseconds") {
  const Json json = PredictionToJson({.iteration_ns = 6'510'000'000, .bubble_ratio = 0.25, .lower_bound_ns = 1});
  CHECK(json["iteration_s"] == 6.51);
  CHECK(json["lower_bound_s"] == 1e-9);
  CHECK(json["bubble_ratio"] == 0.25);
}

TEST_CASE("people see stages, memory and what idles") {
  const std::string text = StageTable(TwoStages());
  CHECK(text.find("embedding, 0-3") != std::string::npos);
  CHECK(text.find("4-5, head") != std::string::npos);
  CHECK(text.find("25.0 %") != std::string::npos);
  CHECK(text.find("idle: site east, node 1, devices 1-3") != std::string::npos);
  CHECK(PlanHeadline(TwoStages()) == "geopipe, ΔN 2, 8 micro-batches of 4 × 128 tokens, nonblocking, recompute none");
}

TEST_CASE("baselines are set against the plan") {
  const std::vector<Baseline> baselines{{.schedule = "1f1b",
                                         .comm = "blocking",
                                         .scope = "same",
                                         .site = "",
                                         .micro_batch_size = 1,
                                         .sequence_length = 2,
                                         .iteration_ns = 3'000'000'000}};
  CHECK(BaselineTable(baselines, 2'000'000'000).find("1.50 ×") != std::string::npos);
  CHECK(BaselinesToJson(baselines)[0]["iteration_s"] == 3.0);
}

}  // namespace
}  // namespace geopipe
