// Memory for speed: the plan that holds least on a device among those that are nearly as fast as the fastest.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>

#include "optimizer/model/cost_source.h"
#include "optimizer/plan/refine/refine_schedule.h"
#include "optimizer/plan/report/plan_result.h"
#include "optimizer/plan/space/plan_request.h"

namespace geopipe {

// Most by which a plan that holds less may be longer: 3 %.
inline constexpr int64_t kFrugalPpm = 30'000;

// Bytes of the fullest device.
int64_t FullestDeviceBytes(const Plan& plan);

// Plans `result`'s sites and degrees again with half of the memory that its fullest device holds, a quarter and so on,
// for as long as the iteration is longer by no more than kFrugalPpm; the last of these plans, timed on the request's
// cluster. No `better`: already half is too little, or the request does not want a refinement or searches exhaustively.
// Errors as CostsOfPlan's. REQUIRES: no given costs.
absl::StatusOr<Refinement> FindFrugalPlan(const PlanRequest& request, const CostSource& source,
                                          const PlanResult& result);

}  // namespace geopipe
