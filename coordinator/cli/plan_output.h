// A plan for people (tables) and for programs (the JSON of `geopipectl plan`, which other verbs embed as "plan",
// "predicted" and "baselines").
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "optimizer/model/plan_params.h"
#include "optimizer/plan/planner.h"

namespace geopipe {

using Json = nlohmann::ordered_json;

Json PlanToJson(const Plan& plan);
Json PredictionToJson(const Prediction& prediction);
Json BaselinesToJson(const std::vector<Baseline>& baselines);

// What will be run, in one line: "geopipe, ΔN 2,1, 16 micro-batches of 4 × 128 tokens, non-blocking".
std::string PlanHeadline(const Plan& plan);
// The stages with their place, layers and memory against capacity.
std::string StageTable(const Plan& plan);
// "iteration 0.412 s (lower bound …), bubble …, tokens/s …, across sites … per iteration"
std::string PredictionText(const Prediction& prediction);
// Iteration time of the alternatives against the plan's own.
std::string BaselineTable(const std::vector<Baseline>& baselines, int64_t plan_iteration_ns);

}  // namespace geopipe
