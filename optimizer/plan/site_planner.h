// The plans of single sites for all of a job's tokens or a share of them, with which a plan over several sites is
// compared. Each is planned as a job at that site alone would be.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "optimizer/model/cost_source.h"
#include "optimizer/plan/report/plan_result.h"
#include "optimizer/plan/report/replica_timing.h"
#include "optimizer/plan/space/plan_request.h"

namespace geopipe {

struct SitePlan {
  std::string site;
  int64_t tokens = 0;  // of an iteration
  PlanResult result;
  ReplicaTiming timing;
};

// Plans single sites and remembers the plans. Links between sites are ignored.
class SitePlanner {
 public:
  explicit SitePlanner(PlanRequest request);
  SitePlanner(const SitePlanner&) = delete;  // source_ points into request_
  SitePlanner& operator=(const SitePlanner&) = delete;

  const PlanRequest& request() const { return request_; }

  // The plan on all of the site's devices, with its own degrees if the request leaves them open, and its own schedule:
  // made to measure if the request's may be so and its sites are of few kinds. `sequence_length` 0: any of the job's. A
  // site like one that is planned already has its plan, under its own name. The pointer lives as long as this. Errors
  // as MakePlan's.
  absl::StatusOr<const SitePlan*> At(const std::string& site, int64_t tokens, int64_t sequence_length = 0);

 private:
  absl::StatusOr<SitePlan> Make(const std::string& site, int64_t tokens, int64_t sequence_length) const;
  // The first site of the cluster with the same costs, if costs are from figures.
  std::string Alike(const std::string& site) const;

  // True when the sites are of few kinds, so that each may have a schedule of its own, which takes time.
  bool HasFewKinds() const;

  PlanRequest request_;
  CostSource source_;
  bool refines_ = false;
  // Plans by site, tokens, sequence length.
  std::map<std::tuple<std::string, int64_t, int64_t>, absl::StatusOr<SitePlan>> made_;
};

}  // namespace geopipe
