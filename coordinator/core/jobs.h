// The jobs that the coordinator keeps, by name: waiting, running and finished ones, among these earlier runs of names
// (coordinator/core/run/kept_name.h). All parts of the core find them here; jobs come and go only by submission and at
// the coordinator's start.
#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/core/coordinator_options.h"
#include "coordinator/core/events.h"
#include "coordinator/core/job.h"

namespace geopipe {

class Jobs {
 public:
  explicit Jobs(const CoordinatorOptions& options) : options_(options) {}

  // nullptr: there is none.
  Job* Find(const std::string& name) const;
  // The run of the name that a client asks for; 0: the latest. NotFound says how to list them.
  absl::StatusOr<Job*> Named(const std::string& name, int64_t run = 0) const;
  // Earlier runs of the name, ascending.
  std::vector<Job*> KeptOf(const std::string& name) const;
  // Number of the next job of the name.
  int64_t NextNumber(const std::string& name) const;
  // The job whose live run has this incarnation; nullptr: the run is over.
  Job* OfRun(const std::string& name, uint64_t incarnation) const;
  // The job whose live run has this worker; nullptr: it is of another run, or of none.
  Job* OfWorker(const v1::WorkerId& worker) const;
  // The job whose live run this worker of the node is of, though it is younger than the one that the run knows of in
  // its place: the run's record is older than the run. nullptr: there is none.
  Job* Outrun(const NodeKey& node, const v1::WorkerId& worker, const v1::WorkerState& state) const;
  // In order of submission: all, and those that have a run.
  std::vector<Job*> InOrder() const;
  std::vector<Job*> Running() const;
  size_t size() const { return jobs_.size(); }

  // Adds the job as the latest one, and numbers it if it has no number. REQUIRES: no other has its name.
  Job& Add(std::unique_ptr<Job> job);
  std::unique_ptr<Job> Remove(const std::string& name);
  // Takes a removed job back in its place.
  void PutBack(std::unique_ptr<Job> job);
  // The job is found under another name from now on. REQUIRES: it is over, and no other has that name.
  void Rename(Job& job, const std::string& name);

  // Every run of a job begins here, and ends here by nullptr.
  void SetRun(Job& job, std::unique_ptr<JobRun> run);

  // The job is over: its iterations stay in memory until those of finished_logs_kept later ones do.
  void KeepPast(Job& job);
  // Takes iterations of the job that were in the store alone.
  void RestorePast(Job& job, IterationsLoaded& event);

 private:
  const CoordinatorOptions& options_;
  std::map<std::string, std::unique_ptr<Job>> jobs_;
  std::map<uint64_t, Job*> by_sequence_;
  std::map<uint64_t, Job*> running_;
  uint64_t next_sequence_ = 1;
  uint64_t ends_ = 0;  // jobs that are over, so far
};

}  // namespace geopipe
