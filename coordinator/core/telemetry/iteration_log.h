// Iterations of the whole pipeline, put together from the reports of its ranks, and what they measured.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "geopipe/v1/control_service.pb.h"
#include "geopipe/v1/telemetry.pb.h"

namespace geopipe {

// Puts iterations together from reports. Those of one rank come in order, but some may be missing: a sender that could
// not keep them has dropped the oldest. An iteration is complete when every rank has reported it or a later one, so no
// lost report holds up later iterations.
class IterationLog {
 public:
  IterationLog() = default;
  // Iterations from `first` on, of `ranks` ranks. The latest `kept` summaries stay readable.
  IterationLog(int32_t ranks, int64_t first, size_t kept);

  // Restores what an earlier life of the coordinator has stored: summaries up to `next` (the latest, without a gap) and
  // reports of iterations from there on, of which those of the latest `epoch` count.
  static IterationLog Restore(int32_t ranks, size_t kept, uint64_t epoch, int64_t next,
                              std::vector<v1::IterationSummary> summaries,
                              const std::vector<v1::IterationReport>& partial);

  // Goes on with another plan, of so many ranks: complete iterations stay, incomplete ones are void.
  void GoOnWith(int32_t ranks);

  // A plan of so many ranks begins with iteration `first`. What was told below it stays if it reaches up to it.
  void BeginAt(int32_t ranks, int64_t first, size_t kept);

  // Begins an epoch with iteration `first`, of as many ranks as before. Reports from there on are void, except those of
  // iterations that were told: these are passed over when they are done again.
  void BeginEpoch(uint64_t epoch, int64_t first);

  // Takes the report of one rank and returns how many iterations became complete: those that all ranks have reported or
  // passed, like all iterations before them. The loss comes from the rank that runs the last stage, duration and
  // gradient norm are rank 0's, bubble_ratio = 1 - sum of busy / (ranks * duration). Figures of a lost report are
  // absent, and the summary is marked incomplete. Second reports, and those that name no rank, are ignored.
  int64_t OnReport(const v1::IterationReport& report);
  // Notes that the rank has finished all iterations below `next`: what it has not reported of them will not come.
  int64_t OnRankAt(int32_t rank, int64_t next);

  // Iterations complete so far: all below this one.
  int64_t next() const { return next_; }
  // The first iteration that no rank has reported.
  int64_t reached() const;
  // The oldest summary still kept; next() when none is.
  int64_t oldest() const { return next_ - static_cast<int64_t>(kept_.size()); }
  // REQUIRES: oldest() <= iteration < next().
  const v1::IterationSummary& Get(int64_t iteration) const;
  std::optional<double> last_loss() const;

  // Reports of incomplete iterations that came since the last call, without actions.
  std::vector<v1::IterationReport> TakeNewPartials();

  // Medians over the iterations after warm-up, which is the first three or the first tenth, whichever is more
  // (connections open, allocators and caches fill), but never all. nullopt before the first iteration.
  std::optional<v1::Measured> Measure(int64_t tokens_per_iteration) const;

  // The latest complete iterations that every rank has reported with its actions, ascending: kMaxTimelines, or fewer
  // (but one) when these have more than kMaxTimelineActions.
  const std::deque<v1::IterationTimeline>& timelines() const { return timelines_; }

  // Frees the summaries' memory; medians and single iterations are then no longer known.
  void Forget();

  // Limits on iterations that some rank has not reported yet. Past the first, the oldest is told incomplete; past the
  // second, later ones have no timelines.
  static constexpr size_t kMaxPending = 100'000;
  static constexpr size_t kMaxPendingWithActions = 64;
  static constexpr size_t kMaxTimelines = 5;
  static constexpr int64_t kMaxTimelineActions = 200'000;

 private:
  struct Pending {
    std::vector<bool> reported;                     // per rank
    std::vector<v1::IterationReport> with_actions;  // per rank, when the report has them; empty: none had
    double busy_ns = 0;
    v1::IterationSummary summary;
  };

  void Take(const v1::IterationReport& report);
  int64_t Complete();
  void CompleteFirst();
  void KeepTimeline(const Pending& pending);

  int32_t ranks_ = 0;
  size_t kept_limit_ = 0;
  uint64_t epoch_ = 0;
  int64_t next_ = 0;
  std::vector<int64_t> rank_next_;  // per rank: the first iteration that it has neither reported nor passed
  std::map<int64_t, Pending> pending_;
  std::vector<v1::IterationReport> new_partials_;
  std::deque<v1::IterationSummary> kept_;
  std::deque<v1::IterationTimeline> timelines_;
};

}  // namespace geopipe
