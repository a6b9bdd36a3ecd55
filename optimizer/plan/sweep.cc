#include "optimizer/plan/sweep.h"

#include <absl/status/status.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/plan/site_planner.h"

namespace geopipe {
namespace {

constexpr int32_t kDefaultSteps = 13;
constexpr int32_t kMaxSteps = 200;

double Saved(int64_t plan_ns, int64_t baseline_ns) {
  return baseline_ns == 0 ? 0 : 1 - static_cast<double>(plan_ns) / static_cast<double>(baseline_ns);
}

void Apply(SweepKey key, double value, PlanRequest& request) {
  if (key == SweepKey::kDeltaN) {
    request.fixed_delta_n = {static_cast<int32_t>(value)};
    return;
  }
  for (LinkSpec& link : request.cluster.links) {
    if (link.inside()) {
      continue;
    }
    if (key == SweepKey::kLatency) {
      link.latency_ns = std::llround(value);
    } else {
      link.bandwidth_bytes_per_s = value;
    }
  }
}

Baseline BaselineOf(const PlanResult& result, BaselineScope scope) {
  for (const Baseline& baseline : result.baselines) {
    if (baseline.schedule == ScheduleKind::kOneFOneB && baseline.comm == CommMode::kBlocking &&
        baseline.scope == scope) {
      return baseline;
    }
  }
  return {};
}

absl::StatusOr<SweepResult> ResultOf(const absl::StatusOr<PlanResult>& planned) {
  SweepResult result;
  if (absl::IsFailedPrecondition(planned.status()) || absl::IsDeadlineExceeded(planned.status())) {
    result.stopped = absl::IsDeadlineExceeded(planned.status());
    result.reason = std::string(planned.status().message());
    return result;
  }
  GP_RETURN_IF_ERROR(planned.status());
  result.feasible = true;
  result.same = BaselineOf(*planned, BaselineScope::kSame);
  result.best = BaselineOf(*planned, BaselineScope::kBest);
  result.plan = planned->plan;
  result.prediction = planned->prediction;
  return result;
}

// The request with the first of the schedules in place of the job's.
absl::StatusOr<PlanRequest> RequestOfFirst(const SweepRequest& request) {
  PlanRequest first = request.base;
  GP_ASSIGN_OR_RETURN(first.job.search.schedule, ParseScheduleKind(request.schedules.front()));
  return first;
}

absl::Status CheckRequest(const SweepRequest& request) {
  if (request.axes.empty() || request.axes.size() > 2) {
    return absl::InvalidArgumentError(fmt::format("a sweep has one figure or two, not {}", request.axes.size()));
  }
  if (request.axes.size() == 2 && request.axes[0].key == request.axes[1].key) {
    return absl::InvalidArgumentError(
        fmt::format("{} is swept twice; a grid needs two different figures", SweepKeyName(request.axes[0].key)));
  }
  const bool sweeps_links = std::any_of(request.axes.begin(), request.axes.end(),
                                        [](const SweepAxis& axis) { return axis.key != SweepKey::kDeltaN; });
  if (sweeps_links && std::ranges::all_of(request.base.cluster.links, &LinkSpec::inside)) {
    return absl::InvalidArgumentError("the topology has no links whose bandwidth or latency could be swept");
  }
  GP_CHECK(!request.schedules.empty());
  return absl::OkStatus();
}

}  // namespace

std::string_view SweepKeyName(SweepKey key) {
  static constexpr std::array<std::string_view, 3> kNames{"bandwidth", "latency", "delta_n"};
  return kNames[static_cast<size_t>(key)];
}

absl::StatusOr<SweepAxis> MakeSweepAxis(SweepKey key, double low, double high, int32_t steps) {
  if (low > high) {
    return absl::InvalidArgumentError("the first value is above the last; give the lower one first");
  }
  if (key == SweepKey::kLatency && low <= 0) {
    return absl::InvalidArgumentError("steps of equal ratios cannot begin at a latency of 0; begin above it");
  }
  const bool single = low == high;
  if (steps != 0 && (steps < (single ? 1 : 2) || steps > kMaxSteps)) {
    return absl::InvalidArgumentError(fmt::format("{} steps; there may be from 2 to {}", steps, kMaxSteps));
  }
  SweepAxis axis{.key = key, .values = {}};
  if (key == SweepKey::kDeltaN && steps == 0 && high - low + 1 > kMaxSteps) {
    return absl::InvalidArgumentError(
        fmt::format("{:.0f} values are more than {}; say how many with --steps", high - low + 1, kMaxSteps));
  }
  const int32_t every = key == SweepKey::kDeltaN ? static_cast<int32_t>(high - low) + 1 : kDefaultSteps;
  const int32_t count = single ? 1 : steps == 0 ? every : steps;
  for (int32_t i = 0; i < count; ++i) {
    const double part = count == 1 ? 0 : static_cast<double>(i) / (count - 1);
    double value = key == SweepKey::kDeltaN ? low + (high - low) * part : low * std::pow(high / low, part);
    value = i == count - 1 ? high : value;
    value = key == SweepKey::kBandwidth ? value : std::round(value);
    if (axis.values.empty() || value > axis.values.back()) {
      axis.values.push_back(value);
    }
  }
  return axis;
}

double SweepResult::BubbleReduction() const {
  return same.bubble_ratio <= 0 ? 0 : 1 - prediction.bubble_ratio / same.bubble_ratio;
}

double SweepResult::Gain() const { return Saved(prediction.iteration_ns, same.iteration_ns); }

double SweepResult::GainOverBest() const { return Saved(prediction.iteration_ns, best.iteration_ns); }

std::optional<size_t> SweepPoint::Best() const {
  std::optional<size_t> best;
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].feasible &&
        (!best.has_value() || results[i].prediction.iteration_ns < results[*best].prediction.iteration_ns)) {
      best = i;
    }
  }
  return best;
}

const SweepPoint& Sweep::At(size_t first, size_t last) const {
  GP_CHECK(axes.size() == 2);
  return points[first * axes[1].values.size() + last];
}

namespace {

class Sweeper {
 public:
  Sweeper(const SweepRequest& request, PlanRequest first)
      : request_(request),
        sites_(std::move(first)),
        total_(CountOf(request.axes) *
               static_cast<int64_t>(request.schedules.size() + (request.alternatives ? 1 : 0))) {}

  absl::StatusOr<Sweep> Run() {
    Sweep sweep{.axes = request_.axes, .schedules = request_.schedules, .points = {}};
    const std::vector<SweepAxis>& axes = request_.axes;
    const int64_t points = CountOf(axes);
    for (int64_t index = 0; index < points; ++index) {
      const auto columns = std::ssize(axes.back().values);
      PlanRequest at = request_.base;
      SweepPoint& point = sweep.points.emplace_back();
      if (axes.size() == 2) {
        point.at.push_back(axes.front().values[static_cast<size_t>(index / columns)]);
        Apply(axes.front().key, point.at.back(), at);
      }
      point.at.push_back(axes.back().values[static_cast<size_t>(index % columns)]);
      Apply(axes.back().key, point.at.back(), at);
      GP_RETURN_IF_ERROR(Fill(std::move(at), point));
    }
    return any_ ? absl::StatusOr<Sweep>(std::move(sweep)) : none_;
  }

 private:
  static int64_t CountOf(const std::vector<SweepAxis>& axes) {
    return std::ssize(axes.back().values) * (axes.size() == 2 ? std::ssize(axes.front().values) : 1);
  }

  void Progress() {
    if (request_.progress) {
      request_.progress(done_, total_);
    }
    ++done_;
  }

  absl::Status Fill(PlanRequest at, SweepPoint& point) {
    std::optional<PlanResult> best;
    for (size_t i = 0; i < request_.schedules.size(); ++i) {
      Progress();
      GP_ASSIGN_OR_RETURN(at.job.search.schedule, ParseScheduleKind(request_.schedules[i]));
      at.cluster_bound = false;
      at.single_site = false;
      const absl::StatusOr<PlanResult> planned = MakePlan(at);
      GP_ASSIGN_OR_RETURN(SweepResult result, ResultOf(planned));
      any_ = any_ || result.feasible;
      if (result.stopped) {
        none_ = absl::DeadlineExceededError(result.reason);
      } else if (!result.feasible && none_.ok()) {
        none_ = absl::FailedPreconditionError(result.reason);
      }
      point.results.push_back(std::move(result));
      if (planned.ok() && (!best.has_value() || planned->prediction.iteration_ns < best->prediction.iteration_ns)) {
        best = *planned;
      }
    }
    if (request_.alternatives) {
      Progress();
      point.alternatives = FindAlternatives(sites_, at.cluster, best.has_value() ? &*best : nullptr);
    }
    return absl::OkStatus();
  }

  const SweepRequest& request_;
  SitePlanner sites_;  // links do not matter to a site alone, so each is planned once
  int64_t total_;
  int64_t done_ = 0;
  absl::Status none_;  // why there is no plan at all
  bool any_ = false;
};

}  // namespace

absl::StatusOr<Sweep> RunSweep(const SweepRequest& request) {
  GP_RETURN_IF_ERROR(CheckRequest(request));
  GP_ASSIGN_OR_RETURN(PlanRequest first, RequestOfFirst(request));
  return Sweeper(request, std::move(first)).Run();
}

std::optional<size_t> KneeIndex(std::span<const int64_t> iteration_ns) {
  std::optional<size_t> knee;
  int64_t least = 0;
  int64_t greatest = 0;
  size_t behind = 0;  // points with a plan after the knee
  for (size_t i = iteration_ns.size(); i-- > 0;) {
    if (iteration_ns[i] == 0) {
      continue;
    }
    least = least == 0 ? iteration_ns[i] : std::min(least, iteration_ns[i]);
    greatest = std::max(greatest, iteration_ns[i]);
    if (static_cast<double>(greatest) / static_cast<double>(least) - 1 >= kKneeTolerance) {
      break;
    }
    behind += knee.has_value() ? 1 : 0;
    knee = i;
  }
  return behind > 0 ? knee : std::nullopt;
}

std::optional<size_t> KneeOf(const Sweep& sweep, size_t first) {
  const SweepAxis& axis = sweep.axes.back();
  const size_t columns = axis.values.size();
  std::vector<int64_t> iteration_ns;
  for (size_t column = 0; column < columns; ++column) {
    const SweepPoint& point = sweep.points[first * columns + column];
    const std::optional<size_t> best = point.Best();
    iteration_ns.push_back(best.has_value() ? point.results[*best].prediction.iteration_ns : 0);
  }
  const bool less_is_better = axis.key == SweepKey::kLatency;
  if (less_is_better) {
    std::reverse(iteration_ns.begin(), iteration_ns.end());
  }
  const std::optional<size_t> knee = KneeIndex(iteration_ns);
  return knee.has_value() && less_is_better ? columns - 1 - *knee : knee;
}

SweepSummary Summarize(const Sweep& sweep, size_t schedule) {
  SweepSummary summary;
  for (size_t i = 0; i < sweep.points.size(); ++i) {
    const SweepResult& result = sweep.points[i].results[schedule];
    if (!result.feasible) {
      continue;
    }
    if (summary.feasible == 0 || result.BubbleReduction() > summary.greatest_bubble_reduction) {
      summary.greatest_bubble_reduction = result.BubbleReduction();
      summary.greatest_point = i;
    }
    ++summary.feasible;
    summary.mean_gain += result.Gain();
    summary.mean_gain_over_best += result.GainOverBest();
  }
  const double count = std::max<double>(1, static_cast<double>(summary.feasible));
  summary.mean_gain /= count;
  summary.mean_gain_over_best /= count;
  return summary;
}

}  // namespace geopipe
