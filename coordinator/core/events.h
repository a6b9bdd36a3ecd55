// Events that the core receives, and effects that it asks for. Neither knows of threads, sockets or files: gRPC
// adapters and the planner thread make events, the runner carries out effects.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "coordinator/cluster/names.h"
#include "coordinator/core/planning.h"
#include "coordinator/core/run/stored.h"
#include "geopipe/v1/agent_service.pb.h"
#include "geopipe/v1/control_service.pb.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/run_options.h"
#include "runtime/base/log.h"

namespace geopipe {

// Durable before any effect that follows it, above all the acknowledgements of these reports. When the store cannot be
// written, the runner gives up the rest of the step and reports ProgressNotStored.
struct PersistProgress {
  std::vector<JobProgress> progress;
  std::vector<StoredLink> links;
};

// --- Events -----------------------------------------------------------------------------------------------------

// A message of an agent's stream, the first one included.
struct AgentMessage {
  SessionId session = 0;
  v1::ConnectRequest message;
};

struct AgentClosed {
  SessionId session = 0;
  std::string reason;
};

// Calls of ControlService: all but watches are answered by a ReplyToCall.
struct Call {
  CallId call = 0;
};
struct JobCall : Call {
  std::string name;
};
struct SiteCall : Call {
  std::string site;
};

struct ApplyJob : Call {
  JobSpec job;
  RunOptions run;
  bool replace = false;  // it may take the name of a finished job that has done something
};

struct ListJobs : Call {
  bool all = false;  // earlier runs of names as well
};
struct BackupStore : Call {};
struct ListSites : Call {};
struct ListLinks : Call {};
struct RunCall : JobCall {
  int64_t run = 0;  // of the name; 0: the latest
};
struct GetJob : RunCall {};
struct GetTrace : RunCall {};
struct PauseJob : JobCall {};
struct CheckpointJob : JobCall {};
// Keeps new jobs off the site's devices, and makes jobs that have some leave.
struct DrainSite : SiteCall {};
struct UncordonSite : SiteCall {};
// Stops the workers of unknown runs on a node.
struct StopStray : SiteCall {
  std::string node;
};

struct CancelJob : JobCall {
  std::string reason;
  bool checkpoint = false;  // written first
};

struct ResumeJob : JobCall {
  std::string secret;  // random bytes for the epoch that goes on
  v1::ResumeFrom from = v1::RESUME_FROM_UNSPECIFIED;
};

// Begins a watch with room for `credits` messages; WatchMore gives room for more, WatchStop ends it.
struct WatchStart {
  CallId call = 0;
  std::string name;
  int64_t from_iteration = 0;
  int64_t credits = 0;
  int64_t run = 0;  // of the name; 0: the latest
};

struct WatchMore : Call {
  int64_t credits = 0;
};

struct WatchStop : Call {};

// The planner has taken the job up: until then it was busy with others.
struct PlannerBegun {
  std::string job;
  uint64_t incarnation = 0;
};

struct PlannerDone {
  std::string job;
  uint64_t incarnation = 0;  // of the job's workers: tells a late answer from the awaited one
  absl::StatusOr<PlanResult> result = absl::UnknownError("no result");
  std::string secret;  // random bytes for the epoch that deploys this plan
};

// The answer to DrawSecret.
struct SecretDrawn {
  std::string job;
  uint64_t incarnation = 0;
  std::string secret;
};

// Effect PersistNewJob failed: nothing that followed it in the same step has been done.
struct PersistFailed {
  std::string job;
  CallId call = 0;
  absl::Status status;
};

// Effect PersistDrained failed: nothing that followed it in the same step has been done.
struct DrainNotStored {
  std::string site;
  bool drained = false;
  CallId call = 0;
  absl::Status status;
};

// Effect PersistProgress failed, and nothing that followed it in the same step has been done.
struct ProgressNotStored {
  PersistProgress progress;
  absl::Status status;
};

// The answer to LoadIterations: ascending, without a gap.
struct IterationsLoaded {
  std::string job;
  absl::StatusOr<std::vector<v1::IterationSummary>> iterations = absl::UnknownError("no result");
};

// The answer to LoadTimelines: ascending.
struct TimelinesLoaded {
  std::string job;
  CallId call = 0;
  absl::StatusOr<std::vector<v1::IterationTimeline>> timelines = absl::UnknownError("no result");
};

// The store has taken the job of the step before, which may now have its devices.
struct JobStored {};

// Time has passed.
struct Tick {};

using Event = std::variant<AgentMessage, AgentClosed, ApplyJob, ListJobs, BackupStore, GetJob, GetTrace, CancelJob,
                           PauseJob, ResumeJob, CheckpointJob, DrainSite, UncordonSite, StopStray, ListSites, ListLinks,
                           WatchStart, WatchMore, WatchStop, PlannerBegun, PlannerDone, SecretDrawn, PersistFailed,
                           DrainNotStored, ProgressNotStored, IterationsLoaded, TimelinesLoaded, JobStored, Tick>;

// --- Effects, carried out strictly in order -----------------------------------------------------------------------

// Durable before anything that follows it. A finished job of the same name stays under the name `keep_as`, as it is
// (empty: it goes), and its iterations below `keep_below` are the new one's as well; removes `forget` (a finished job,
// empty for none). When the store cannot be written the runner gives up the rest of the step and reports PersistFailed.
struct PersistNewJob {
  v1::JobDetail detail;  // summary, spec, run and the first transition
  v1::JobRecord record;  // it knows the last worker of the job that is replaced, whose workers may still be there
  CallId call = 0;
  std::string forget;
  int64_t keep_below = 0;
  std::string keep_as = {};
};

// Durable before anything that follows it. A store that cannot be written ends the process: a transition that is not on
// disk must not take effect.
struct PersistTransition {
  std::string job;
  int64_t sequence = 0;  // position in the job's list of transitions
  v1::JobTransition transition;
  std::optional<v1::JobDetail> outcome =
      std::nullopt;  // what the job has come to (OutcomeOf), when that changed with the transition
  std::optional<v1::JobRecord> record = std::nullopt;  // of its run, if it has one; empty when the job is over
  std::optional<JobProgress> progress = std::nullopt;  // what came before it
};

// Durable before anything that follows it, like a transition.
struct PersistRecord {
  std::string job;
  v1::JobRecord record;
  std::optional<v1::JobDetail> outcome = std::nullopt;  // OutcomeOf, when that changed with it
};

// Drains a site, or takes it back. Durable before anything that follows it. When the store cannot be written the runner
// gives up the rest of the step and reports DrainNotStored.
struct PersistDrained {
  std::string site;
  bool drained = false;
  CallId call = 0;
};

// Answered by IterationsLoaded.
struct LoadIterations {
  std::string job;
};

// Answered by TimelinesLoaded.
struct LoadTimelines {
  std::string job;
  CallId call = 0;
};

// Replies to the call with where the backup is, or why there is none.
struct WriteBackup {
  CallId call = 0;
};

struct SendToAgent {
  SessionId session = 0;
  v1::ConnectResponse message;
};

// Ends an agent's stream with a status.
struct CloseSession {
  SessionId session = 0;
  absl::Status status;
};

using ControlReply =
    std::variant<v1::ApplyJobResponse, v1::ListJobsResponse, v1::GetJobResponse, v1::CancelJobResponse,
                 v1::PauseJobResponse, v1::ResumeJobResponse, v1::CheckpointJobResponse, v1::DrainSiteResponse,
                 v1::UncordonSiteResponse, v1::StopStrayResponse, v1::ListSitesResponse, v1::ListLinksResponse,
                 v1::GetTraceResponse, v1::BackupStoreResponse>;

struct ReplyToCall {
  CallId call = 0;
  absl::StatusOr<ControlReply> reply = absl::UnknownError("no reply");
};

// Sends at most as many messages as the watcher has given credits for.
struct SendToWatcher {
  CallId call = 0;
  std::vector<v1::WatchJobResponse> messages;
};

struct EndWatch {
  CallId call = 0;
  absl::Status status;
};

struct StartPlanning {
  std::string job;
  uint64_t incarnation = 0;
  PlanningInput input;
};

// Tells metrics of iterations that all ranks of a job have finished, in order. Comes before the transition that they
// bring about.
struct IterationsFinished {
  std::string job;
  int64_t tokens_per_iteration = 0;
  std::vector<v1::IterationSummary> iterations;
};

// Tells metrics what is now known of one direction of a link that has just been measured.
struct LinkMeasured {
  std::string from_site;
  std::string to_site;
  v1::LinkMeasurement value;  // bandwidth 0: not known
};

// Asks for random bytes for an epoch of this run. Answered by SecretDrawn.
struct DrawSecret {
  std::string job;
  uint64_t incarnation = 0;
};

// The plan is no longer wanted; its PlannerDone may or may not come.
struct StopPlanning {
  std::string job;
  uint64_t incarnation = 0;
};

struct LogEntry {
  LogLevel level = LogLevel::kInfo;
  std::string job;  // empty: none in particular
  std::string text;
};

using Effect =
    std::variant<PersistNewJob, PersistTransition, PersistRecord, PersistDrained, PersistProgress, LoadIterations,
                 LoadTimelines, WriteBackup, SendToAgent, CloseSession, ReplyToCall, SendToWatcher, EndWatch,
                 IterationsFinished, LinkMeasured, StartPlanning, StopPlanning, DrawSecret, LogEntry>;
using Effects = std::vector<Effect>;

}  // namespace geopipe
