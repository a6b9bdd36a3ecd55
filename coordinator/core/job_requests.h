// Requests about jobs that their runs need not know of: takes new jobs, and answers questions about those that there
// are.
//
// Rules: a step that takes a job does nothing else, and its traces are removed when the store does not take the job; a
// job takes the place of a finished one of its name alone, and not unasked of one that has done something; that one is
// kept as an earlier run of the name, unless its row in the store is damaged; the oldest finished job makes room, of a
// name with too many runs its oldest.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/jobs.h"
#include "coordinator/core/outbox.h"
#include "coordinator/core/placement.h"
#include "coordinator/core/watches.h"

namespace geopipe {

class JobRequests {
 public:
  JobRequests(const CoordinatorOptions& options, Outbox& outbox, Jobs& jobs, Watches& watches,
              const Placement& placement)
      : options_(options), outbox_(outbox), jobs_(jobs), watches_(watches), placement_(placement) {}

  absl::StatusOr<v1::ApplyJobResponse> On(Now now, ApplyJob& event);
  absl::Status On(Now now, const PersistFailed& event);
  absl::StatusOr<v1::ListJobsResponse> On(Now now, const ListJobs& event) const;
  absl::StatusOr<v1::GetJobResponse> On(Now now, const GetJob& event) const;
  void On(Now /*now*/, const BackupStore& event) { outbox_.Emit(WriteBackup{event.call}); }
  // Answers at once, or asks the store for the timelines and answers when they are loaded.
  void On(Now now, const GetTrace& event);
  absl::StatusOr<v1::GetTraceResponse> On(Now now, const TimelinesLoaded& event) const;

  // The store has taken the latest job: called before any step but that of PersistFailed.
  void Confirm() { undo_.reset(); }

 private:
  // State that a submission has replaced.
  struct Undo {
    std::string job;
    std::unique_ptr<Job> removed;  // to make room; the one of its name, if that is not kept
    Job* kept = nullptr;           // of its name
    Watches::Ended watches;
  };

  // Returns the finished job that a new one needs the place of; nullptr: there is place enough. `old`: the job of its
  // name, which is kept unless it is the answer; may be null.
  absl::StatusOr<Job*> JobToForget(Job* old) const;

  const CoordinatorOptions& options_;
  Outbox& outbox_;
  Jobs& jobs_;
  Watches& watches_;
  const Placement& placement_;
  std::optional<Undo> undo_;
};

}  // namespace geopipe
