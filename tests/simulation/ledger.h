// Records what really happened, which no process of the control plane can know, and holds it against the rules.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "optimizer/model/state_identity.h"
#include "tests/simulation/world.h"

namespace geopipe::simulation {

// The loss that the last rank computes: any run of the job, in any epoch, must tell this one.
inline double ValidationLossOf(int64_t iteration) { return 6.0 - 0.01 * static_cast<double>(iteration); }
inline double LossOf(int64_t iteration) { return 5.0 - 0.01 * static_cast<double>(iteration); }

// Lineage of the initial state.
inline constexpr uint64_t kFirstLineage = 1;

// The state with which a rank begins an epoch.
struct RankBeginning {
  int32_t rank = 0;
  int32_t ranks = 0;
  StateIdentity identity;
  uint64_t lineage = 0;
};

// One run of a job: what its ranks did.
struct RunTruth {
  uint64_t application = 0;
  int32_t ranks = 0;                // of its latest epoch
  std::map<int32_t, int64_t> next;  // by rank: iterations finished
  uint64_t epoch = 0;               // the latest that any rank has begun
  StateIdentity epoch_from;         // that it begins with
  int64_t progress_ns = 0;          // when an iteration was finished last
  bool keeps = false;               // its ranks keep their states in memory
  bool lost_memory = false;         // some memory that a state was kept in is gone
};

// A job from one time that the user has applied it to the next, over all of its runs.
struct JobTruth {
  std::string job;
  uint64_t resumes = 0;       // the application whose checkpoints it goes on from; 0: none
  int64_t newest_listed = 0;  // iteration of a checkpoint, of this or of that application
  int64_t first = 0;          // the iteration that its first epoch has begun with
  uint64_t epoch = 0;         // the latest that any rank has begun
  int64_t epoch_first = 0;    // its first iteration
  int64_t progress_ns = 0;    // when an iteration was finished last
  // Checkpoints that a rank could not read, by iteration: since when all tries were in vain, and the latest.
  struct Unread {
    int64_t since_ns = 0;
    int64_t last_ns = 0;
  };
  std::map<int64_t, Unread> unread;
  // Lineage of the state that the ranks had before the iteration, by epoch and iteration.
  std::map<std::pair<uint64_t, int64_t>, uint64_t> states;
  // Lineage of the state that the latest epochs have reached together, by iteration.
  std::vector<uint64_t> line = {kFirstLineage};
};

class Ledger {
 public:
  explicit Ledger(World& world) : world_(world) {}

  // The user has applied the job (again). `resumes`: to go on where it was.
  void OnApplied(const std::string& job, bool resumes);
  // Some nodes have lost what they had.
  void OnDiskLost() { disk_lost_ = true; }
  // A checkpoint is listed.
  void OnListed(const std::string& job, int64_t iteration);
  // A run of the job is stored. Whatever it does is done for the job as it was applied last.
  void OnRun(const std::string& job, uint64_t run);
  // A rank begins to train in the epoch.
  void OnEpochBegun(uint64_t run, uint64_t epoch, const RankBeginning& from);
  // A rank has read the state of a checkpoint that an epoch of a run has written.
  void OnRestored(uint64_t run, uint64_t written_run, uint64_t written_epoch, int64_t iteration, uint64_t lineage);
  // A rank cannot read the checkpoint of the iteration, for nothing can be read on its node.
  void OnUnread(uint64_t run, int64_t iteration);
  void Keeps(uint64_t run) { runs_[run].keeps = true; }
  void LoseMemory(uint64_t run) { runs_[run].lost_memory = true; }
  // A rank has finished an iteration; `lineage` of the state behind it.
  void OnIteration(uint64_t run, uint64_t epoch, int32_t rank, int64_t iteration, uint64_t lineage);

  // Something was done to the job that it may fail of.
  void Excuse(const std::string& job, const std::string& why) { excuses_[job].insert(why); }
  void Forget(const std::string& job) {
    if (excuses_.erase(job) > 0) {
      were_excused_.insert(job);
    }
  }
  bool excused(const std::string& job) const { return excuses_.contains(job); }
  bool excused(const std::string& job, const std::string& why) const {
    return excused(job) && excuses_.at(job).contains(why);
  }

  // The evaluation is of an earlier application of the job, which had an excuse: it is told now that it was lost then.
  bool LostBefore(const std::string& job, int64_t iteration) const;

  // A worker of the job was lost, with what it had not reported yet.
  bool LostWorker(const std::string& job) const {
    return excused(job, "a worker dies") || excused(job, "a state folder is lost") || excused(job, "a node reboots") ||
           excused(job, "a node is lost");
  }

  const RunTruth* Find(uint64_t run) const {
    const auto found = runs_.find(run);
    return found == runs_.end() ? nullptr : &found->second;
  }
  // The job as it was applied last.
  const JobTruth* Find(const std::string& job) const {
    const auto found = latest_.find(job);
    return found == latest_.end() ? nullptr : &jobs_.at(found->second);
  }
  int64_t iterations() const { return iterations_; }

 private:
  JobTruth& JobOf(const RunTruth& run) { return jobs_.at(run.application); }
  void BeginJob(JobTruth& job, const RankBeginning& from);
  bool IsPassedOver(const JobTruth& job, int64_t iteration) const;
  void NoteState(JobTruth& job, uint64_t epoch, int64_t iteration, uint64_t lineage);

  World& world_;
  std::map<uint64_t, RunTruth> runs_;
  std::map<uint64_t, JobTruth> jobs_;       // by application
  std::map<std::string, uint64_t> latest_;  // application of the job
  std::map<std::string, std::set<std::string>> excuses_;
  std::set<std::string> were_excused_;  // in an earlier application
  bool disk_lost_ = false;
  int64_t iterations_ = 0;  // of all ranks of all runs
};

}  // namespace geopipe::simulation
