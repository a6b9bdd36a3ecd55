#include "coordinator/core/progress_ledger.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "proto/wire/control_wire.h"

namespace geopipe {

// Returns the latest timelines where there are newer ones than the store has, and it is time: they are a few megabytes
// of large jobs, too much to be stored with every iteration.
std::optional<std::vector<v1::IterationTimeline>> ProgressLedger::TakeTimelines(Now now, Job& job) {
  constexpr int64_t kEveryNs = 10'000'000'000;
  constexpr size_t kStored = 2;
  const std::deque<v1::IterationTimeline>& timelines = job.iterations().timelines();
  const int64_t latest = timelines.empty() ? -1 : timelines.back().iteration();
  const bool is_due = now.ns >= job.stored.timelines_at_ns || IsFinal(job.state());
  if (!job.stored.timelines_void && (latest < 0 || latest == job.stored.timelines || !is_due)) {
    return std::nullopt;
  }
  job.stored.timelines_void = false;
  job.stored.timelines = latest;
  job.stored.timelines_at_ns = now.ns + kEveryNs;
  return std::vector(timelines.end() - static_cast<std::ptrdiff_t>(std::min(kStored, timelines.size())),
                     timelines.end());
}

JobProgress ProgressLedger::Take(Now now, Job& job) {
  JobProgress progress{.job = job.name(), .finished = {}, .partial = {}};
  progress.timelines = TakeTimelines(now, job);
  for (JobProgress& earlier : not_stored_) {  // comes first
    if (earlier.job == job.name()) {
      progress.begins_at = earlier.begins_at.has_value() ? earlier.begins_at : progress.begins_at;
      std::ranges::move(earlier.finished, std::back_inserter(progress.finished));
      std::ranges::move(earlier.partial, std::back_inserter(progress.partial));
      if (!progress.timelines.has_value()) {
        progress.timelines = std::move(earlier.timelines);
      }
    }
  }
  std::erase_if(not_stored_, [&](const JobProgress& earlier) { return earlier.job == job.name(); });
  IterationLog& log = job.run->told().iterations;
  int64_t& next = job.stored.next;
  if (log.next() < next || log.oldest() > next) {  // it resumes from another checkpoint
    progress.begins_at = log.oldest() > next ? log.oldest() : log.next();
    progress.finished.clear();
    next = *progress.begins_at;
  }
  for (int64_t i = std::max(next, log.oldest()); i < log.next(); ++i) {
    progress.finished.push_back(log.Get(i));
  }
  next = log.next();
  std::ranges::move(log.TakeNewPartials(), std::back_inserter(progress.partial));
  return progress;
}

void ProgressLedger::Flush(Now now) {
  if (now.ns < flush_at_ns_) {
    return;
  }
  PersistProgress persist{.progress = std::exchange(not_stored_, {}), .links = {}};
  for (const std::string& name : std::exchange(jobs_to_store_, {})) {
    if (Job* job = jobs_.Find(name); job != nullptr && job->run != nullptr) {
      if (JobProgress progress = Take(now, *job); !progress.empty()) {
        persist.progress.push_back(std::move(progress));
      }
    }
  }
  persist.links = links_.TakeUnstored(now);
  if (!persist.progress.empty() || !persist.links.empty()) {
    if (!std::exchange(last_failed_, false) && std::exchange(says_failing_, false)) {
      outbox_.Log(LogLevel::kInfo, "", "the job store is written again");
    }
    outbox_.Emit(std::move(persist));
    flush_at_ns_ = now.ns + interval_ns_;
  }
  agents_.Flush();
}

void ProgressLedger::OnNotStored(Now now, ProgressNotStored& event) {
  last_failed_ = true;
  if (!std::exchange(says_failing_, true)) {
    outbox_.Log(LogLevel::kError, "", "{}; trying again", std::string(event.status.message()));
  }
  // Effects after the failed one were dropped: the acknowledgements are due again, and agents keep what is not
  // acknowledged.
  not_stored_ = std::move(event.progress.progress);
  links_.NoteUnstored(event.progress.links);
  agents_.AcknowledgeAllSoon();
  flush_at_ns_ = now.ns + 10 * interval_ns_;
}

}  // namespace geopipe
