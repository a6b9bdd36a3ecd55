// A job's plans on clusters that differ in one or two figures: its plan at every point, beside 1F1B, and the knee
// beyond which more of a figure no longer matters.
#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/plan/alternatives.h"
#include "optimizer/plan/planner.h"

namespace geopipe {

enum class SweepKey : uint8_t { kBandwidth, kLatency, kDeltaN };

// "bandwidth", "latency", "delta_n".
std::string_view SweepKeyName(SweepKey key);

// Values ascend: bytes per second of every link, nanoseconds (one way) of every link, or ΔN of every crossing.
struct SweepAxis {
  SweepKey key = SweepKey::kBandwidth;
  std::vector<double> values;
};

// `steps` values from `low` to `high`, both included: in equal ratios for bandwidth and latency (rounded to whole
// nanoseconds), in equal differences, rounded to whole numbers and without repetition, for ΔN. `steps` 0 means 13, and
// for ΔN every whole number. InvalidArgument: low above high, a latency of 0 (no ratio leads away from it), a step
// count that does not lie between 2 and 200 (1 where low is high), more than 200 values of ΔN.
absl::StatusOr<SweepAxis> MakeSweepAxis(SweepKey key, double low, double high, int32_t steps);

// The best plan of one schedule at one point.
struct SweepResult {
  bool feasible = false;
  bool stopped = false;  // should_stop ended the search before it found anything that fits
  std::string reason;    // why there is no plan
  Plan plan;
  Prediction prediction;
  // 1F1B with blocking sends, the baseline of the GeoPipe paper.
  Baseline same;  // with the plan's own b, s and layers
  Baseline best;  // with its own best b and s

  // The part of the baseline's bubble that the plan does without; 0 where the baseline has none.
  double BubbleReduction() const;
  // The parts of the baselines' iteration time that the plan saves.
  double Gain() const;
  double GainOverBest() const;
};

struct SweepPoint {
  std::vector<double> at;                         // one value per axis
  std::vector<SweepResult> results;               // one per schedule
  std::optional<Alternatives> alternatives = {};  // beside the best of the plans, where the request wants them

  // The schedule whose plan is the shortest, the first of equals; nullopt: there is no plan.
  std::optional<size_t> Best() const;
};

struct SweepRequest {
  PlanRequest base;
  std::vector<SweepAxis> axes;         // one, or two of different keys
  std::vector<std::string> schedules;  // values of search.schedule
  bool alternatives = false;           // also the job's alternatives at every point
  // Called before each plan, and before the alternatives of each point, with how many are done and how many there will
  // be; may be empty.
  std::function<void(int64_t done, int64_t total)> progress;
};

struct Sweep {
  std::vector<SweepAxis> axes;
  std::vector<std::string> schedules;
  std::vector<SweepPoint> points;  // the last axis runs fastest

  const SweepPoint& At(size_t first, size_t last) const;  // REQUIRES: two axes
};

// InvalidArgument: a request that is contradictory in itself. A point without a feasible plan is part of the result.
// When no point has one: DeadlineExceeded if one was stopped, else FailedPrecondition with the first reason.
absl::StatusOr<Sweep> RunSweep(const SweepRequest& request);

// Change of the iteration that may remain past a knee.
inline constexpr double kKneeTolerance = 0.01;

// The knee of `iteration_ns`, given in the order in which the swept figure gets better (more bandwidth, less latency,
// more ΔN): the first position from which on all remaining values lie within kKneeTolerance of each other (greatest /
// least - 1 < kKneeTolerance). Values of 0 stand for points without a plan and are skipped. nullopt when it would be
// the last one (which does not show that more does not help), or there is no value.
std::optional<size_t> KneeIndex(std::span<const int64_t> iteration_ns);

// The knee along the last axis, as an index into its values, of the best plans; `first` picks the value of the
// first of two axes (0 with one). For latency it is the greatest latency below which less does not help.
std::optional<size_t> KneeOf(const Sweep& sweep, size_t first = 0);

// A summary of the points, for one schedule.
struct SweepSummary {
  int64_t feasible = 0;
  double greatest_bubble_reduction = 0;
  size_t greatest_point = 0;  // where that is
  double mean_gain = 0;
  double mean_gain_over_best = 0;
};
SweepSummary Summarize(const Sweep& sweep, size_t schedule);

}  // namespace geopipe
