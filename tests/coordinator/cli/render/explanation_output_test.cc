#include "coordinator/cli/render/explanation_output.h"

#include <catch2/catch.hpp>

#include "coordinator/cli/render/format.h"

namespace geopipe {
namespace {

PlanResult TwoRanks() {
  PlanResult result;
  result.prediction = {.iteration_ns = 10'000'000'000, .bubble_ratio = 0.1};
  result.plan.Append({.site = "oslo"}, {.first = 0, .last = 3});
  result.plan.Append({.site = "dublin"}, {.first = 4, .last = 7});
  return result;
}

Explanation OfTwoRanks() {
  Explanation explanation;
  explanation.time = {{TimePart::kPlainWork, 8.5e9}, {TimePart::kTensor, 1.4e9}, {TimePart::kFill, 0.1e9}};
  explanation.choices.all = {{.key = "tensor",
                              .taken = "2",
                              .instead = "1",
                              .iteration_ns = 12'000'000'000,
                              .excess = 0.2,
                              .with = {{"data", "4"}, {"schedule", "geopipe"}, {"recompute", "full"}}},
                             {.key = "tensor", .taken = "2", .instead = "4", .missing = "stage 0 needs more"}};
  explanation.plan.stages.resize(2);
  return explanation;
}

TEST_CASE("the iteration's time adds up, and each choice has its price or the reason why there is none") {
  const std::string text = ExplanationText(OfTwoRanks(), TwoRanks());
  CHECK(
      text.starts_with("    TIME    SHARE  WHERE THE ITERATION GOES, IN THE MEAN OVER THE DEVICES IN USE\n"
                       " 8.500 s   85.0 %  plain work: the model's products on all devices at their stated efficiency\n"
                       " 1.400 s   14.0 %  tensor-parallel collectives\n"
                       " 0.100 s    1.0 %  pipeline fill: until a rank's first backward\n"
                       "10.000 s  100.0 %  the iteration\n"));
  CHECK(text.find("\nCHOICE  PLAN HAS  INSTEAD  ITERATION   CHANGE  WITH\n"
                  "tensor  2               1   12.000 s  +20.0 %  DP 4, geopipe, recompute full\n"
                  "                        4          -        -  no plan\n"
                  "no plan with tensor 4: stage 0 needs more\n") != std::string::npos);
  CHECK(text.find("faster than the plan") == std::string::npos);
  CHECK(text.find("not tried") == std::string::npos);
}

TEST_CASE("small parts of the time are told together") {
  Explanation explanation = OfTwoRanks();
  explanation.time = {{TimePart::kPlainWork, 9.99e9}, {TimePart::kUpdate, 4e6}, {TimePart::kSynchronisation, 4e6}};
  explanation.time.push_back({TimePart::kDrain, 2e6});
  const std::string text = ExplanationText(explanation, TwoRanks());
  CHECK(text.find("\n 0.010 s    0.1 %  the rest, each less than 0.05 %\n") != std::string::npos);
}

TEST_CASE("what was not tried and what is faster is said") {
  Explanation explanation = OfTwoRanks();
  explanation.choices.all[0].excess = -0.01;
  for (int32_t degree = 0; degree < 30; ++degree) {
    explanation.choices.not_tried.push_back("pipeline 16");
  }
  const std::string text = ExplanationText(explanation, TwoRanks());
  CHECK(text.find("-1.0 %  DP 4, geopipe, recompute full\n") != std::string::npos);
  CHECK(text.find("\nfaster than the plan: ") != std::string::npos);
  CHECK(text.find("\nnot tried, for want of time: pipeline 16, pipeline 16, ") != std::string::npos);
}

TEST_CASE("a ZeRO stage that would be faster is called so") {
  Explanation explanation = OfTwoRanks();
  explanation.choices.all = {{.key = "zero_stage",
                              .taken = "1",
                              .instead = "2",
                              .iteration_ns = 9'900'000'000,
                              .excess = -0.01,
                              .by_rule_alone = true}};
  const std::string text = ExplanationText(explanation, TwoRanks());
  CHECK(text.find("-1.0 %  by rule\n") != std::string::npos);
  CHECK(text.find("\nby rule: time ended before a schedule was made to measure; ") != std::string::npos);
  CHECK(text.find("faster than the plan") != std::string::npos);
}

TEST_CASE("programs see the same") {
  const Json json = ExplanationToJson(OfTwoRanks(), TwoRanks());
  CHECK(json["time"][0]["part"] == "plain_work");
  CHECK(json["time"][0]["s"] == 8.5);
  CHECK(json["time"][1]["share"] == Approx(0.14));
  CHECK(json["choices"][0]["change"] == 0.2);
  CHECK(json["choices"][0]["iteration_s"] == 12.0);
  CHECK(json["choices"][0]["with"] == Json({{"data", "4"}, {"schedule", "geopipe"}, {"recompute", "full"}}));
  CHECK(json["choices"][1]["iteration_s"].is_null());
  CHECK(json["choices"][1]["missing"] == "stage 0 needs more");
  CHECK(json["not_tried"].empty());
}

}  // namespace
}  // namespace geopipe
