// The durable state of jobs: one SQLite database (WAL, synchronous=FULL), held by one coordinator at a time. When a
// writing call returns OK its data is on disk; when the machine dies within a call the store has all of it or nothing.
//
// Schema 7: schema_version(version); coordinator(incarnation); federation(id), drawn when the store is made; jobs(name,
// submitted, state, manifest, run, outcome, record) with the job as text and the messages RunOptions, JobDetail
// (without manifest, run and transitions) and JobRecord as blobs; transitions(job, seq, state, unix_time_ns, cause);
// iterations(job, iteration, summary) and partial_reports(job, iteration, rank, report) with IterationSummary and
// IterationReport as blobs; timelines(job, iteration, timeline) with IterationTimeline, the latest few of each job;
// links(from_site, to_site, from_traffic, unix_time_ns, value) with LinkMeasurement; drained_sites(site). Behind
// each message is its seal, 4 bytes: CRC-32C of it and of its row's key, for RunOptions of it and of the manifest. A
// store of schema 2 to 6 becomes one of schema 7 when it is opened.
//
// An earlier run of a name is a job called NAME@RUN (coordinator/core/run/kept_name.h); its messages have NAME, and its
// rows are never written again.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/run/stored.h"
#include "geopipe/v1/control_service.pb.h"

namespace geopipe {

struct JobStoreOptions {
  int64_t max_bytes = 0;                    // greatest size of the database; 0: as much as the disk holds
  int64_t busy_timeout_ns = 2'000'000'000;  // longest wait for another process to release the database
  int64_t iterations_kept = 100'000;        // of each job, the latest
};

// One thread at a time. Every error is one sentence that names the file and the remedy: ResourceExhausted (disk full,
// or max_bytes reached), DataLoss (damaged), FailedPrecondition (a newer version's, or
// another program's, which is left as it is), Unavailable (held by another
// process), PermissionDenied and others (cannot be opened).
class JobStore {
 public:
  // Creates the database when there is none; the folder must exist.
  static absl::StatusOr<std::unique_ptr<JobStore>> Open(std::string path, const JobStoreOptions& options = {});
  virtual ~JobStore() = default;

  // Loads everything but the iterations of finished jobs. A row that cannot be read costs its job alone
  // (StoredJob::damaged).
  virtual absl::StatusOr<StoredState> Load() = 0;

  // The incarnation of a coordinator that begins at `now_unix_ns`: greater than any before by at least 2^32, which
  // leaves numbers for what the earlier one named.
  virtual absl::StatusOr<uint64_t> NextIncarnation(int64_t now_unix_ns) = 0;

  // Adds a new job with its first transition and its record, and removes the job `forget` (empty: none). A job of the
  // same name is called `keep_as` from now on, with all that it has but partial reports (empty: it is removed), and its
  // iterations below `keep_below` become the new one's as well.
  virtual absl::Status InsertJob(const v1::JobDetail& detail, const v1::JobRecord& record, std::string_view forget,
                                 int64_t keep_below = 0, std::string_view keep_as = {}) = 0;

  // Adds the job's transition number `sequence` (from 0) and sets its state. `outcome` and `record` (nullptr:
  // unchanged) replace the job's outcome and the record that its coordinator needs; `progress` as AddProgress (nullptr:
  // none).
  virtual absl::Status AddTransition(std::string_view job, int64_t sequence, const v1::JobTransition& transition,
                                     const v1::JobDetail* outcome, const v1::JobRecord* record,
                                     const JobProgress* progress) = 0;
  // `outcome` as above.
  virtual absl::Status SetRecord(std::string_view job, const v1::JobRecord& record, const v1::JobDetail* outcome) = 0;

  // Stores iterations as they are told and removes their partial reports. Beyond JobStoreOptions::iterations_kept, the
  // oldest are dropped. Links replace earlier values.
  virtual absl::Status AddProgress(const std::vector<JobProgress>& progress, const std::vector<StoredLink>& links) = 0;
  // The job's latest iterations, ascending, without a gap.
  virtual absl::StatusOr<std::vector<v1::IterationSummary>> LoadIterations(std::string_view job) = 0;

  // The job's timelines as they were added last, ascending.
  virtual absl::StatusOr<std::vector<v1::IterationTimeline>> LoadTimelines(std::string_view job) = 0;

  virtual absl::Status SetDrained(std::string_view site, bool drained) = 0;

  // Writes a copy of the store as of now to <folder>/backups, and returns its path (job_store_backup.h, which puts it
  // back as well).
  virtual absl::StatusOr<std::string> Backup(int64_t now_unix_ns) = 0;
};

}  // namespace geopipe
