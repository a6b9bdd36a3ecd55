#include "coordinator/core/telemetry/iteration_log.h"

#include <algorithm>
#include <iterator>
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

IterationLog::IterationLog(int32_t ranks, int64_t first, size_t kept)
    : ranks_(ranks), kept_limit_(kept), next_(first), rank_next_(ranks, first) {}

IterationLog IterationLog::Restore(int32_t ranks, size_t kept, uint64_t epoch, int64_t next,
                                   std::vector<v1::IterationSummary> summaries,
                                   const std::vector<v1::IterationReport>& partial) {
  IterationLog log(ranks, next, kept);
  log.epoch_ = epoch;
  log.kept_.assign(std::make_move_iterator(summaries.begin()), std::make_move_iterator(summaries.end()));
  for (const v1::IterationReport& report : partial) {
    if (report.epoch() == epoch) {  // else it was void when the epoch began
      log.Take(report);
    }
  }
  log.Complete();
  log.new_partials_.clear();
  return log;
}

void IterationLog::GoOnWith(int32_t ranks) {
  ranks_ = ranks;
  rank_next_.assign(static_cast<size_t>(ranks), next_);
  pending_.clear();
  new_partials_.clear();
  timelines_.clear();  // of other ranks
}

void IterationLog::BeginAt(int32_t ranks, int64_t first, size_t kept) {
  std::vector<v1::IterationSummary> below;
  if (next_ >= first) {
    const auto end = kept_.begin() + std::max<int64_t>(0, std::ssize(kept_) - (next_ - first));
    below.assign(std::make_move_iterator(kept_.begin()), std::make_move_iterator(end));
  }
  *this = Restore(ranks, kept, 0, first, std::move(below), {});
}

void IterationLog::BeginEpoch(uint64_t epoch, int64_t first) {
  epoch_ = epoch;
  pending_.erase(pending_.lower_bound(first), pending_.end());
  std::ranges::fill(rank_next_, first);
}

int64_t IterationLog::OnReport(const v1::IterationReport& report) {
  Take(report);
  return Complete();
}

int64_t IterationLog::OnRankAt(int32_t rank, int64_t next) {
  if (rank >= 0 && rank < ranks_) {
    rank_next_[rank] = std::max(rank_next_[rank], next);
  }
  return Complete();
}

int64_t IterationLog::reached() const {
  return rank_next_.empty() ? next_ : std::max(next_, *std::ranges::max_element(rank_next_));
}

void IterationLog::Take(const v1::IterationReport& report) {
  const int32_t rank = report.rank();
  if (report.iteration() < next_ || rank < 0 || rank >= ranks_) {
    return;
  }
  rank_next_[rank] = std::max(rank_next_[rank], report.iteration() + 1);
  Pending& pending = pending_[report.iteration()];
  pending.reported.resize(ranks_);
  if (pending.reported[rank]) {
    return;
  }
  pending.reported[rank] = true;
  pending.busy_ns += static_cast<double>(report.busy_ns());
  if (report.actions_size() > 0 && pending_.size() <= kMaxPendingWithActions) {
    pending.with_actions.resize(ranks_);
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
  v1::IterationReport& partial = new_partials_.emplace_back(report);
  partial.clear_actions();
  partial.clear_clocks();
  partial.clear_peaks();
  partial.set_epoch(epoch_);
}

int64_t IterationLog::Complete() {
  const int64_t told = ranks_ == 0 ? next_ : *std::ranges::min_element(rank_next_);
  const int64_t before = next_;
  while (next_ < told || pending_.size() > kMaxPending) {
    CompleteFirst();
  }
  return next_ - before;
}

// Completes iteration next_ with the reports that there are.
void IterationLog::CompleteFirst() {
  const auto first = pending_.find(next_);
  const Pending pending = first == pending_.end() ? Pending{} : std::move(first->second);
  if (first != pending_.end()) {
    pending_.erase(first);
  }
  KeepTimeline(pending);
  v1::IterationSummary summary = pending.summary;
  summary.set_iteration(next_);
  summary.set_epoch(epoch_);
  if (pending.reported.empty() || std::ranges::find(pending.reported, false) != pending.reported.end()) {
    summary.set_incomplete(true);
  } else {
    const double available_ns = static_cast<double>(ranks_) * static_cast<double>(summary.duration_ns());
    summary.set_bubble_ratio(available_ns > 0 ? std::max(0.0, 1.0 - pending.busy_ns / available_ns) : 0.0);
  }
  kept_.push_back(std::move(summary));
  if (kept_.size() > kept_limit_) {
    kept_.pop_front();
  }
  ++next_;
}

std::vector<v1::IterationReport> IterationLog::TakeNewPartials() {
  std::vector<v1::IterationReport> partials = std::exchange(new_partials_, {});
  std::erase_if(partials, [this](const v1::IterationReport& partial) { return partial.iteration() < next_; });
  return partials;
}

void IterationLog::KeepTimeline(const Pending& pending) {
  int64_t actions = 0;
  if (pending.with_actions.empty()) {
    return;
  }
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
    if (const v1::IterationSummary& summary = Get(iteration); !summary.incomplete()) {
      durations.push_back(summary.duration_ns());
      bubbles.push_back(summary.bubble_ratio());
    }
  }
  if (durations.empty()) {
    return std::nullopt;
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
  new_partials_.clear();
  timelines_.clear();
}

}  // namespace geopipe
