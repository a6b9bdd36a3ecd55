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

#include "coordinator/cluster/links.h"
#include "coordinator/core/life/agent_news.h"
#include "coordinator/core/life/orders.h"
#include "coordinator/core/life/reaction.h"
#include "coordinator/core/life/rules.h"
#include "coordinator/core/life/situation.h"
#include "coordinator/core/run/stored.h"

namespace geopipe {

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
  // True when the state before the iteration is in a checkpoint, or is to be.
  bool Saves(int64_t iteration) const {
    return iteration >= life_.end() || crew_.checkpoints.Pending(iteration) || life_.checkpoints.Reaches(iteration);
  }
  // Takes back a pause that has not taken effect yet, or asks for the next epoch. `secret`: fresh. `from_store`: with
  // the newest checkpoint that is listed, whatever workers hold.
  void Resume(std::string secret, bool from_store);
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
  void Hear(std::vector<NodeSilence> silences) { crew_.silences = std::move(silences); }
  Reaction OnReport(int64_t now_ns, const WorkerKey& worker, const v1::WorkerReport& report);
  AgentNews News(int64_t now_ns) { return {life_, crew_, told_, limits_, now_ns}; }
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
  JobRun(JobLife life, std::string version, const JobRunLimits& limits, int64_t now_ns);

  Reaction CarryOut(int64_t now_ns, Decision decision, uint64_t& last_incarnation);
  Reaction Lose(int64_t now_ns, Decision decision);
  void BeginEpoch(Epoch epoch);
  void NoteEpoch(bool committed);
  Reaction StartLost(int64_t now_ns, uint64_t& last_incarnation);
  Reaction TellAll(int64_t now_ns);
  std::vector<NodeMessage> OrderCheckpoint(int64_t iteration);

  const std::string version_;
  const JobRunLimits limits_;
  JobLife life_;
  CrewFacts crew_;
  RunTelemetry told_;
  std::vector<WorkerKey> idle_;  // given up, and not told yet
  int64_t last_ns_ = 0;          // of the last Step
};

}  // namespace geopipe
