// Keeps what was reported and is not stored yet, and has it stored: the progress of jobs and measurements of links
// go to the store together, a few times a second, and only then are the reports acknowledged.
//
// Rules: nothing is stored twice or left out, whether it goes with a flush, with a transition of its job, or again
// after the store could not be written. Iterations are stored in order; where a run begins behind or before those that
// are stored, it is said.
//
// Callers: the coordinator, with what jobs were reported, with their transitions, and at the end of each step.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/agents.h"
#include "coordinator/core/jobs.h"
#include "coordinator/core/link_monitor.h"
#include "coordinator/core/outbox.h"

namespace geopipe {

class ProgressLedger {
 public:
  ProgressLedger(const CoordinatorOptions& options, Outbox& outbox, const Jobs& jobs, LinkMonitor& links,
                 Agents& agents)
      : interval_ns_(options.flush_interval_ns), outbox_(outbox), jobs_(jobs), links_(links), agents_(agents) {}

  // The job has been reported something.
  void Note(const Job& job) { jobs_to_store_.insert(job.name()); }
  // Returns what the job has not stored yet, to be stored with its transition. REQUIRES: it has a run.
  JobProgress Take(Now now, Job& job);
  // Stores what was reported since the last flush, and acknowledges it, if it is time.
  void Flush(Now now);
  void OnNotStored(Now now, ProgressNotStored& event);

 private:
  static std::optional<std::vector<v1::IterationTimeline>> TakeTimelines(Now now, Job& job);

  const int64_t interval_ns_;
  Outbox& outbox_;
  const Jobs& jobs_;
  LinkMonitor& links_;
  Agents& agents_;
  std::set<std::string> jobs_to_store_;
  std::vector<JobProgress> not_stored_;  // by a failed flush
  bool last_failed_ = false;             // the latest flush
  bool says_failing_ = false;
  int64_t flush_at_ns_ = 0;
};

}  // namespace geopipe
