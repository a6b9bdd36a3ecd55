// Explains a plan, for people and for programs: `geopipectl plan --explain`.
#pragma once

#include <string>
#include <vector>

#include "coordinator/cli/render/plan_output.h"
#include "optimizer/plan/choice_costs.h"
#include "optimizer/plan/report/plan_explanation.h"
#include "optimizer/plan/report/time_breakdown.h"

namespace geopipe {

struct Explanation {
  std::vector<TimeShare> time;
  ChoiceCosts choices;
  PlanExplanation plan;
};

// Explains where the iteration goes, what each choice costs, what binds each stage, where the bubble comes from, and
// what would help. Folded: with more than twelve stages, consecutive stages bound by the same share a row, which shows
// the longest wait.
std::string ExplanationText(const Explanation& explanation, const PlanResult& result, View view = {});
Json ExplanationToJson(const Explanation& explanation, const PlanResult& result);

}  // namespace geopipe
