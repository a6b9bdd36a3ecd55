// One run of a job on its devices: its life, what was heard of its crew, and what its ranks have told. Hearing changes
// facts alone; Step carries out what the rules decide. The coordinator makes a transition durable first, and then lets
// the run enter the state.
#pragma once

#include <absl/functional/function_ref.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/cluster/links.h"
#include "coordinator/core/life/orders.h"
#include "coordinator/core/life/rules.h"
#include "coordinator/core/life/situation.h"
#include "coordinator/core/run/stored.h"
#include "coordinator/core/telemetry/measured_links.h"
#include "geopipe/v1/agent_service.pb.h"

namespace geopipe {

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
  bool changed = false;       // the life has, without a transition: durable before `sends` and due orders
  std::string log = {};       // about it
  bool wants_secret = false;  // TakeSecret is to be called with a fresh one
  bool wants_plan = false;    // SetPlan is to be called
  bool stays = false;         // the job is not cancelled, for its checkpoint cannot be written
};

class JobRun {
 public:
  // The run is named `incarnation`; its workers have the numbers after it.
  JobRun(const JobSpec& job, const RunOptions& run, Allocation allocation, uint64_t incarnation, std::string version,
         const JobRunLimits& limits);
  // Restores the run of a job that an earlier life of the coordinator has left in a state from PROFILING on. Its
  // workers are still to be heard of. DataLoss: the stored parts do not fit together.
  static absl::StatusOr<std::unique_ptr<JobRun>> Restore(const JobSpec& job, const RunOptions& run, StoredJob stored,
                                                         std::string version, const JobRunLimits& limits, Now now);

  // --- What it goes on from. Before it enters PROFILING. ---
  // Restores what the job has lost and evaluated in earlier runs, which counts as well.
  void RestoreHistory(const v1::JobDetail& detail, Now now);
  // An earlier run, and its iterations.
  void GoOnFrom(JobLife::Earlier earlier, IterationLog iterations);
  // A finished job's iterations, which the plan goes on from. Instead of GoOnFrom.
  void GoOnAfter(IterationLog curve) { told_.iterations = std::move(curve); }

  // --- Deciding ---
  // Carries out the next decision, if there is one. Repeated until there is none, each reaction is carried out first.
  // `last_incarnation`: of all workers of the federation; new ones are numbered after it.
  std::optional<Reaction> Step(int64_t now_ns, uint64_t& last_incarnation);
  // The job enters the state, now that this is durable.
  std::vector<NodeMessage> Enter(JobState state, int64_t now_ns);
  // Orders that workers have to carry out or answer, and were not sent yet.
  std::vector<NodeMessage> TakeDueOrders(int64_t now_ns, absl::FunctionRef<LinkTable()> links);
  std::string WaitsFor() const { return geopipe::WaitsFor(At(last_ns_)); }
  // Says that some of its agents are not heard while it runs; empty: all are.
  std::string SilenceSentence() const;

  // --- What is wanted ---
  // Pause and Resume take effect once all agents can be heard: a rank that does not hear of its epoch's end, or of the
  // next epoch, would lose its state.
  void Pause() { life_.wants.pause = true; }
  // Takes back a pause that has not taken effect yet, or asks for the next epoch. `secret`: fresh.
  void Resume(std::string secret);
  // Makes the ranks write a checkpoint besides those that are due, before an iteration that none will have passed when
  // it hears of it, or before that of the pause. FailedPrecondition: the job has no checkpoint.path, neither runs nor
  // is paused, or is about to pause or to end.
  absl::StatusOr<int64_t> Checkpoint(Reaction& reaction);
  void TakeSecret(std::string secret);
  // Internal: the plan does not fit to the devices. `secret`: fresh, for an epoch with this plan.
  absl::Status SetPlan(PlanResult* plan, std::string secret);
  void OnPlanningBegun(int64_t now_ns);

  // --- Hearing ---
  void See(Surroundings around) { crew_.around = std::move(around); }
  Reaction OnReport(int64_t now_ns, const WorkerKey& worker, const v1::WorkerReport& report);
  void OnExit(int64_t now_ns, const WorkerKey& worker, const v1::WorkerExit& exit);
  void OnSilent(int64_t now_ns, const WorkerKey& worker, const v1::WorkerSilent& silent);
  // Handles an agent that can be heard again and has these workers of the run alive. `fresh`: it does not know this
  // coordinator's orders (one of the two was restarted).
  struct Living {
    bool attached = false;
    v1::WorkerStatus status;
  };
  void OnNodeReturned(int64_t now_ns, const NodeKey& node, const std::map<WorkerKey, Living>& alive, bool fresh);
  void OnAllConnected(int64_t now_ns);
  void OnTick(int64_t now_ns);
  // Puts deadlines off by the time that this process was stopped: nobody else is to blame for it.
  void Forgive(int64_t pause_ns) { crew_.Forgive(pause_ns); }

  // --- What is known ---
  const JobLife& life() const { return life_; }
  const CrewFacts& crew() const { return crew_; }
  RunTelemetry& told() { return told_; }
  const RunTelemetry& told() const { return told_; }
  Situation At(int64_t now_ns) const { return {life_, crew_, told_, limits_, now_ns}; }
  // Evaluations that were told since the last call, and those whose reports are lost.
  std::vector<v1::EvaluationSummary> TakeEvaluations();

 private:
  static constexpr int64_t kSaveLastAgainNs = 10'000'000'000;

  JobRun(JobLife life, std::string version, const JobRunLimits& limits, int64_t now_ns);

  // --- Hearing (hearing.cc) ---
  void OnHello(int64_t now_ns, WorkerFacts& worker, const v1::WorkerHello& hello);
  void OnProfile(int64_t now_ns, const WorkerKey& key, const v1::ProfileReport& report);
  void TakeFoundCheckpoints();
  void OnAnswer(int64_t now_ns, WorkerFacts& worker, const v1::WorkerReport& report);
  Reaction OnIteration(int64_t now_ns, WorkerFacts& worker, const v1::IterationReport& report);
  void OnEvaluation(int64_t now_ns, const WorkerKey& key, const v1::EvaluationReport& report);
  Reaction OnFinished(int64_t now_ns, WorkerFacts& worker, const v1::FinishedReport& report);
  Reaction OnEnded(int64_t now_ns, WorkerFacts& worker, int64_t next_iteration, bool reported);
  void NoteLastReport(WorkerFacts& worker);
  void NoteReached(int64_t now_ns, int64_t next);
  void NoteProgress(int64_t now_ns);
  void TakeStatus(int64_t now_ns, WorkerFacts& worker, const v1::WorkerStatus& status);
  std::vector<StateIdentity> StatesOf(const google::protobuf::RepeatedPtrField<v1::HeldState>& states) const;
  void Settle(int64_t now_ns, WorkerFacts& worker);
  void CheckStuck(int64_t now_ns, WorkerFacts& worker, const v1::WorkerStatus& status);
  Reaction OnFailure(int64_t now_ns, WorkerFacts& worker, const v1::FailureReport& report);
  bool PassOver(const v1::CheckpointIdentity& identity, const std::string& sentence);
  void OnDataCheck(const WorkerKey& key, const v1::DataCheckReport& report);
  Reaction OnCheckpoint(int64_t now_ns, const WorkerKey& key, const v1::WorkerReport& report);
  int64_t SaveAgainAfterNs() const;
  void NoteSilence(int64_t now_ns);

  // --- Deciding (job_run.cc) ---
  Reaction CarryOut(int64_t now_ns, Decision decision, uint64_t& last_incarnation);
  Reaction Lose(int64_t now_ns, Decision decision);
  void BeginEpoch(Epoch epoch);
  void NoteEpoch(bool committed);
  Reaction StartLost(int64_t now_ns, uint64_t& last_incarnation);
  Reaction TellAll(int64_t now_ns);
  std::vector<NodeMessage> OrderCheckpoint(int64_t iteration);
  // A phase begins: its orders go to all, and its limit of time counts from now on.
  void BeginPhase(int64_t now_ns);

  const std::string version_;
  const JobRunLimits limits_;
  JobLife life_;
  CrewFacts crew_;
  RunTelemetry told_;
  std::vector<WorkerKey> idle_;  // given up, and not told yet
  int64_t last_ns_ = 0;          // of the last Step
};

}  // namespace geopipe
