// Records what really happened, which no process of the control plane can know, and holds it against the rules.
#pragma once

#include <cstdint>
#include <functional>
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
  std::string secret;  // of the epoch
};

// A worker of a run that trained when an older store took the place of the newest, which does not know it, or not how
// far it is.
struct LeftWorker {
  std::string site;
  int32_t device = 0;
  uint64_t run = 0;
};

// Everything that a job's store may have forgotten since an older one took its place.
struct Forgotten {
  int64_t iterations = 0;               // reports of those below may be
  std::map<uint64_t, LeftWorker> left;  // by incarnation; nobody may stop them before people choose
  std::pair<uint64_t, uint64_t> begun;  // run and epoch that were the latest
  bool outrun = false;                  // some were left
  int64_t heard_ns = 0;                 // time since, while all of its sites could be heard
};

// One run of a job: what its ranks did.
struct RunTruth {
  uint64_t application = 0;
  int32_t ranks = 0;                // of its latest epoch
  std::map<int32_t, int64_t> next;  // by rank: iterations finished
  int64_t reached = 0;              // iterations that some rank has finished
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
  int64_t told_from = 0;      // evaluations before it are those of the application before
  uint64_t epoch = 0;         // the latest that any rank has begun
  int64_t epoch_first = 0;    // its first iteration
  int64_t progress_ns = 0;    // when an iteration was finished last
  // Iterations that this or an earlier application has not told of, first and past the last: it went on from a
  // checkpoint that was found and had never been listed.
  std::vector<std::pair<int64_t, int64_t>> gaps;
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
  // A rank cannot read a checkpoint, for this reason.
  void OnRefused(const std::string& job, const std::string& cause) { refused_[job] = {cause, world_.now_ns()}; }
  // The last such reason in the last seconds; "": there is none.
  std::string RefusedLately(const std::string& job) const;
  void Keeps(uint64_t run) { runs_[run].keeps = true; }
  void LoseMemory(uint64_t run) { runs_[run].lost_memory = true; }
  // A rank has finished an iteration; `lineage` of the state behind it.
  void OnIteration(uint64_t run, uint64_t epoch, int32_t rank, int64_t iteration, uint64_t lineage);

  // --- An older store ---
  // The store is one that knows the job as of this application, and has forgotten this. `run`: that it has, or 0;
  // `goes_on`: some of its workers live.
  struct Older {
    uint64_t application = 0;
    uint64_t run = 0;
    uint64_t epoch = 0;
    bool goes_on = false;
    Forgotten forgotten;
  };
  void OnOlderStore(const std::string& job, Older older);
  uint64_t ApplicationOf(const std::string& job) const { return latest_.contains(job) ? latest_.at(job) : 0; }
  uint64_t ApplicationOfRun(uint64_t run) const { return Find(run) == nullptr ? 0 : Find(run)->application; }
  // nullptr: its store is no older one.
  const Forgotten* FindForgotten(const std::string& job) const {
    const auto found = forgotten_.find(job);
    return found == forgotten_.end() ? nullptr : &found->second;
  }
  // True when the report of what was done before the iteration may be forgotten.
  bool MayLack(const std::string& job, int64_t iteration) const {
    return FindForgotten(job) != nullptr && iteration < FindForgotten(job)->iterations;
  }
  // All sites of the job could be heard for so long.
  void NoteHeard(const std::string& job, int64_t for_ns) {
    if (const auto found = forgotten_.find(job); found != forgotten_.end()) {
      found->second.heard_ns += for_ns;
    }
  }
  // The user has chosen where a job goes on that the store is older than, or to end it.
  void OnChosen(const std::string& job) {
    if (const auto found = forgotten_.find(job); found != forgotten_.end()) {
      found->second.left.clear();
    }
  }
  // The run has failed, as it may: its workers are stopped.
  void OnFailed(const std::string& job, uint64_t run);
  // He has given up what the store does not know. `run`: that goes on; 0: another one will. `epoch`: the latest that is
  // not given up.
  void OnGivenUp(const std::string& job, uint64_t run, uint64_t epoch);
  // An agent tells the worker to stop.
  void OnStopOrdered(const std::string& job, uint64_t incarnation);
  // A worker has ended, and nobody has told it to: with what it had not reported.
  void OnSelfEnded(const std::string& job, uint64_t incarnation);
  // True when a worker has ended so after the iteration.
  bool WentUntold(const std::string& job, int64_t iteration) const {
    return untold_.contains(job) && iteration <= untold_.at(job);
  }
  bool stop_ordered(uint64_t incarnation) const { return stop_ordered_.contains(incarnation); }
  // The worker has ended, or no agent knows it any more.
  void OnGone(const std::string& job, uint64_t incarnation);
  // A run is given the device.
  void OnDeviceGiven(const std::string& job, const std::string& site, int32_t device);
  // True when the coordinator hears of the site. Set once.
  std::function<bool(const std::string& site)> hears;

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

  // The evaluation is of an earlier application of the job, which had an excuse, or lies where its curve has a gap: it
  // is told now that it was lost then.
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
  void CheckChosen(const JobTruth& job, uint64_t run, uint64_t epoch);
  bool IsPassedOver(const JobTruth& job, int64_t iteration) const;
  static void BeginAt(JobTruth& job, const RankBeginning& from);
  void NoteState(JobTruth& job, uint64_t epoch, int64_t iteration, uint64_t lineage);

  World& world_;
  std::map<uint64_t, RunTruth> runs_;
  std::map<uint64_t, JobTruth> jobs_;       // by application
  std::map<std::string, uint64_t> latest_;  // application of the job
  std::map<std::string, std::set<std::string>> excuses_;
  std::set<std::string> were_excused_;                              // in an earlier application
  std::map<std::string, Forgotten> forgotten_;                      // by job
  std::map<std::string, std::pair<std::string, int64_t>> refused_;  // by job; and when
  std::map<std::pair<uint64_t, uint64_t>, std::string> secrets_;    // by run and epoch
  std::map<std::string, int64_t> untold_;  // iterations that were done when a worker of the job ended by itself
  std::set<uint64_t> stop_ordered_;        // incarnations of workers
  bool disk_lost_ = false;
  int64_t iterations_ = 0;  // of all ranks of all runs
};

}  // namespace geopipe::simulation
