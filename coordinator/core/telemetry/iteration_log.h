// Iterations of the whole pipeline, put together from the reports of its ranks, and what they measured.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "geopipe/v1/control_service.pb.h"
#include "geopipe/v1/telemetry.pb.h"

namespace geopipe {

class IterationLog {
 public:
  IterationLog() = default;
  // Iterations from `first` on, of `ranks` ranks. The latest `kept` summaries stay readable.
  IterationLog(int32_t ranks, int64_t first, size_t kept) : ranks_(ranks), kept_limit_(kept), next_(first) {}

  // Takes the report of one rank. Returns how many iterations became complete: an iteration is complete when all ranks
  // have reported it and all before it are. The loss comes from the rank that runs the last stage, duration and
  // gradient norm are rank 0's, bubble_ratio = 1 - sum of busy / (ranks * duration). Second reports are ignored.
  // ResourceExhausted when some rank is more than kMaxPending iterations behind another.
  absl::StatusOr<int64_t> OnReport(const v1::IterationReport& report);

  // Iterations complete so far: all below this one.
  int64_t next() const { return next_; }
  // The oldest summary still kept; next() when none is.
  int64_t oldest() const { return next_ - static_cast<int64_t>(kept_.size()); }
  // REQUIRES: oldest() <= iteration < next().
  const v1::IterationSummary& Get(int64_t iteration) const;
  std::optional<double> last_loss() const;

  // Medians over the iterations after warm-up, which is the first three or the first tenth, whichever is more
  // (connections open, allocators and caches fill), but never all. nullopt before the first iteration.
  std::optional<v1::Measured> Measure(int64_t tokens_per_iteration) const;

  // The latest complete iterations that every rank has reported with its actions, ascending: kMaxTimelines, or fewer
  // (but one) when these have more than kMaxTimelineActions.
  const std::deque<v1::IterationTimeline>& timelines() const { return timelines_; }

  // Gives the summaries' memory back; medians and single iterations are then no longer known.
  void Forget();

  static constexpr size_t kMaxPending = 4096;
  static constexpr size_t kMaxTimelines = 5;
  static constexpr int64_t kMaxTimelineActions = 200'000;

 private:
  struct Pending {
    std::vector<bool> reported;  // per rank
    int32_t missing = 0;
    std::vector<v1::IterationReport> with_actions;  // per rank, when the report has them
    int64_t busy_ns = 0;
    v1::IterationSummary summary;
  };

  void KeepTimeline(const Pending& pending);

  int32_t ranks_ = 0;
  size_t kept_limit_ = 0;
  int64_t next_ = 0;
  std::map<int64_t, Pending> pending_;
  std::deque<v1::IterationSummary> kept_;
  std::deque<v1::IterationTimeline> timelines_;
};

}  // namespace geopipe
