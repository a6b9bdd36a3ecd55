// Plans at some of a job's sites, where the search through all of them cannot look at everything.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>

#include "optimizer/model/cost_source.h"
#include "optimizer/plan/report/plan_result.h"
#include "optimizer/plan/space/plan_request.h"

namespace geopipe {

// Findings of the search through all of the sites.
struct AllSitesSearched {
  int64_t iteration_ns = std::numeric_limits<int64_t>::max();  // of its plan; the greatest number: none
  bool cut_short = false;                                      // by a limit (SearchReport)
};

// Plans at the largest choices of the sites of which every order can be tried (TriesAllOrders), and wherever a search
// was cut short at the choices with fewer sites, too: so a cluster with one site more never has a slower plan for want
// of search. Leaves out choices whose bound is not below the best time so far, and those that cost the same as another.
// Hands every plan to `take`, which returns the best time so far. Nothing is tried if the request does not want it or
// the job lists its sites, or if they are too many. request.should_stop ends it.
void PlanAtFewerSites(const PlanRequest& request, const CostSource& source, const AllSitesSearched& all,
                      const std::function<int64_t(PlanResult)>& take);

}  // namespace geopipe
