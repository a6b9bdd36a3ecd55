// Points at which schedules are tried that the genetic search does not run: at the sites and degrees that it found,
// with every b and s, and with their own numbers of stages on every pipeline rank.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "optimizer/model/cost_source.h"
#include "optimizer/model/pipeline_costs.h"
#include "optimizer/model/plan/plan_params.h"
#include "optimizer/plan/evaluation/prediction.h"
#include "optimizer/plan/space/choices.h"
#include "optimizer/plan/space/plan_request.h"

namespace geopipe {

struct SchedulePoint {
  static constexpr int64_t kNothingFits = std::numeric_limits<int64_t>::max();

  Plan plan;
  PipelineCosts costs;
  int64_t lower_bound_ns = 0;                         // kNothingFits: one micro-batch is too much for a device
  std::vector<std::vector<int32_t>> delta_n_choices;  // for PlanByRule
};

// Most times that a schedule is made again with less memory, because the last one's messages took more than was
// foreseen.
inline constexpr int kMemoryRounds = 8;

// Limits the micro-batches that each stage of a schedule made to measure has in flight to what max_delta_n allows: that
// many more than 1F1B for each crossing behind it. Changes nothing for a job without max_delta_n.
void LimitDeltaN(const JobSpec& job, PipelineCosts& costs);

// The point of `plan` as it is, for schedules of its kind. The bound is of every schedule; for a searched one (kAuto),
// of those that fit: their costs count messages by the micro-batch. Errors as CostsOfPlan's.
absl::StatusOr<SchedulePoint> SchedulePointOf(const PlanRequest& request, const CostSource& source, Plan plan);

// The choices of mode, b and s with which the work alone, at the best split of the layers over the ranks of `plan`,
// takes at most `worth_ns`; with no other can a schedule end by then. Errors as CostsOfPlan's. REQUIRES: `plan` has one
// stage per pipeline rank.
absl::StatusOr<std::vector<WorkChoice>> WorkWithin(const PlanRequest& request, const CostSource& source,
                                                   const Plan& plan, int64_t worth_ns);

enum class LinearLayers : uint8_t { kOwn, kBalanced };

// Points of `plan` with each of `work`, for schedules of `kind`; by lower bound, equals in the order of `work`. With
// more stages than pipeline ranks their layers are even, or, if the job lets the search split them, such that pipeline
// ranks balance; with as many they are the plan's own, or the balanced ones if these differ. Of searched schedules a
// point is left out if one that differs by its ZeRO stage alone is as good in everything. InvalidArgument: fewer layers
// than stages, or two neighbouring stages on sites without a link. Else errors as SchedulePointOf's. REQUIRES: `plan`
// has one stage per pipeline rank; `work` is of the job's WorkChoices.
absl::StatusOr<std::vector<SchedulePoint>> SchedulePoints(const PlanRequest& request, const CostSource& source,
                                                          Plan plan, ScheduleKind kind, const StageChoice& stages,
                                                          std::span<const WorkChoice> work,
                                                          LinearLayers linear = LinearLayers::kOwn);

// The same for a schedule that is given, where `placement` says which pipeline rank runs each stage.
absl::StatusOr<std::vector<SchedulePoint>> GivenSchedulePoints(const PlanRequest& request, const CostSource& source,
                                                               Plan plan, const std::vector<int32_t>& placement,
                                                               std::span<const WorkChoice> work);

// The plan that exceeds its memory by least, of those that do not fit.
class LeastMisfit {
 public:
  // True when the plan, which does not fit, exceeds its memory by less than all before.
  bool Note(const Plan& plan, const PlanPrediction& prediction);
  // "pipeline rank 3 on site "north" needs 70 GiB per device of 60 GiB even at micro_batch_size 1, ...": the rank that
  // exceeds its memory by most.
  const std::string& need() const { return need_; }

 private:
  int64_t excess_bytes_ = std::numeric_limits<int64_t>::max();
  std::string need_;
};

}  // namespace geopipe
