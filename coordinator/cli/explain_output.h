// Why a plan is what it is, for people and for programs.
#pragma once

#include <string>

#include "coordinator/cli/plan_output.h"
#include "optimizer/plan/report/plan_explanation.h"

namespace geopipe {

// What binds each stage, where the bubble comes from, what would help.
std::string ExplanationText(const PlanExplanation& explanation, const PlanResult& result);

// {"stages":[…],"bubble":[…],"remedies":[…]}.
Json ExplanationToJson(const PlanExplanation& explanation, const PlanResult& result);

}  // namespace geopipe
