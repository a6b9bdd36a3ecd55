// Events and effects of the agent's core. Adapters (the coordinator's stream, the workers' gateway, the
// supervisor) make events; the runner carries out effects in order. Neither knows of threads, sockets or processes.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "agent/kept/kept_process.h"
#include "geopipe/v1/agent_service.pb.h"
#include "geopipe/v1/worker_service.pb.h"
#include "runtime/base/log.h"

namespace geopipe::agent {

// One attempt to reach the coordinator, counted from 1: events of earlier attempts are recognised and ignored.
using ConnectionId = uint64_t;
// One stream of a worker, as the gateway numbers them.
using SessionId = uint64_t;

// One worker process of this node: the device, and the incarnation that tells it from earlier ones.
struct WorkerKey {
  int32_t device = 0;
  uint64_t incarnation = 0;

  friend bool operator==(const WorkerKey&, const WorkerKey&) = default;
};

// --- Events -----------------------------------------------------------------------------------------------------

struct CoordinatorMessage {
  ConnectionId connection = 0;
  v1::ConnectResponse message;
};

// A message handed to the stream has been written: there is room for another.
struct CoordinatorSent {
  ConnectionId connection = 0;
};

struct CoordinatorClosed {
  ConnectionId connection = 0;
  absl::Status status;
};

struct WorkerStarted {
  WorkerKey worker;
  int64_t pid = 0;
};

struct WorkerStartFailed {
  WorkerKey worker;
  absl::Status status;
};

struct WorkerExited {
  WorkerKey worker;
  int64_t pid = 0;
  int32_t exit_code = 0;   // if signal is 0; kUnknownExitCode
  int32_t signal = 0;      // 0: exited by itself
  std::string last_words;  // the end of its standard error
};

// Everything that the keeper has, on the first connection to it and on each later one. Later news come as the events
// above. Earlier orders count only if their workers are listed here.
struct KeeperListed {
  struct Running {
    v1::WorkerId worker;
    int64_t pid = 0;
  };
  std::vector<Running> running;
  std::vector<v1::WorkerExit> ended;  // and not forgotten
};

// The keeper was told to end, for the node goes down; on a new connection this comes before KeeperListed. Unset: the
// keeper that is there now was not.
struct NodeLeaves {
  std::optional<int64_t> within_ns;
};

// A message of a worker's stream, the first one included. Answered by AcceptSession or CloseSession when it is the
// first, by ReadOn or CloseSession when it is a later one.
struct WorkerMessage {
  SessionId session = 0;
  v1::AttachRequest message;
};

// The session has ended; no more messages follow.
struct WorkerClosed {
  SessionId session = 0;
};

// The report of one end of a probe, in the form the coordinator gets it.
struct ProbeNews {
  v1::ProbeReport report;
};

// The process was asked to end.
struct Shutdown {
  std::string reason;
};

// Time has passed.
struct Tick {};

using Event =
    std::variant<CoordinatorMessage, CoordinatorSent, CoordinatorClosed, WorkerStarted, WorkerStartFailed, WorkerExited,
                 KeeperListed, NodeLeaves, WorkerMessage, WorkerClosed, ProbeNews, Shutdown, Tick>;

// --- Effects, carried out strictly in order -----------------------------------------------------------------------

// Open a stream and send the hello on it. Answered by CoordinatorMessage or CoordinatorClosed.
struct Dial {
  ConnectionId connection = 0;
  v1::ConnectRequest hello;
};

struct HangUp {
  ConnectionId connection = 0;
};

// Answered by CoordinatorSent, or by CoordinatorClosed for all that were not written.
struct SendToCoordinator {
  ConnectionId connection = 0;
  v1::ConnectRequest message;
};

// Answered by WorkerStarted or WorkerStartFailed; after WorkerStarted by WorkerExited, whatever happens. While the
// keeper is not there this does nothing, and neither do the next two: KeeperListed follows when it is.
struct StartWorker {
  v1::WorkerId worker;
  uint64_t run = 0;  // incarnation of the job's run that it is of; 0: not told
};

struct SignalWorker {
  WorkerKey worker;
  int signal = 0;
};

// The coordinator has taken the report of this worker's exit: the keeper need not keep it any more.
struct ForgetExit {
  WorkerKey worker;
};

// The first message of a session is followed by exactly one of AcceptSession and CloseSession. Its stream is read on.
struct AcceptSession {
  SessionId session = 0;
};

// There is room for the next message of the session: its stream is read on.
struct ReadOn {
  SessionId session = 0;
};

struct SendToWorker {
  SessionId session = 0;
  v1::AttachResponse message;
};

// Ends a worker's stream with a status.
struct CloseSession {
  SessionId session = 0;
  absl::Status status;
};

// Run one end of a probe. Answered by ProbeNews: opened (where the order has no address), then measured or failed.
struct StartProbe {
  v1::ProbeLink order;
  std::string pacer_path;  // if the link is shaped
};

// Stop this probe; it may already have ended.
struct StopProbe {
  uint64_t probe = 0;
};

// Remember on disk, across restarts, that a coordinator of this incarnation was there, and of which federation.
struct RememberCoordinator {
  uint64_t incarnation = 0;
  std::string federation;
};

// The coordinator has welcomed this agent for the first time.
struct Announce {};

struct WriteLog {
  LogLevel level = LogLevel::kInfo;
  std::string text;
};

// Leave the process; no effect follows. OK: as asked; else why it cannot go on.
struct Exit {
  absl::Status status;
};

using Effect =
    std::variant<Dial, HangUp, SendToCoordinator, StartWorker, SignalWorker, ForgetExit, AcceptSession, ReadOn,
                 SendToWorker, CloseSession, StartProbe, StopProbe, RememberCoordinator, Announce, WriteLog, Exit>;
using Effects = std::vector<Effect>;

}  // namespace geopipe::agent
