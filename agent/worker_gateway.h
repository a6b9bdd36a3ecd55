// WorkerService on a Unix socket that only this user can open: the streams of this node's workers. Posts what they say
// and carries out AcceptSession, ReadOn, SendToWorker and CloseSession; who may attach is the core's business.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>

#include "agent/events.h"
#include "agent/post_event.h"

namespace geopipe::agent {

struct WorkerGatewayOptions {
  int32_t max_sessions = 64;         // streams beyond this are refused with RESOURCE_EXHAUSTED
  size_t max_waiting_commands = 64;  // a worker that leaves this many untaken is cut off
};

class WorkerGateway {
 public:
  // Listens; a socket left by an earlier agent is replaced. Events are posted from gRPC's threads, so `post` must not
  // wait; a stream is not read on before the core says so, message by message. Errors: Unavailable when the socket
  // cannot be made.
  static absl::StatusOr<std::unique_ptr<WorkerGateway>> Start(const std::string& socket_path,
                                                              const WorkerGatewayOptions& options, PostEvent post);
  // Ends all streams.
  virtual ~WorkerGateway() = default;

  // Carries out an effect without waiting for a worker; ignores sessions that have ended. Called from one thread.
  virtual void Carry(const AcceptSession& accept) = 0;
  virtual void Carry(const ReadOn& read_on) = 0;
  virtual void Carry(SendToWorker send) = 0;
  virtual void Carry(const CloseSession& close) = 0;
};

}  // namespace geopipe::agent
