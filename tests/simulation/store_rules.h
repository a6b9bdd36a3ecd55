// Checks the coordinator's writes to its store against the disks of the nodes and against earlier writes.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/core/run/job_state.h"
#include "coordinator/core/run/stored.h"
#include "tests/simulation/checkpoint_disk.h"
#include "tests/simulation/ledger.h"
#include "tests/simulation/world.h"

namespace geopipe::simulation {

class StoreRules {
 public:
  StoreRules(World& world, Ledger& ledger) : world_(world), ledger_(ledger) {}

  // `path`: of the job's checkpoints; empty: it has none.
  void OnInsert(const v1::JobDetail& job, const std::string& path);
  // Another job takes the name of `old`, which is kept under `keep_as`; null: no job has the name.
  void OnReplaced(const StoredJob* old, std::string_view keep_as, const std::vector<StoredJob>& jobs);
  // Something of the job is about to be written.
  void OnWritten(std::string_view job);
  // Judges an outcome that is about to be written over `before`.
  void OnOutcome(const std::string& job, const v1::JobDetail& before, const v1::JobDetail& now);
  void OnRecord(const StoredJob& job, const v1::JobRecord& now, const std::vector<StoredJob>& jobs,
                const std::set<std::string>& drained);
  void OnTransition(const StoredJob& job, JobState to, const std::string& cause);

  void AddDisk(const std::string& site, CheckpointDisk& disk) { disks_[site] = &disk; }
  // An epoch of the run with the number is, or was.
  bool has_epoch(uint64_t run, uint64_t number) const { return epochs_.contains({run, number}); }
  bool has_secret(uint64_t number, const std::string& secret) const { return secrets_.contains({number, secret}); }

  // A job as it was applied last.
  struct Applied {
    std::string path;
    int64_t number = 0;  // of all that were applied under the name
    uint64_t run = 0;    // the latest
    uint64_t epoch = 0;  // the latest, and which run's
    uint64_t epoch_run = 0;
    std::deque<int64_t> moves_ns;  // since the last progress
  };
  const std::map<std::string, Applied>& applied() const { return applied_; }
  // The store is one of the time when this was known.
  void OnOlderStore(const std::map<std::string, Applied>& applied) { applied_ = applied; }
  // The iteration may be stored without what some rank has reported of it.
  bool MayLack(const std::string& job, int64_t iteration) const {
    return ledger_.LostWorker(job) || ledger_.MayLack(job, iteration);
  }

 private:
  void CheckEpoch(const StoredJob& job, const v1::JobRecord& now, Applied& applied);
  void CheckListed(const std::string& job, const v1::CheckpointSummary& summary);
  void CheckCopied(const std::string& job, const v1::CheckpointSummary& summary);
  void CheckEvaluations(const std::string& job, const v1::JobDetail& before, const v1::JobDetail& now);
  void CheckEvaluated(const StoredJob& job);
  void CheckSaved(const StoredJob& job);
  void CheckDevices(const StoredJob& job, const v1::JobRecord& now, const std::vector<StoredJob>& jobs);
  // The folder of the checkpoint at the site; nullptr: none, or the disk has lost something.
  const CheckpointFolder* FolderAt(const std::string& site, const std::string& path, int64_t iteration) const;

  World& world_;
  Ledger& ledger_;
  std::map<std::string, CheckpointDisk*> disks_;  // by site
  std::map<std::string, Applied> applied_;
  std::set<std::pair<uint64_t, uint64_t>> epochs_;
  std::set<std::pair<uint64_t, std::string>> secrets_;
};

}  // namespace geopipe::simulation
