// The user: runs the jobs again and again, pauses, cancels and watches them, and compares what the coordinator says
// with the store.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/simulation/coordinator_host.h"
#include "tests/simulation/data_plane.h"
#include "tests/simulation/ledger.h"
#include "tests/simulation/reach.h"
#include "tests/simulation/world.h"

namespace geopipe::simulation {

// Everything the user has and knows of a job.
struct UserJob {
  JobSpec spec;
  bool resumes = false;  // it is applied with --resume
  int64_t runs = 0;      // that are over
  bool applied = false;  // and told so
  bool calling = false;  // an answer is awaited
  int64_t call_ns = 0;   // since then
  int64_t apply_ns = 0;  // when to apply it
  bool paused = false;   // the user has asked for it, and was told so
  bool wants_resume = false;
  int64_t entered_ns = 0;  // its state, as the store has it
  int transitions = 0;     // in the store
  int64_t moved_ns = 0;    // the last of them
  JobState state = v1::JOB_STATE_UNSPECIFIED;
  int64_t unreachable_ns = 0;                  // how long some site of it could not be reached in this state
  int64_t abandoning_ns = 0;                   // how long a stuck worker has not abandoned its iteration, undisturbed
  int64_t pausing_ns = 0;                      // how long it has been RUNNING though it is to pause, undisturbed
  std::pair<uint64_t, uint64_t> paused_epoch;  // run and epoch in which a pause was asked for last
  bool pause_early = false;                    // asked for while some site had been silent for long, and was since
  int64_t choose_ns = -1;                      // when the user looks whether there is something to choose; -1: never
  v1::JobDetail detail;                        // as the user has seen it last
  // Watch.
  CallId watch = 0;
  int64_t watched = 0;  // next iteration
  bool joined = false;  // a job that resumes has been watched past what is kept of the run before
  bool watch_over = false;
};

class User {
 public:
  // Interval between calls of Follow.
  static constexpr int64_t kPollNs = 250 * kMillisecondNs;

  User(World& world, Disk& disk, Ledger& ledger, const DataPlane& plane, const Reach& reach)
      : world_(world), disk_(disk), ledger_(ledger), plane_(plane), reach_(reach) {}
  User(const User&) = delete;
  User& operator=(const User&) = delete;

  // The user wants the job done, from that time on, and again when it is over.
  void Want(JobSpec spec, int64_t apply_ns);
  // This life of the coordinator is called from now on. What an earlier one was asked it does not answer any more.
  void Meet(const std::shared_ptr<CoordinatorLife>& coordinator);
  // Takes note of what became of the jobs, and does what is due.
  void Follow();

  // Asks for it, unless the coordinator cannot be called or the job is not applied. A pause is to last that long.
  void Pause(const std::string& name, int64_t duration_ns);
  void Cancel(const std::string& name);
  void Checkpoint(const std::string& name);
  // Keeps the site drained for the duration.
  void Drain(const std::string& site, int64_t duration_ns);
  // An older store has taken the place of the newest, and the user looks what it knows.
  void OnOlderStore();
  // No site is to stay drained.
  void UncordonAll();
  // No job is to stay paused.
  void ResumeAll();
  // Checks at the end, long after the last fault, that every job is over, goes on, or says what it waits for.
  void CheckEnd() const;

  const std::map<std::string, UserJob>& jobs() const { return jobs_; }
  // Real progress of the job's latest run: when it last finished an iteration, and the iterations that all of its ranks
  // have finished.
  int64_t ProgressOf(const std::string& name) const;
  int64_t NextOf(const std::string& name) const;

  // Number of times that a job reached this state.
  int64_t completed() const { return completed_; }
  int64_t failed() const { return failed_; }
  int64_t deployed() const { return deployed_; }

 private:
  // It lives and is not paused.
  bool CanCall() const;
  void OnState(const std::string& name, UserJob& job, JobState state);
  void CheckPause(const std::string& name, UserJob& job, const StoredJob* stored);
  void CheckAbandonment(const std::string& name, UserJob& job);
  void Begin(UserJob& job);
  void Apply(const std::string& name, UserJob& job);
  void Ask(const std::string& name, UserJob& job);
  void Resume(const std::string& name, UserJob& job, v1::ResumeFrom from);
  // The place from which a job is to go on that the store is older than; UNSPECIFIED: there is nothing to choose.
  v1::ResumeFrom Choice(const UserJob& job, const StoredJob* stored);
  void Uncordon();
  void Watch(const std::string& name, UserJob& job);
  void OnWatch(CallId call, const std::vector<v1::WatchJobResponse>& messages);
  void OnWatchEnd(CallId call);

  World& world_;
  Disk& disk_;
  Ledger& ledger_;
  const DataPlane& plane_;
  const Reach& reach_;
  std::shared_ptr<CoordinatorLife> coordinator_;  // the latest; nullptr: there was none
  std::map<std::string, UserJob> jobs_;
  std::map<std::string, int64_t> drained_;  // sites that may be, and until when
  int64_t next_look_ns_ = 0;
  int64_t met_ns_ = 0;  // the latest life of the coordinator
  int64_t completed_ = 0;
  int64_t failed_ = 0;
  int64_t deployed_ = 0;
};

}  // namespace geopipe::simulation
