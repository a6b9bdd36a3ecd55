// A plan for people (tables) and for programs (the JSON of `geopipectl plan`, which other verbs embed as "plan",
// "predicted" and "baselines").
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "coordinator/cli/render/format.h"
#include "optimizer/model/plan/plan_params.h"
#include "optimizer/plan/planner.h"
#include "optimizer/plan/report/plan_figures.h"

namespace geopipe {

using Json = nlohmann::ordered_json;

Json PlanToJson(const Plan& plan);
Json PredictionToJson(const Prediction& prediction);
Json BaselinesToJson(const std::vector<Baseline>& baselines);
// The residuals are null if they are unknown: without measurements, or with measurements at one (b, s) alone.
Json CostReportsToJson(const std::vector<SiteCostReport>& reports);

// Returns a schedule's name on the screen; what `auto` has searched for is "made to measure".
std::string_view ScheduleTitle(ScheduleKind kind);
// "2,1"; empty where ΔN means nothing: for schedules that do not have it, and with several stages on a rank.
std::string DeltaNText(const Plan& plan);
// Says in one line what will be run: "geopipe, ΔN 2,1, 16 micro-batches of 4 × 128 tokens, non-blocking".
std::string PlanHeadline(const Plan& plan);
// The stages with their place, layers and memory against capacity. Folded: of more than twelve stages those that follow
// each other at one site with as many layers, on as many nodes and devices, in one row with the greatest peak.
std::string StageTable(const Plan& plan, View view = {});
// "iteration 0.412 s (lower bound …), bubble …, tokens/s …, across sites … per iteration"
std::string PredictionText(const Prediction& prediction);
// One line each, "warning       parallelism.zero_stage is 3 ...". Empty without warnings.
std::string WarningText(const std::vector<std::string>& warnings);
// "58 h 20 min", "12.3 days".
std::string JobDuration(double seconds);
// Says how well the devices are used, what the job takes, what idles and why, and what each crossing carries. Folded:
// sites that are idle alike, and crossings that carry as much, in one line each.
std::string FiguresText(const PlanFigures& figures, View view = {});
Json FiguresToJson(const PlanFigures& figures);
// Sources of each site's costs, one line each: "costs  north measured at b 1, s 128 and 2 more; b 4, s 128 from these:
// mean residual 2.1 %, greatest 6.0 % (head W at b 2, s 128)". Empty without reports.
std::string CostReportText(const std::vector<SiteCostReport>& reports, const Plan& plan);
// Iteration time of the alternatives against the plan's own.
std::string BaselineTable(const std::vector<Baseline>& baselines, int64_t plan_iteration_ns, View view = {});

}  // namespace geopipe
