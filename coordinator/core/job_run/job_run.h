// One run of a job on its devices: its crew of workers, from their start over profiling to the last iteration, and the
// epochs they run. Says which messages to send and which state the job should enter next, and why; the coordinator
// makes the transition durable first and then lets the run enter the state. The durable part (Record) suffices to go on
// after a restart of the coordinator.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "coordinator/core/cluster/allocation.h"
#include "coordinator/core/cluster/links.h"
#include "coordinator/core/cluster/names.h"
#include "coordinator/core/run/epoch.h"
#include "coordinator/core/run/failure.h"
#include "coordinator/core/run/job_state.h"
#include "coordinator/core/run/plan_rollout.h"
#include "coordinator/core/run/profiling.h"
#include "coordinator/core/run/restarts.h"
#include "coordinator/core/run/run_checkpoints.h"
#include "coordinator/core/run/stored.h"
#include "coordinator/core/telemetry/evaluation_log.h"
#include "coordinator/core/telemetry/iteration_log.h"
#include "coordinator/core/telemetry/measured_links.h"
#include "coordinator/core/telemetry/memory_log.h"
#include "geopipe/v1/agent_service.pb.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/run_options.h"
#include "optimizer/plan/report/plan_result.h"
#include "runtime/manifest/coordinator_config.h"

namespace geopipe {

struct NodeMessage {
  NodeKey node;
  v1::ConnectResponse message;
};

// Consequences of something that happened to a run.
struct Reaction {
  struct Change {
    JobState to = v1::JOB_STATE_UNSPECIFIED;
    std::string cause;
  };
  // A loss after which the job is to go on: it moves to RECOVERING, or is in it already, or, where it has no epoch yet,
  // back to PENDING. Durable before anything is started again.
  struct Loss {
    std::string kind;                                        // FailureEvidence
    std::string cause;                                       // one sentence
    std::vector<std::pair<WorkerKey, std::string>> workers;  // to be started again, each with its cause
    int64_t delay_ns = 0;                                    // before anything is
    int64_t stalled_ns = 0;                                  // time without progress before it was noticed
  };
  std::optional<Change> change = std::nullopt;
  std::vector<NodeMessage> sends = {};           // to be sent now; they do not depend on `change`
  int64_t iterations_finished = 0;               // number that became complete
  std::vector<TrafficObservation> traffic = {};  // of the links, when an iteration told
  // A checkpoint that is complete on all nodes; `checkpoint_trouble`: an attempt failed.
  std::optional<ListedCheckpoint> checkpoint = std::nullopt;
  std::optional<ListedCheckpoint> copied = std::nullopt;  // now at another site as well
  bool unlisted = false;                                  // some are listed no more: durable before `sends`
  std::optional<std::string> checkpoint_trouble = std::nullopt;
  std::optional<Loss> loss = std::nullopt;
  bool wants_secret = false;  // TakeSecret is to be called with a fresh one

  static Reaction MoveTo(JobState state, std::string cause) { return {.change = Change{state, std::move(cause)}}; }
  static Reaction FailWith(std::string cause) { return MoveTo(v1::JOB_STATE_FAILED, std::move(cause)); }
  static Reaction FailWith(const absl::Status& status) { return FailWith(std::string(status.message())); }
};

// Facts by which a run judges the silence of a node's agent.
struct NodeSilence {
  NodeKey node;
  int64_t silent_ns = 0;  // since it was last heard
  int64_t grace_ns = 0;   // its workers, if they are cut off and make no progress, end by themselves after so long, or
                          // what their epoch says if that is more
  int64_t margin_ns = 0;  // and nobody acts on it before so long afterwards
};

// Iterations of the run: the job's own count, or fewer when it is to stop early.
int64_t EndIteration(const JobSpec& job, const RunOptions& run);

// The cause of the transition to COMPLETED.
std::string DoneSentence(int64_t iterations);

class JobRun {
 public:
  // The run is named `incarnation`; its workers have the numbers after it, no other worker ever has one of them.
  JobRun(const JobSpec& job, const RunOptions& run, Allocation allocation, uint64_t incarnation, std::string version,
         const JobRunLimits& limits);

  // Restores the run of a job that an earlier life of the coordinator has left in a state from PROFILING on. Its
  // workers are still to be heard of. DataLoss: the stored parts do not fit together.
  static absl::StatusOr<std::unique_ptr<JobRun>> Restore(const JobSpec& job, const RunOptions& run, StoredJob stored,
                                                         std::string version, const JobRunLimits& limits, Now now);
  v1::JobRecord Record() const;

  // --- Entering a state. Each returns what to send. ---
  std::vector<NodeMessage> EnterProfiling(int64_t now_ns);
  // Restores what the job has lost in earlier runs, which counts as well.
  void RestoreLosses(const v1::JobDetail& detail, Now now);
  // Restores which evaluations were told.
  void RestoreEvaluations(const v1::JobDetail& detail);
  void EnterPlanning();
  // Notes that the planner has begun; until then it was busy with other jobs.
  void OnPlanningBegun(int64_t now_ns);
  // An earlier run of the job, which has left its devices. This run goes on from the newest checkpoint that its nodes
  // have together, or begins anew where there is none and no iteration was ever told. Given once, before the plan is
  // set.
  struct Earlier {
    uint64_t epochs = 0;  // the latest, of all runs
    IterationLog iterations;
    std::vector<ListedCheckpoint> checkpoints;
    std::vector<CheckpointIdentity> resumable;
    bool told = false;  // figures of some iteration
    // Sizes that the earlier iterations were done with: others would skip or repeat samples, and change the order of
    // sums. 0: none.
    int64_t micro_batch_size = 0;
    int64_t sequence_length = 0;

    // True when a run on these nodes finds a checkpoint, or no iteration was ever told.
    bool CanGoOnAt(const std::set<NodeKey>& nodes) const;
  };
  void GoOnFrom(Earlier earlier);
  // A finished job's iterations, which the plan goes on from. Instead of GoOnFrom.
  void GoOnFrom(IterationLog curve) { iterations_ = std::move(curve); }
  uint64_t epochs_before() const { return epochs_before_; }
  // The job, limited to the micro-batch sizes and sequence lengths that this run may have.
  const JobSpec& choices() const { return choices_; }
  const std::vector<ListedCheckpoint>& checkpoints() const { return listed_; }

  // Fits the plan to the allocated devices, whose numbers it then bears. Internal when it names devices that were not
  // allocated. `secret`: fresh, for an epoch with this plan.
  absl::Status SetPlan(PlanResult* plan, std::string secret);
  // Begins an epoch with the plan as soon as that is possible.
  Reaction Begin() { return Decide(); }
  // Writes a checkpoint of the state that the ranks rest with, and says what has become of it.
  enum class Rest : uint8_t { kSaved, kPending, kFailed };
  // REQUIRES: PAUSED.
  Rest RestState() const;
  std::vector<NodeMessage> SaveRest();
  // Prepares the ranks of the epoch that was begun, and stops workers that are no rank of it, whose devices are given
  // back.
  std::vector<NodeMessage> EnterDeploying(int64_t now_ns, const LinkTable& links);
  // The reaction completes the job at once when every worker has already finished.
  Reaction EnterRunning(int64_t now_ns);
  // The reaction begins the next epoch at once when the pause is no longer wanted.
  Reaction EnterPaused();
  // Ends the epoch on those that are left, and the processes of those that are lost.
  std::vector<NodeMessage> EnterRecovering(int64_t now_ns);
  // Writes the state that the ranks rest with, for the run that follows this one.
  Reaction EnterReplanning(int64_t now_ns);
  // Stops every worker.
  std::vector<NodeMessage> StopAll(const std::string& reason) const;

  // `nodes`: those of the run that cannot be heard, or may not hear.
  void Hear(std::span<const NodeSilence> nodes);

  // --- What is wanted. ---
  // Pause and Resume take effect once all agents can be heard: a rank that does not hear of its epoch's end, or of the
  // next epoch, would lose its state. Pause ends the epoch, or takes a resume back. REQUIRES: RUNNING or PAUSED.
  Reaction Pause();
  // Takes back a pause that has not taken effect yet, or asks for the next epoch. `secret`: fresh.
  Reaction Resume(std::string secret);
  bool pause_wanted() const { return pause_wanted_; }
  // Makes the ranks write a checkpoint besides those that are due, before an iteration that none will have passed when
  // it hears of it, or before that of the pause. FailedPrecondition: the job has no checkpoint.path, neither runs nor
  // is paused, or is about to pause or to end.
  absl::StatusOr<int64_t> Checkpoint(Reaction& reaction);

  // --- Going on elsewhere. ---
  // Sets the sites that the job has to leave: parts of a checkpoint that only their nodes have are copied to the others
  // before it moves.
  void SetLeaving(std::set<std::string> sites) { leaving_ = std::move(sites); }
  // Ends the epoch, writes a checkpoint of where it ended and moves the job to PENDING when that is safe; if that
  // fails, the job goes on as it is, and may_move() is false for a while. REQUIRES: may_move(); RUNNING.
  Reaction BeginMove(std::string cause);
  bool moving() const { return moving_; }
  // False when the plan's nodes have none of the job's checkpoints and it must not begin anew.
  bool FindsState() const;
  // True when some iteration was done in this run.
  bool progressed() const { return run_progressed_; }
  // False while the job pauses, is about to end, or has given a move up a moment ago.
  bool may_move(int64_t now_ns) const {
    return !moving_ && !pause_wanted_ && !ending_ && !AllDone() && now_ns >= move_not_before_ns_ &&
           !job_.checkpoint.path.empty();
  }

  // --- Going on after a loss. ---
  // True when a worker is to be started again now.
  bool RestartDue(int64_t now_ns) const;
  // Starts workers in the place of lost ones where agents can be heard, numbered after `last_incarnation`, which
  // becomes the last of them. To be made durable before it is sent.
  std::vector<NodeMessage> StartLost(int64_t now_ns, uint64_t& last_incarnation);
  // Takes the secret of the next epoch.
  Reaction TakeSecret(std::string secret);

  // --- What happens. `report` and `exit` are of a worker of this run (Has). ---
  Reaction OnReport(int64_t now_ns, const WorkerKey& worker, const v1::WorkerReport& report);
  Reaction OnExit(int64_t now_ns, const WorkerKey& worker, const v1::WorkerExit& exit);
  Reaction OnSilent(int64_t now_ns, const WorkerKey& worker, const v1::WorkerSilent& silent);
  // Handles an agent that does not know this coordinator's orders (one of the two was restarted) and has these workers
  // of the run alive.
  struct Living {
    bool attached = false;
    v1::WorkerStatus status;
  };
  Reaction OnNodeReturned(int64_t now_ns, const NodeKey& node, const std::map<WorkerKey, Living>& alive);
  // Handles an agent that knows this coordinator's orders, can be heard again and has these workers of the run alive.
  void OnReachable(const NodeKey& node, const std::map<WorkerKey, Living>& alive);
  // Returns outstanding orders for the workers of nodes that have returned, once all nodes of the run are connected.
  std::vector<NodeMessage> OnAllConnected(const LinkTable& links);
  // `nodes`: those of the run that are not connected or have been silent.
  Reaction OnTick(int64_t now_ns, std::span<const NodeSilence> nodes);
  // Puts deadlines off by the time that this process was stopped: nobody else is to blame for it.
  void Forgive(int64_t pause_ns);

  uint64_t incarnation() const { return incarnation_; }
  const Allocation& allocation() const { return allocation_; }
  const std::set<NodeKey>& nodes() const { return nodes_; }  // held by the job
  // True for a worker of this run that was not told to stop.
  bool Has(const WorkerKey& worker) const {
    const auto found = workers_.find(worker);
    return found != workers_.end() && !found->second.stopped;
  }
  bool Has(const WorkerKey& worker, uint64_t incarnation) const {
    return Has(worker) && workers_.at(worker).incarnation == incarnation;
  }
  uint64_t IncarnationOf(const WorkerKey& worker) const { return workers_.at(worker).incarnation; }
  uint64_t last_incarnation() const;
  int64_t WorkersOn(const NodeKey& node) const;
  // Workers that were not told to stop and whose end is not known; false for those that their agent came back without.
  std::map<WorkerKey, bool> Crew() const;
  // Time after which workers without an agent have ended by themselves. `rests`: also those that are paused or have
  // finished.
  int64_t GraceNs(const NodeSilence& silence, bool rests) const;
  // Time after which a worker of the node that no agent knows any more has ended.
  int64_t AloneNs(const NodeKey& node) const;
  // Orphan grace of the node's workers, as its agent told before they were started; 0: not told.
  int64_t OrphanGraceNs(const NodeKey& node) const;
  const Profile& profile() const { return profile_; }
  // The checkpoint that the first epoch begins with, once the job is planned: the newest of those that it may.
  std::optional<CheckpointIdentity> resume_from() const {
    return resumable_.empty() ? std::nullopt : std::optional(resumable_.back());
  }
  const std::vector<CheckpointIdentity>& resumable() const { return resumable_; }
  const std::optional<Epoch>& epoch() const { return epoch_; }
  const std::shared_ptr<PlanResult>& plan() const { return plan_; }
  // Iteration before which the latest epoch has ended; nullopt: it has not.
  const std::optional<int64_t>& ended_at() const { return ended_at_; }
  // The first iteration that no rank of the latest epoch has finished.
  int64_t reached() const { return reached_; }
  // Reason for waiting that the job's state does not show; empty: none.
  std::string WaitsFor() const;
  // Says that some of its agents are not heard while it runs; empty: all are.
  std::string SilenceSentence() const;
  // True when some rank has finished the last iteration: all have taken part in it, and only reports are missing.
  bool AllDone() const;
  // True when some rank has finished an iteration of the latest epoch.
  bool fruitful() const { return epoch_.has_value() && reached_ > epoch_->first_iteration; }
  // Tells why the latest checkpoint came to nothing; empty: it did not.
  const std::string& checkpoint_trouble() const { return checkpoint_trouble_; }
  // True while the cause of a loss is still being decided: what the workers said must not be forgotten meanwhile.
  bool diagnosing() const { return diagnosis_.pending(); }
  const IterationLog& iterations() const { return iterations_; }
  IterationLog& iterations() { return iterations_; }
  // Evaluations that were told since the last call, and those whose reports are lost.
  std::vector<v1::EvaluationSummary> TakeEvaluations();
  // Memory of the plan's ranks.
  const MemoryLog& memory() const { return memory_; }
  // True when a plan has to be searched for (again), once all nodes are connected.
  bool wants_plan() const { return state_ == v1::JOB_STATE_PLANNING && plan_ == nullptr && undriven_.empty(); }

 private:
  static constexpr int64_t kNoDeadlineNs = std::numeric_limits<int64_t>::max();

  struct Worker {
    uint64_t incarnation = 0;
    bool hello = false;     // has been attached
    bool stopped = false;   // told to stop: it is no rank of the plan
    bool failed = false;    // has said why it cannot go on
    bool finished = false;  // its last iteration is done
    bool told_all = false;  // and so has its last report said, which follows all others
    bool unseen = false;    // its agent came back without it
    bool exited = false;    // its end was told
    bool lost = false;      // another is to be started in its place
    bool lost_with_node = false;
    // Latest time since which the process may live without an agent that knows it; unset: one does, or it has ended.
    std::optional<int64_t> alone_since_ns;
    std::string trouble;  // why it is to be, if the job goes on; empty: it is well
    uint64_t epoch = 0;   // the rest as WorkerFacts
    v1::WorkerPhase phase = v1::WORKER_PHASE_IDLE;
    int64_t next_iteration = 0;  // the first that it has not finished
    std::vector<StateIdentity> states;
    std::string exchange_address;    // source of its node's checkpoint files
    v1::DataCheckReport data_check;  // the latest in this life of the coordinator
    std::string slow_action;         // overdue action in its last heartbeat
  };

  // --- durable.cc ---
  absl::Status RestorePlan(const v1::JobDetail& detail);
  absl::Status RestoreEpoch(StoredJob stored);

  // --- job_run.cc ---
  // The node with this number at the site, as plans count them; nullptr when it was not allocated.
  const AllocatedNode* NodeAt(std::string_view site, int32_t node) const;
  void MarkIdle();
  // -1: the worker is no rank of the plan.
  int32_t RankOf(const WorkerKey& worker) const;
  bool AllFinished() const;
  std::string WhatRecoveryWaitsFor() const;
  std::string DeadlineSentence() const;
  int64_t PrepareLimitNs() const;
  int64_t CommitLimitNs() const;
  void SetDeadline(int64_t now_ns);
  int64_t ProgressTimeoutNs() const;
  // Limit on an iteration and an evaluation before it: several times what the plan says.
  int64_t SlowestIterationNs() const;

  // --- orders.cc ---
  NodeMessage Command(const WorkerKey& worker, v1::WorkerCommand command) const;
  NodeMessage Start(const WorkerKey& worker) const;
  v1::WorkerCommand ProfileOrder(const WorkerKey& worker) const;
  v1::WorkerCommand PrepareOrder(int32_t rank, const LinkTable& links) const;
  void AddFileSources(const WorkerKey& reader, v1::PrepareCommand& prepare) const;
  v1::WorkerCommand CommitOrder() const;
  v1::WorkerCommand EndOrder() const;
  // The order that the worker has to answer next; nullopt: none.
  std::optional<v1::WorkerCommand> OutstandingFor(const WorkerKey& worker, const LinkTable& links) const;
  std::vector<NodeMessage> ProfileRound(int64_t now_ns);
  std::vector<NodeMessage> CommitAll(int64_t now_ns);
  std::vector<NodeMessage> EndAll() const;

  // --- reports.cc ---
  Reaction OnHello(int64_t now_ns, Worker& worker, const WorkerKey& key, const v1::WorkerHello& hello);
  Reaction BeginMeasuring(int64_t now_ns);
  Reaction OnProfile(int64_t now_ns, const WorkerKey& key, const v1::ProfileReport& report);
  Reaction OnPrepared(int64_t now_ns, Worker& worker, const WorkerKey& key, const v1::WorkerReport& report);
  Reaction OnCommitted(Worker& worker, const WorkerKey& key, const v1::WorkerReport& report);
  Reaction OnIteration(int64_t now_ns, Worker& worker, const WorkerKey& key, const v1::IterationReport& report);
  Reaction OnEvaluation(int64_t now_ns, const WorkerKey& key, const v1::EvaluationReport& report);
  Reaction OnFinished(Worker& worker, const WorkerKey& key, const v1::FinishedReport& report);
  Reaction OnDataCheck(Worker& worker, const WorkerKey& key, const v1::DataCheckReport& report);
  Reaction OnEnded(int64_t now_ns, Worker& worker, const WorkerKey& key, int64_t next_iteration, bool reported);
  std::optional<Reaction::Change> Over();
  // Notes that no reports of the worker's iterations and evaluations will come any more.
  void NoteLastReport(Worker& worker);
  Reaction OnProfiled();
  // Notes that the worker is at least as far as this in the epoch.
  void Advance(Worker& worker, v1::WorkerPhase phase) const;
  // True when the worker no longer runs the epoch.
  bool HasLeft(const Worker& worker) const;
  bool AllLeft() const;
  bool SomeLeft() const;
  void TakeStatus(Worker& worker, const v1::WorkerStatus& status);
  Reaction OnHeartbeat(int64_t now_ns, Worker& worker, const WorkerKey& key, const v1::WorkerStatus& status);
  // Acts on a status alone: the worker has finished, or ended its epoch.
  Reaction Settle(int64_t now_ns, Worker& worker, const WorkerKey& key);
  std::vector<StateIdentity> StatesOf(const google::protobuf::RepeatedPtrField<v1::HeldState>& states) const;
  void NoteReached(int64_t next);
  void NoteProgress(int64_t now_ns);
  std::vector<TrafficObservation> NewTraffic();

  // --- checkpoints.cc ---
  // `iteration`: that the report was of.
  Reaction Carry(int64_t now_ns, int64_t iteration, RunCheckpoints::Outcome outcome);
  void List(const ListedCheckpoint& complete);
  void DropAfter(int64_t iteration);
  // Keeps the newest `keep` in the list, and the newest that is copied. True when some were removed from it.
  bool Trim(int64_t keep);
  bool IsOldNews(int64_t iteration) const;
  // Checkpoints that nodes must not remove.
  std::vector<CheckpointIdentity> Kept() const;
  // Iteration of the newest checkpoint with copies at other sites, where the job wants copies; 0: none.
  int64_t Protected() const;
  NodeMessage CopyMessage(const RunCheckpoints::CopyOrder& order) const;
  double CopyRate(const RunCheckpoints::CopyOrder& order) const;

  // --- moves.cc ---
  void DropLostParts();
  void Choose(int64_t micro_batch_size, int64_t sequence_length);
  // First iteration of the job as it was applied.
  int64_t FirstIteration() const { return resumable_.empty() ? 0 : resumable_.back().iteration; }
  std::set<NodeKey> MemberNodes() const;
  // Checkpoints that an epoch can begin with.
  std::vector<CheckpointIdentity> Checkpoints() const;
  // Moves on when the next run can have the state that the ranks rest with; otherwise orders what is missing. `failed`:
  // the attempt has, just now.
  Reaction SaveForMove(int64_t now_ns, bool failed);
  // True when the state after the last iteration is safe, or nobody wants it.
  bool LastSaved() const;
  // Orders that state again after a failed attempt.
  Reaction SaveLast(int64_t now_ns);
  std::vector<NodeMessage> OrderCheckpoint(int64_t iteration);

  // --- epochs.cc ---
  // Carries out what NextEpoch decides.
  Reaction Decide();
  EpochFacts Facts() const;
  std::vector<int32_t> ReplicaGroups() const;
  int64_t GivenStateBytes() const;
  std::string EpochSentence() const;
  // Recovers or fails by the verdict, once there is one.
  Reaction Diagnose(int64_t now_ns, bool more_may_come);
  // Names what a job that has diverged can go on from.
  std::string LastCheckpointWords() const;
  bool MayRecover() const;
  bool MayBeginAgain(const FailureEvidence& why) const;
  Reaction Recover(int64_t now_ns, const FailureEvidence& why);
  Reaction RecoverLate(int64_t now_ns);
  Reaction TickRecovering(int64_t now_ns, bool more_may_come);
  std::vector<NodeMessage> StopLost() const;
  bool Heard(const NodeKey& node) const;
  static bool Rests(const Worker& worker);
  bool MayStart(int64_t now_ns, const WorkerKey& key, const Worker& worker) const;

  // --- failures.cc ---
  Reaction OnFailure(int64_t now_ns, Worker& worker, const WorkerKey& key, const v1::FailureReport& report);
  // State that the job can go on from when a checkpoint cannot be read.
  enum class Left {
    kNothing,
    kAnother,    // checkpoint
    kElsewhere,  // nodes that are none of this run's have files of one
  };
  Left PassOver(const v1::CheckpointIdentity& identity);
  Reaction CheckStuck(int64_t now_ns, Worker& worker, const WorkerKey& key, const v1::WorkerStatus& status);
  int64_t StuckAfterNs(std::string_view action) const;

  // --- agents.cc ---
  Reaction TellAll();
  void NoteSilence(int64_t now_ns, std::span<const NodeSilence> nodes);

  const JobSpec job_;
  const RunOptions run_;
  const Allocation allocation_;
  const uint64_t incarnation_;
  const std::string version_;
  const JobRunLimits limits_;

  JobState state_ = v1::JOB_STATE_PENDING;
  std::set<NodeKey> nodes_;
  std::map<WorkerKey, Worker> workers_;
  std::set<NodeKey> undriven_;  // have returned, and were not sent again what they may have missed
  ProfileRounds rounds_;
  bool measuring_ = false;
  Profile profile_;
  std::shared_ptr<PlanResult> plan_;  // null before PLANNING is done
  std::vector<WorkerKey> idle_;       // not used by the epoch about to begin
  std::vector<EpochMember> members_;  // by rank of the plan
  std::string secret_;                // for the next epoch; empty: taken
  std::optional<Epoch> epoch_;        // the latest
  std::optional<int64_t> ended_at_;   // the epoch has ended, all members hold the state before this iteration
  std::optional<int64_t> ends_at_;    // some member has ended there, so all will
  bool ending_ = false;               // its members were ordered to end it
  bool pause_wanted_ = false;
  PlanRollout rollout_;
  int64_t observed_iteration_ = 0;  // the latest whose traffic was looked at; the first is not: links begin then
  IterationLog iterations_;
  EvaluationLog evaluations_;
  std::map<NodeKey, std::vector<CheckpointIdentity>> found_checkpoints_;
  std::vector<CheckpointIdentity> resumable_;  // oldest first
  RunCheckpoints checkpoints_;
  std::vector<ListedCheckpoint> listed_;  // complete ones of the job, oldest first, as many as it keeps
  JobSpec choices_;                       // choices()
  uint64_t epochs_before_ = 0;            // the latest epoch of the job's earlier runs
  bool must_find_state_ = false;          // the run goes on from a checkpoint
  bool run_progressed_ = false;           // progressed()
  bool moving_ = false;                   // the run ends, to go on elsewhere
  std::string move_cause_;
  std::set<std::string> leaving_;  // SetLeaving
  int64_t move_not_before_ns_ = 0;
  int move_tries_ = 0;              // checkpoints that were ordered for it
  int64_t move_save_at_ns_ = 0;     // not before then is the next
  int64_t save_last_at_ns_ = 0;     // not before then is the state behind the last iteration ordered again
  bool heard_all_ = true;           // no report of a checkpoint can have been lost with an earlier coordinator
  std::string checkpoint_trouble_;  // of the latest attempt; empty: none
  FailureDiagnosis diagnosis_;
  std::optional<std::string> loss_;  // why the job fails
  Restarts restarts_;
  bool may_go_back_ = false;             // something was lost in or after the latest epoch
  int64_t recover_at_ns_ = 0;            // not before then is anything started again
  int64_t quiet_since_ns_ = 0;           // no known worker can have finished an iteration since
  int64_t deadline_ns_ = kNoDeadlineNs;  // of the state or phase under way
  int64_t reached_ = 0;                  // iterations that some rank has finished
  bool progressed_ = false;              // since progress_ns_ was set
  std::vector<NodeKey> silent_;
  bool end_held_ = false;  // the epoch's end was never ordered yet: an agent is silent
  bool end_due_ = false;   // the end is to be ordered again when all agents can be heard
  int64_t last_tick_ns_ = 0;
  MemoryLog memory_;
  int64_t told_ns_ = 0;      // time of the last report of an iteration
  int64_t progress_ns_ = 0;  // time of the last report of progress by some rank
};

}  // namespace geopipe
