// A plan's alternatives for people and for programs.
#pragma once

#include <string>
#include <string_view>

#include "coordinator/cli/render/plan_output.h"
#include "optimizer/plan/alternatives.h"

namespace geopipe {

// "single site", "pipeline over sites", "replica per site", "local steps".
std::string_view AlternativeTitle(AlternativeKind kind);

// The alternatives beside the plan, how replicas share tokens and sum gradients, which alternatives are missing and
// why, and a remark where an equivalent one is faster than the plan. With Rows::kAll the whole plan of every site
// follows.
std::string AlternativesText(const Alternatives& alternatives, const PlanResult& plan, View view = Rows::kFolded);

// [{"kind","found","is_plan","changes_training","iteration_s","tokens_per_s","against_plan","wan_bytes_per_iteration",
// "devices","sites":[{"site","tokens","plan","predicted"}…],"reduction":{…}}…]; one that is missing has "missing", the
// reason, in place of figures.
Json AlternativesToJson(const Alternatives& alternatives, const PlanResult& plan);

}  // namespace geopipe
