// One job as the coordinator keeps it: its durable state, the requests to it, and its run while it has one.
#pragma once

#include <cstdint>
#include <deque>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/cluster/names.h"
#include "coordinator/core/life/job_run.h"
#include "coordinator/core/run/kept_name.h"
#include "coordinator/core/telemetry/iteration_log.h"
#include "geopipe/v1/control_service.pb.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/run_options.h"
#include "optimizer/plan/report/plan_result.h"

namespace geopipe {

// The latest notices of a job, for those who watch it. They are numbered from 0 on.
class NoticeLog {
 public:
  static constexpr size_t kMaxKept = 32;

  void Add(v1::JobNotice notice);
  // Number of the next one.
  int64_t next() const { return dropped_ + std::ssize(kept_); }
  // Returns the first notice from `number` on that is kept, and moves the number behind it; nullptr: there is none.
  const v1::JobNotice* Read(int64_t& number) const;

 private:
  std::deque<v1::JobNotice> kept_;
  int64_t dropped_ = 0;
};

struct Job {
  static constexpr int64_t kNoDeadlineNs = std::numeric_limits<int64_t>::max();

  uint64_t sequence = 0;    // order of submission
  v1::JobDetail detail;     // what the store has; live figures are put in by DetailOf
  bool is_damaged = false;  // its row in the store cannot be read, and stays as it is
  JobSpec spec;             // unset for finished jobs of an earlier life of the coordinator
  RunOptions options;
  uint64_t last_worker = 0;         // number of the latest worker of its runs that are over; 0: not known
  uint64_t last_stored_worker = 0;  // of those that the store knew when this process began
  std::unique_ptr<JobRun> run;      // from PROFILING until a final state, or until the job goes on elsewhere

  // --- While PENDING. ---
  std::string asks;                     // what decides which devices it gets at first (AskedFor)
  std::string waiting_for;              // what is missing
  int64_t again_at_ns = 0;              // it does not begin (again) before
  int64_t links_by_ns = kNoDeadlineNs;  // until when it waits for its links to be probed
  CheckpointList checkpoints;           // of the run before, but those that the detail lists

  // --- Nodes, once it has a run. ---
  std::set<NodeKey> home;                 // of its runs
  std::set<NodeKey> before;               // of the latest run that did an iteration
  std::set<NodeKey> unfit;                // those that a run was to come back to and failed with
  std::map<NodeKey, int64_t> unheard_ns;  // of its nodes, or in trouble, for how long
  std::optional<int64_t> unfit_since_ns;  // since when troubles of nodes, and nothing else, keep it from an iteration
  int64_t unfit_last_ns = 0;              // the latest of them
  bool needs_home = false;                // the job does not fit on fewer nodes
  bool return_due = false;                // a checkpoint was written: nodes that are back may be used again
  std::string stays;                      // why it does not leave nodes that it should; empty: it need not
  std::set<NodeKey> saved_for;            // nodes that go down, for which a checkpoint was asked for
  int64_t saves_before = 0;               // its iteration
  int64_t save_again_ns = 0;              // the next try is no earlier
  Exit exit;                              // that LookAfter has found, for the rules of the same step

  // --- Iterations. ---
  IterationLog past;        // while there is no run
  uint64_t kept_since = 0;  // of a finished job whose iterations are in memory: which end it was; 0: they are not
  struct {
    bool has_more = false;        // iterations that `past` has not
    int64_t next = 0;             // iterations below this one were given to the store
    int64_t timelines = -1;       // the latest iteration whose timeline was
    int64_t timelines_at_ns = 0;  // not before then are timelines stored again
    bool timelines_void = false;  // those that are stored are of another plan
  } stored;
  std::vector<int64_t> iterations_before;  // per transition: iterations that were finished when it was made

  std::string closing;  // why it is cancelled as soon as its state is in a checkpoint; empty: it is not

  // --- Notices. ---
  NoticeLog notices;
  bool saving_fails = false;   // watchers were told that checkpoints come to nothing
  int64_t say_wait_at_ns = 0;  // when what the job's end waits for is told next; 0: training is not over

  JobState state() const { return detail.summary().state(); }
  // The name that it is found under: of an earlier run of a name, NAME@RUN.
  const std::string& name() const { return detail.summary().name(); }
  // Its number among the jobs that were applied under its name, from 1 on.
  int64_t number() const { return detail.summary().run(); }
  // True when another job was applied under its name: it is final for ever.
  bool is_kept() const { return IsKeptName(name()); }
  // True when the job has trained, in this run or an earlier one.
  bool has_trained() const { return detail.epochs_size() > 0; }
  const IterationLog& iterations() const { return run == nullptr ? past : run->told().iterations; }
  // True when the node was not heard for as long as the job waits for one.
  bool IsGone(const NodeKey& node) const {
    const auto found = unheard_ns.find(node);
    return found != unheard_ns.end() && found->second >= spec.grace_ns;
  }
};

// Sentences on what goes wrong with the job without ending it: it loses workers again and again, checkpoints fail,
// agents are not heard. Empty: nothing does.
std::string TroubleOf(const Job& job);
// Losses in a row from which on that is said.
inline constexpr int32_t kNotableLosses = 3;

// A new job: PENDING, with its first transition.
std::unique_ptr<Job> NewJob(JobSpec spec, RunOptions options, int64_t unix_now_ns);
// A job out of the store: a finished one, or one whose live course is still to be restored. DataLoss when it cannot be
// read, and is not finished.
absl::StatusOr<std::unique_ptr<Job>> RestoreJob(const StoredJob& stored);

// A job whose row in the store cannot be read, or says what cannot be: it counts as FAILED, and its row stays as it is.
std::unique_ptr<Job> DamagedJob(const StoredJob& stored, int64_t unix_now_ns);

// Records the transition in the job. REQUIRES: MayFollow(job.state(), to).
void AddTransition(Job& job, JobState to, const std::string& cause, int64_t unix_now_ns);

// REQUIRES: job.run has the plan.
void SetPlanned(Job& job, const PlanResult& plan);
// The run has begun an epoch, or ended it. REQUIRES: job.run has an epoch.
void NoteEpochBegun(Job& job, const std::string& cause, int64_t unix_now_ns);
void NoteEpochEnded(Job& job, int64_t next_iteration, int64_t unix_now_ns);
// Records a loss (`begins`: the run was well before), or that the run is well again.
void NoteLoss(Job& job, const Reaction::Loss& loss, bool begins, int64_t unix_now_ns);
void NoteRecovered(Job& job, int64_t unix_now_ns);
// Writes the job's list of checkpoints anew, from that of its run. `complete`: one that is complete on all nodes just
// now; null: none is.
void NoteCheckpoints(Job& job, const ListedCheckpoint* complete, int64_t unix_now_ns);
// Adds evaluations to the job's list, which keeps the latest kMaxEvaluations.
void NoteEvaluations(Job& job, std::vector<v1::EvaluationSummary> evaluations);
inline constexpr int kMaxEvaluations = 1000;
// The state that another run of the job would go on from.
JobLife::Earlier EarlierOf(const Job& job);
// The job takes the place of a finished one of its name, with what that has done before this iteration. `old` stays as
// it is.
void KeepCurve(const Job& old, int64_t below, Job& job);
// The newest checkpoint that is listed of the job, by the iteration before which it is; 0: there is none.
int64_t LastCheckpoint(const v1::JobDetail& detail);
// The node's folder of the job's checkpoints is not expected to bear the mark any more. True: it was.
bool ForgetMark(Now now, Job& job, const NodeKey& node);
// The store's record of a job that has a run, or had one; of a job that is over only what tells its workers from
// others.
v1::JobRecord RecordOf(const Job& job);
// Number of the latest worker that any run of the job was given; 0: not known.
uint64_t LastWorkerOf(const Job& job);
// Copies the memory that the run's ranks have reported to the detail.
void NoteMemory(Job& job);
// Copies iterations, last loss and medians as of now to the detail.
void SetMeasured(Job& job);

// The job as clients see it, with live figures.
v1::JobSummary SummaryOf(const Job& job);
v1::JobDetail DetailOf(const Job& job);
// The part of the detail that changes after submission, without transitions: what the store writes again.
v1::JobDetail OutcomeOf(const Job& job);

// A modelled run of explicit costs may take an iteration of other tokens than the job's. REQUIRES: planned.
int64_t TokensPerIteration(const Job& job);

}  // namespace geopipe
