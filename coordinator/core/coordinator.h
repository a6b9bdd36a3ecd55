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
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/cluster/link_probing.h"
#include "coordinator/core/cluster/links.h"
#include "coordinator/core/cluster/membership.h"
#include "coordinator/core/cluster/strays.h"
#include "coordinator/core/events.h"
#include "coordinator/core/job.h"
#include "coordinator/core/life/job_run.h"
#include "coordinator/core/order_log.h"
#include "coordinator/core/telemetry/measured_links.h"

namespace geopipe {

struct CoordinatorOptions {
  std::string version;
  uint64_t incarnation = 1;  // of this process; greater than any earlier one's
  int64_t heartbeat_interval_ns = 500'000'000;
  MembershipLimits membership;
  JobRunLimits run;
  LinkProbingOptions probing;
  size_t max_jobs = 1000;         // kept in the store; beyond it the oldest finished one is forgotten
  size_t max_watches = 256;       // open at once
  size_t finished_logs_kept = 8;  // finished jobs whose iterations are held in memory
  // Shortest interval between two writes of progress, each followed by the acknowledgement of the reports in it.
  int64_t flush_interval_ns = 100'000'000;
  // A step that comes so long after the last one means that this process was stopped or starved: deadlines are put off.
  int64_t own_pause_ns = 1'000'000'000;
  // A silent agent's workers end by themselves after their orphan grace. The coordinator acts on the silence only so
  // much later, or two heartbeat intervals later if that is more.
  int64_t orphan_margin_ns = 5'000'000'000;
  int64_t default_orphan_grace_ns = 30'000'000'000;  // of agents that have not told theirs
};

class Coordinator {
 public:
  Coordinator(CoordinatorOptions options, StoredState stored);

  // Called once, before any Step. Jobs that an earlier life of the coordinator left waiting wait on; those that it left
  // with workers are adopted: their workers have gone on, and their agents will return. Only a job whose record cannot
  // be read is FAILED.
  Effects Start(Now now);

  // A step with ApplyJob does nothing but submit, so that it leaves no trace when the store does not take the job;
  // devices are given in the next step. Draining a site, and taking it back, are such steps as well.
  Effects Step(Now now, Event event);

 private:
  struct Watch {
    std::string job;
    int next_transition = 0;
    int64_t from_iteration = 0;  // asked for
    int64_t next_iteration = 0;
    int64_t evaluation = -1;  // the last that it was told, by the iteration behind it
    int64_t credits = 0;
    bool loading = false;     // its iterations are asked for
    bool greeted = false;     // was told what goes wrong as it began
    int64_t next_notice = 0;  // of all that the job had
  };
  // State that an ApplyJob has replaced, kept until the store has taken the new job.
  struct Undo {
    std::string job;
    std::vector<std::unique_ptr<Job>> removed;
    std::map<CallId, Watch> watches;
    std::vector<std::string> finished;  // finished_ as it was
  };

  void On(Now now, AgentMessage& event);
  void On(Now now, AgentClosed& event);
  void On(Now now, ApplyJob& event);
  void On(Now now, ListJobs& event);
  void On(Now now, GetJob& event);
  void On(Now now, GetTrace& event);
  void On(Now now, CancelJob& event);
  void On(Now now, PauseJob& event);
  void On(Now now, ResumeJob& event);
  void On(Now now, CheckpointJob& event);
  void On(Now now, DrainSite& event);
  void On(Now now, UncordonSite& event);
  void On(Now now, DrainNotStored& event);
  void On(Now now, ListSites& event);
  void On(Now now, ListLinks& event);
  void On(Now now, WatchStart& event);
  void On(Now now, WatchMore& event);
  void On(Now now, WatchStop& event);
  void On(Now now, PlannerBegun& event);
  void On(Now now, PlannerDone& event);
  void On(Now now, SecretDrawn& event);
  void On(Now now, PersistFailed& event);
  void On(Now now, ProgressNotStored& event);
  void On(Now now, IterationsLoaded& event);
  void On(Now now, TimelinesLoaded& event);
  void On(Now now, Tick& event);

  // --- Agents (coordinator_agents.cc) ---
  void OnHello(Now now, SessionId session, const v1::ConnectRequest& message);
  void OnWorkersListed(Now now, const NodeKey& node, const v1::AgentHello& hello, bool fresh);
  void OnReports(Now now, SessionId session, const NodeKey& node, const v1::NodeReports& message);
  void OnReport(Now now, SessionId session, const NodeKey& node, const v1::RelayedReport& report);
  void OnExit(Now now, SessionId session, const NodeKey& node, const v1::WorkerExit& exit);
  void OnSilent(Now now, SessionId session, const NodeKey& node, const v1::WorkerSilent& silent);
  // Returns false, and refuses the stream, when the agent speaks for another node.
  bool SpeaksFor(Now now, SessionId session, const NodeKey& node, const v1::WorkerId& worker, std::string_view what);
  void NoteDisputes();
  void NoteLostNode(Now now, const NodeKey& node);
  void Refuse(Now now, SessionId session, absl::Status status);
  void SendToNode(NodeMessage message);
  void DropOrders(const NodeKey& key);
  void Acknowledge(const NodeKey& node);
  void TellReturned(Now now);
  // The job whose live run has these workers; nullptr when they are of another run, or of none.
  Job* LiveJob(const v1::WorkerId& worker);

  // --- Jobs (coordinator.cc) ---
  Job* FindJob(const std::string& name);
  std::vector<Job*> InOrder();
  void Transition(Now now, Job& job, JobState to, const std::string& cause, bool outcome_changed);
  // Lets the job do what its rules decide, until that is to wait, and sends the orders that are due.
  void Drive(Now now, Job& job);
  void React(Now now, Job& job, Reaction reaction);
  void Move(Now now, Job& job, JobState to, const std::string& cause);
  void Plan(Now now, Job& job);
  void BeginAgain(Now now, Job& job, const std::string& cause);
  void Finish(Now now, Job& job, JobState to, const std::string& cause);
  void StopAll(const Job& job, const std::string& reason);
  void Adopt(Now now, Job& job, StoredJob stored);
  void Forgive(Now now);
  // Stores what was reported since the last call, and acknowledges it.
  void Flush(Now now);
  JobProgress TakeProgress(Now now, Job& job);
  // Returns the latest timelines where there are newer ones than the store has, and it is time.
  std::optional<std::vector<v1::IterationTimeline>> TakeTimelines(Now now, Job& job) const;
  // Logs the notice and keeps it for those who watch the job.
  void Notify(Now now, Job& job, LogLevel level, v1::JobNotice notice);
  void NoteLosses(Now now, Job& job, const Reaction& reaction);
  void NoteSaving(Now now, Job& job, const Reaction& reaction);
  void NoteNewEvaluations(Job& job);
  // Says from time to time what a job whose training is over waits for.
  void SayWait(Now now, Job& job);
  // The job is not cancelled, for its last checkpoint cannot be written.
  void NoteStays(Now now, Job& job);
  // The job is over: its iterations stay in memory until more jobs are.
  void KeepPast(const std::string& job);
  void Schedule(Now now);
  // Offers of all nodes that take work. `own`: devices of this job count as free.
  std::vector<NodeOffer> Offers(const Job* own = nullptr) const;
  NodeSilence SilenceOf(Now now, const JobRun& run, const NodeKey& key) const;
  Surroundings SurroundingsOf(Now now, const Job& job) const;
  void NoteStrays(Now now, const Job& job);
  bool AllConnected(const JobRun& run) const;

  // --- Going on elsewhere (coordinator_moves.cc) ---
  // Adds the time that passed to that of each node that is not heard.
  void NoteUnheard(Now now);
  bool IsGone(const Job& job, const NodeKey& node) const;
  std::set<std::string> DrainedOf(const JobRun& run) const;
  std::optional<std::string> Misfit(const JobSpec& spec, const JobLife::Earlier& earlier,
                                    const Allocation& allocation) const;
  // Devices that the job would get if it left its own and did without these nodes. `needs_state`: it has to find its
  // state there. REQUIRES: it has a run.
  AllocationDecision WouldGet(const Job& job, const std::set<NodeKey>& without, bool needs_state) const;
  AllocationDecision WouldLeaveFor(const Job& job, const std::set<NodeKey>& without) const;
  // Finds out whether the job should leave nodes that are gone or drained, or come back to nodes that are back.
  void LookAfter(Now now, Job& job);
  Exit LeaveGone(Job& job, const std::set<NodeKey>& gone, const std::set<NodeKey>& without) const;
  Exit LeaveDrained(Job& job, const std::set<std::string>& drained, const std::set<NodeKey>& without) const;
  Exit ComeBack(Job& job) const;
  // True when the failing run is the first with some nodes and has not trained yet: those nodes are at fault, and the
  // job goes on as it did before.
  bool DoWithoutNewNodes(Job& job) const;
  std::optional<std::string> AwaitedBy(const Job& job) const;
  // True when a worker of an earlier run of the job may still be on the node.
  bool HasStray(const Job& job, const NodeKey& key) const;
  // Devices that a PENDING job gets, of nodes that are not promised to others.
  AllocationDecision Decide(const Job& job, const std::set<NodeKey>& promised) const;
  // The job with its sites fixed to those of its run, in the order that it had them: then the planner leaves out none
  // that has its state.
  JobSpec Pinned(const Job& job, const LinkTable& links) const;
  bool IsKnown(const std::string& site) const;

  // --- Links (coordinator_links.cc) ---
  LinkProbing::View ViewOf(const LinkTable& links) const;
  void ProbeLinks(Now now);
  void CarryOut(Now now, ProbeStep step);
  void NoteTraffic(Now now, const std::vector<TrafficObservation>& traffic);
  // True when probes measure what this job's messages inside the site take.
  bool TakesMeasuredNetwork(const Job& job, const std::string& site) const;
  // Sets the network of nodes that declare none to what was measured inside their sites. So allocation and planning of
  // a run use the figure of the moment it got its devices.
  void AddMeasuredNetworks(const Job& job, std::vector<NodeOffer>& offers) const;
  // True when the links that the job needs were probed, or it has waited for them long enough.
  bool LinksReady(Now now, Job& job, const Allocation& allocation);

  // --- Control (coordinator_control.cc) ---
  std::optional<std::string> JobToForget() const;
  void FeedWatch(CallId call);

  void Emit(Effect effect) { effects_.push_back(std::move(effect)); }
  void Log(LogLevel level, std::string job, std::string text) {
    Emit(LogEntry{level, std::move(job), std::move(text)});
  }
  template <class Reply>
  void ReplyTo(CallId call, Reply reply) {
    Emit(ReplyToCall{call, ControlReply(std::move(reply))});
  }
  void ReplyError(CallId call, absl::Status status) { Emit(ReplyToCall{call, std::move(status)}); }

  const CoordinatorOptions options_;
  Membership membership_;
  std::map<std::string, std::unique_ptr<Job>> jobs_;
  std::map<CallId, Watch> watches_;
  std::map<NodeKey, OrderLog> orders_;
  std::map<NodeKey, uint64_t> orders_of_;  // the incarnation of the agent that the orders are numbered for
  std::set<NodeKey> to_acknowledge_;       // with the next flush
  std::set<std::string> dirty_jobs_;       // have unstored progress
  std::set<std::pair<std::string, std::string>> dirty_links_;
  std::vector<JobProgress> not_stored_;  // by a failed flush
  bool store_failing_ = false;
  int64_t flush_at_ns_ = 0;
  int64_t started_ns_ = 0;
  int64_t last_step_ns_ = 0;
  int64_t last_look_ns_ = 0;              // NoteUnheard
  std::set<std::string> drained_;         // sites
  std::vector<StoredJob> to_adopt_;       // until Start
  std::vector<StoredLink> stored_links_;  // until Start
  std::vector<std::string> disputes_;     // already logged
  std::vector<std::string> finished_;     // jobs with kept logs, oldest first
  std::optional<Undo> undo_;
  Strays strays_;
  LinkProbing probing_;
  MeasuredLinks measured_;
  std::vector<SitePair> wanted_links_;  // needed by waiting jobs
  uint64_t next_sequence_ = 1;
  uint64_t next_incarnation_;  // of the next job's workers

  // State of the step under way.
  Effects effects_;
  bool schedule_ = false;          // devices or jobs have come or gone
  bool probe_ = false;             // as well, or it is time
  std::set<std::string> changed_;  // jobs that their watchers should see
};

}  // namespace geopipe
