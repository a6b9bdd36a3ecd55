// Events and effects of the worker's control. Adapters (the agent's stream, the trainer's thread) make events; the
// worker's core carries out effects in order. Neither knows of threads, sockets or clocks.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "geopipe/v1/worker_service.pb.h"
#include "optimizer/model/plan/rank_memory.h"
#include "optimizer/model/state_identity.h"
#include "runtime/base/log.h"

namespace geopipe {

// One attempt to reach the agent, counted from 1: events of earlier attempts are recognised and ignored.
using AgentStreamId = uint64_t;

// --- Events -----------------------------------------------------------------------------------------------------

// An agent answers; the hello is on its way.
struct StreamOpened {
  AgentStreamId stream = 0;
};

// A valid message.
struct AgentSaid {
  AgentStreamId stream = 0;
  v1::AttachResponse message;
};

// A message of TellAgent has been written: there is room for another.
struct ReportWritten {
  AgentStreamId stream = 0;
};

// The stream ended, or could not be opened.
struct StreamClosed {
  AgentStreamId stream = 0;
  absl::Status status;
};

// The answer to RunProfile.
struct Profiled {
  absl::StatusOr<v1::ProfileReport> report;
};

// States that a worker can resume from.
struct RunStates {
  uint64_t run_incarnation = 0;
  std::optional<StateIdentity> held = std::nullopt;  // by the rank that is prepared
  std::vector<StateIdentity> kept = {};              // in memory that outlives the process
};

// The answer to RunPrepare.
struct Prepared {
  uint64_t epoch = 0;
  absl::StatusOr<v1::PreparedReport> report;
  RunStates states;
  // Set where the report is an error because the state of this checkpoint is intact on no node that was asked.
  std::optional<v1::CheckpointIdentity> unreadable = std::nullopt;
};

// RunCommit: the peers are connected, training begins.
struct Connected {
  uint64_t epoch = 0;
};

struct IterationFinished {
  uint64_t epoch = 0;
  v1::IterationReport report;
};

struct EvaluationFinished {
  uint64_t epoch = 0;
  v1::EvaluationReport report;
};

// The answer to RunCommit, whether the peers were connected or not.
struct TrainingReturned {
  uint64_t epoch = 0;
  absl::Status status;  // OK: up to the last iteration, or ended before it
  RunStates states;
  RankMemory peaks;
  // Iterations of RequestCheckpoint that it has not answered, ascending; up to this event, so they are filled in last.
  std::vector<int64_t> unmet_requests = {};
};

// The rank's state before an iteration was to be copied, because a checkpoint is due, was asked for, or by
// RunCheckpoint. OK: CheckpointWritten follows, one for all that asked for this state until then. Unavailable: the copy
// of another state is still being written, and its CheckpointWritten follows.
struct CheckpointTaken {
  uint64_t epoch = 0;
  int64_t iteration = 0;
  absl::Status status;
};

// The result of writing a copy.
struct CheckpointWritten {
  uint64_t epoch = 0;
  v1::CheckpointReport report;
};

// The answer to CompleteCheckpoint.
struct ManifestWritten {
  uint64_t epoch = 0;
  v1::ManifestReport report;
};

// The answer to FetchReplica.
struct ReplicaFetched {
  uint64_t epoch = 0;
  v1::ReplicaReport report;
};

// All of the data is checked in the background: how far it has come, or why the data cannot be trained on.
struct DataChecked {
  absl::StatusOr<v1::DataCheckReport> report;
};

// The time has come to look at the clock; describes the progress of the trainer's thread.
struct WorkerTick {
  int64_t next_iteration = 0;  // while it trains
  std::string action;          // compute action under way; empty: none
  int64_t action_ns = 0;       // since when
  bool has_home = true;        // the folder that an agent listens in is there
};

// Somebody on this host wants the process to end.
struct ShutdownRequested {
  std::string reason;
};

using WorkerEvent = std::variant<WorkerTick, StreamOpened, AgentSaid, ReportWritten, StreamClosed, Profiled, Prepared,
                                 Connected, IterationFinished, EvaluationFinished, TrainingReturned, CheckpointTaken,
                                 CheckpointWritten, ManifestWritten, ReplicaFetched, DataChecked, ShutdownRequested>;

// --- Effects ----------------------------------------------------------------------------------------------------

// Answered by StreamOpened or StreamClosed; `hello` is the first message.
struct DialAgent {
  AgentStreamId stream = 0;
  v1::AttachRequest hello;
};

// Ends a stream. Its StreamClosed may still come, and is ignored.
struct HangUp {
  AgentStreamId stream = 0;
};

// Answered by ReportWritten or StreamClosed.
struct TellAgent {
  AgentStreamId stream = 0;
  v1::AttachRequest request;
};

// Orders to the trainer's thread, one after the other; none is given before the last one was answered.
struct RunProfile {
  v1::ProfileCommand command;
};
struct RunPrepare {
  uint64_t epoch = 0;
  v1::PrepareCommand command;
};
struct RunCommit {
  uint64_t epoch = 0;
  v1::CommitCommand command;
};

// An order to the trainer's thread as well, while it rests: the state is that before this iteration. Answered by
// CheckpointTaken.
struct RunCheckpoint {
  uint64_t epoch = 0;
  int64_t iteration = 0;
};

// Asks the RunCommit under way to copy the state before this iteration, too. Answered by CheckpointTaken when it comes
// to that iteration or has passed it; else its TrainingReturned names the iteration.
struct RequestCheckpoint {
  int64_t iteration = 0;
};

// Complete a checkpoint of this epoch on this node.
struct CompleteCheckpoint {
  uint64_t epoch = 0;
  v1::WriteManifestCommand command;
};

// Fetch copies of files of a checkpoint of this epoch; of several waiting orders the newest counts.
struct FetchReplica {
  uint64_t epoch = 0;
  v1::ReplicateCommand command;
};

// Tells the RunCommit under way to begin no further iteration, and to abandon one under way from this number on.
struct EndTraining {
  std::optional<int64_t> abandon_from;
};

// Interrupt the trainer's thread, for good.
struct InterruptTrainer {};

// Log lines are of this epoch from here on.
struct EnterEpoch {
  uint64_t epoch = 0;
};

struct WorkerLog {
  LogLevel level = LogLevel::kInfo;
  std::string text;
};

// The last effect of all.
struct ExitWorker {
  int code = 0;
  std::string reason;
  bool has_words = false;  // the agent's stream may still carry some, and somebody may hear them
};

using WorkerEffect =
    std::variant<DialAgent, HangUp, TellAgent, RunProfile, RunPrepare, RunCommit, RunCheckpoint, RequestCheckpoint,
                 CompleteCheckpoint, FetchReplica, EndTraining, InterruptTrainer, EnterEpoch, WorkerLog, ExitWorker>;
using WorkerEffects = std::vector<WorkerEffect>;

}  // namespace geopipe
