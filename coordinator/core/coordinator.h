// The coordinator's core: everything it decides. Pure: Step(now, event) -> effects, no thread, clock, socket or file,
// so that one seeded test can drive a whole federation through faults.
//
// Rules it keeps, whatever happens:
//   - a transition is persisted before anything that depends on it is sent, replied or published;
//   - only agents with a live session are sent to; orders wait until the agent has taken them, across its streams;
//   - reports are acknowledged only when what they told is durable;
//   - reports of another incarnation or epoch change nothing;
//   - one link is probed at a time, and none whose sites a job has workers on;
//   - a plan is committed only after every rank has prepared it, and a job has one epoch at a time.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/cluster/membership.h"
#include "coordinator/cluster/strays.h"
#include "coordinator/core/agents.h"
#include "coordinator/core/coordinator_options.h"
#include "coordinator/core/departures.h"
#include "coordinator/core/events.h"
#include "coordinator/core/job.h"
#include "coordinator/core/job_requests.h"
#include "coordinator/core/jobs.h"
#include "coordinator/core/life/job_run.h"
#include "coordinator/core/link_monitor.h"
#include "coordinator/core/outbox.h"
#include "coordinator/core/placement.h"
#include "coordinator/core/progress_ledger.h"
#include "coordinator/core/unknown_workers.h"
#include "coordinator/core/watches.h"

namespace geopipe {

class Coordinator {
 public:
  Coordinator(CoordinatorOptions options, StoredState stored);
  Coordinator(Coordinator&&) = delete;  // its parts refer to each other

  // Called once, before any Step. Jobs that an earlier life of the coordinator left waiting wait on; those that it left
  // with workers are adopted: their workers have gone on, and their agents will return. Only a job whose record cannot
  // be read is FAILED.
  Effects Start(Now now);

  // A step with ApplyJob does nothing but submit, so that it leaves no trace when the store does not take the job;
  // devices are given in the next step. Draining a site, and taking it back, are such steps as well.
  Effects Step(Now now, Event event);

 private:
  // --- Events: On returns the reply to a call, or nothing, where the event is none or its reply comes by itself. ---
  template <class Each>
  void Handle(Now now, Each& event);
  void On(Now now, AgentMessage& event);
  void On(Now now, AgentClosed& event) { agents_.OnClosed(now, event); }
  absl::StatusOr<v1::CancelJobResponse> On(Now now, CancelJob& event);
  absl::StatusOr<v1::PauseJobResponse> On(Now now, PauseJob& event);
  absl::StatusOr<v1::ResumeJobResponse> On(Now now, ResumeJob& event);
  absl::StatusOr<v1::CheckpointJobResponse> On(Now now, CheckpointJob& event);
  void On(Now now, PlannerBegun& event);
  void On(Now now, PlannerDone& event);
  void On(Now now, SecretDrawn& event);
  void On(Now now, ProgressNotStored& event) { ledger_.OnNotStored(now, event); }
  void On(Now now, IterationsLoaded& event);
  void On(Now /*now*/, JobStored& /*event*/) {}  // Step schedules it
  void On(Now now, Tick& event);

  // --- Agents (coordinator_agents.cc) ---
  void OnWorkersListed(Now now, const NodeKey& node, const v1::AgentHello& hello, bool fresh);
  void OnReports(Now now, SessionId session, const NodeKey& node, const v1::NodeReports& message);
  void OnReport(Now now, SessionId session, const NodeKey& node, const v1::RelayedReport& report);
  void OnExit(Now now, SessionId session, const NodeKey& node, const v1::WorkerExit& exit);
  void OnSilent(Now now, SessionId session, const NodeKey& node, const v1::WorkerSilent& silent);
  void TellReturned(Now now);

  // --- Jobs (coordinator_jobs.cc, coordinator_notices.cc) ---
  void Transition(Now now, Job& job, JobState to, const std::string& cause, bool outcome_changed);
  // Lets the job do what its rules decide, until that is to wait, and sends the orders that are due.
  void Drive(Now now, Job& job);
  void React(Now now, Job& job, Reaction reaction);
  void Move(Now now, Job& job, JobState to, const std::string& cause);
  void Plan(Now now, Job& job);
  void BeginAgain(Now now, Job& job, const std::string& cause);
  void Finish(Now now, Job& job, JobState to, const std::string& cause);
  void Adopt(Now now, Job& job, StoredJob stored);
  void Forgive(Now now);
  // Logs the notice and keeps it for those who watch the job.
  void Notify(Now now, Job& job, LogLevel level, v1::JobNotice notice);
  void NoteTroubles(Now now, Job& job, const Reaction& reaction);
  void NoteLosses(Now now, Job& job, const Reaction& reaction);
  void NoteSaving(Now now, Job& job, const Reaction& reaction);
  void NoteNewEvaluations(Job& job);
  // Says from time to time what a job whose training is over waits for.
  void SayWait(Now now, Job& job);
  // The job is not cancelled, for its last checkpoint cannot be written.
  void NoteStays(Now now, Job& job);
  // `only`: a job that has just come; empty: all.
  void Schedule(Now now, const std::string& only = "");
  NodeSilence SilenceOf(Now now, const JobRun& run, const NodeKey& key) const;
  // The run looks which of its nodes can be heard.
  void Listen(Now now, JobRun& run) const;
  void StopAll(const Job& job, const std::string& reason);
  void NoteStrays(Now now, const Job& job);
  // Asks for a checkpoint of a job that stays at these nodes, which go down.
  void SaveBefore(Now now, Job& job, const std::set<NodeKey>& going);

  const CoordinatorOptions options_;
  StoredState stored_;  // until Start
  Outbox outbox_;
  Membership membership_;
  Strays strays_;
  Jobs jobs_;
  LinkMonitor links_;
  Agents agents_;
  UnknownWorkers unknown_;
  Watches watches_;
  Placement placement_;
  Departures departures_;
  ProgressLedger ledger_;
  JobRequests requests_;
  uint64_t next_incarnation_;   // of the next job's workers
  std::set<NodeKey> promised_;  // to jobs that wait for workers of theirs to end there
  int64_t started_ns_ = 0;
  int64_t last_step_ns_ = 0;
};

}  // namespace geopipe
