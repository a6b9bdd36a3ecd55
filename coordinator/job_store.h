// The durable state of jobs: one SQLite database (WAL, synchronous=FULL), held by one coordinator at a time. When a
// writing call returns OK its data is on disk; when the machine dies within a call the store has all of it or nothing.
// Single iterations are not stored, for they would cost an fsync each: how many were done, the last loss and the
// medians go with the transition that ends the job.
//
// Schema 2: schema_version(version); jobs(name, submitted, state, manifest, run, outcome) with the job as text and the
// messages RunOptions and JobDetail (without manifest, run and transitions) as blobs; transitions(job, seq, state,
// unix_time_ns, cause).
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "geopipe/v1/control_service.pb.h"

namespace geopipe {

struct JobStoreOptions {
  int64_t max_bytes = 0;                    // greatest size of the database; 0: as much as the disk holds
  int64_t busy_timeout_ns = 2'000'000'000;  // how long to wait for another process to let go of it
};

// One thread at a time. Every error is one sentence that names the file and the remedy: ResourceExhausted (disk full,
// or max_bytes reached), DataLoss (damaged), FailedPrecondition (a newer version's), Unavailable (held by another
// process), PermissionDenied and others (cannot be opened).
class JobStore {
 public:
  // Creates the database when there is none; the folder must exist.
  static absl::StatusOr<std::unique_ptr<JobStore>> Open(std::string path, const JobStoreOptions& options = {});
  virtual ~JobStore() = default;

  // All jobs in order of submission.
  virtual absl::StatusOr<std::vector<v1::JobDetail>> Load() = 0;

  // A new job with its first transition; replaces a job of the same name and removes the job `forget` (empty: none).
  virtual absl::Status InsertJob(const v1::JobDetail& detail, std::string_view forget) = 0;

  // Adds the job's transition number `sequence` (from 0) and sets its state. `outcome` (nullptr: unchanged) replaces
  // what the job has come to.
  virtual absl::Status AddTransition(std::string_view job, int64_t sequence, const v1::JobTransition& transition,
                                     const v1::JobDetail* outcome) = 0;
};

}  // namespace geopipe
