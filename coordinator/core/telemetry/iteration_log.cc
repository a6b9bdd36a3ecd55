#include "coordinator/core/telemetry/iteration_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "coordinator/core/telemetry/clock_alignment.h"
#include "optimizer/base/check.h"
#include "optimizer/simulator/measured_iteration.h"

namespace geopipe {
namespace {

// The lower of the two middle values when there are two, so that a median is always something that was measured.
template <class T>
T Median(std::vector<T> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

absl::StatusOr<int64_t> IterationLog::OnReport(const v1::IterationReport& report) {
  const int32_t rank = report.rank();
  if (report.iteration() < next_ || rank < 0 || rank >= ranks_) {
    return 0;
  }
  if (pending_.size() >= kMaxPending && !pending_.contains(report.iteration())) {
    return absl::ResourceExhaustedError(fmt::format(
        "rank {} reports iteration {} while iteration {} is not reported by every rank; the ranks have drifted "
        "apart by more than {} iterations",
        rank, report.iteration(), next_, kMaxPending));
  }
  Pending& pending = pending_[report.iteration()];
  if (pending.reported.empty()) {
    pending.reported.resize(ranks_);
    pending.missing = ranks_;
    pending.with_actions.resize(ranks_);
    pending.summary.set_iteration(report.iteration());
  }
  if (pending.reported[rank]) {
    return 0;
  }
  pending.reported[rank] = true;
  --pending.missing;
  pending.busy_ns += report.busy_ns();
  if (report.actions_size() > 0) {
    pending.with_actions[rank] = report;
  }
  if (rank == 0) {
    pending.summary.set_duration_ns(report.duration_ns());
    if (report.has_grad_norm()) {
      pending.summary.set_grad_norm(report.grad_norm());
    }
  }
  if (report.has_loss()) {
    pending.summary.set_loss(report.loss());
  }
  int64_t completed = 0;
  for (auto first = pending_.begin(); first != pending_.end() && first->first == next_ && first->second.missing == 0;
       first = pending_.begin()) {
    KeepTimeline(first->second);
    v1::IterationSummary summary = std::move(first->second.summary);
    const double available_ns = static_cast<double>(ranks_) * static_cast<double>(summary.duration_ns());
    summary.set_bubble_ratio(
        available_ns > 0 ? std::max(0.0, 1.0 - static_cast<double>(first->second.busy_ns) / available_ns) : 0.0);
    kept_.push_back(std::move(summary));
    if (kept_.size() > kept_limit_) {
      kept_.pop_front();
    }
    pending_.erase(first);
    ++next_;
    ++completed;
  }
  return completed;
}

void IterationLog::KeepTimeline(const Pending& pending) {
  int64_t actions = 0;
  for (const v1::IterationReport& report : pending.with_actions) {
    if (report.actions_size() == 0) {
      return;
    }
    actions += report.actions_size();
  }
  timelines_.push_back(TimelineOf(pending.with_actions));
  const auto most = static_cast<size_t>(std::clamp<int64_t>(kMaxTimelineActions / actions, 1, kMaxTimelines));
  while (timelines_.size() > most) {
    timelines_.pop_front();
  }
}

const v1::IterationSummary& IterationLog::Get(int64_t iteration) const {
  GP_CHECK(iteration >= oldest() && iteration < next_, "iteration {} of [{}, {})", iteration, oldest(), next_);
  return kept_[static_cast<size_t>(iteration - oldest())];
}

std::optional<double> IterationLog::last_loss() const {
  return kept_.empty() || !kept_.back().has_loss() ? std::nullopt : std::optional(kept_.back().loss());
}

std::optional<v1::Measured> IterationLog::Measure(int64_t tokens_per_iteration) const {
  if (kept_.empty()) {
    return std::nullopt;
  }
  std::vector<int64_t> durations;
  std::vector<double> bubbles;
  for (int64_t iteration = std::max(WarmUpIterations(next_), oldest()); iteration < next_; ++iteration) {
    durations.push_back(Get(iteration).duration_ns());
    bubbles.push_back(Get(iteration).bubble_ratio());
  }
  v1::Measured measured;
  measured.set_iterations(static_cast<int64_t>(durations.size()));
  measured.set_iteration_ns(Median(std::move(durations)));
  measured.set_bubble_ratio(Median(std::move(bubbles)));
  if (measured.iteration_ns() > 0) {
    measured.set_tokens_per_s(static_cast<double>(tokens_per_iteration) * 1e9 /
                              static_cast<double>(measured.iteration_ns()));
  }
  return measured;
}

void IterationLog::Forget() {
  kept_.clear();
  kept_.shrink_to_fit();
  pending_.clear();
  timelines_.clear();
}

}  // namespace geopipe
