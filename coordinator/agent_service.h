// AgentService over gRPC: one stream for each agent. Messages in become events in the core's inbox, effects of the core
// become messages out. Decides nothing.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "coordinator/event_port.h"
#include "coordinator/runner.h"
#include "geopipe/v1/agent_service.grpc.pb.h"

namespace geopipe {

struct AgentServiceLimits {
  size_t max_streams = 2048;
  // What may wait to be written to one agent; one that reads too slowly to stay below is disconnected.
  size_t max_queued_messages = 4096;
  size_t max_queued_bytes = size_t{512} << 20;
};

class AgentServiceAdapter final : public v1::AgentService::CallbackService, public AgentStreams {
 public:
  // The port outlives the service, and the service outlives its server.
  AgentServiceAdapter(EventPort& port, const AgentServiceLimits& limits);
  ~AgentServiceAdapter() override;

  grpc::ServerBidiReactor<v1::ConnectRequest, v1::ConnectResponse>* Connect(
      grpc::CallbackServerContext* context) override;

  // By the core's thread. Sessions that have ended are passed over.
  void Send(SessionId session, v1::ConnectResponse message) override;
  void Close(SessionId session, const absl::Status& status) override;

  // Ends every stream with the status, and every later one at once. Any thread.
  void CloseAll(const absl::Status& status);

 private:
  class Session;

  std::shared_ptr<Session> Find(SessionId session);
  void Forget(SessionId session);

  EventPort& port_;
  const AgentServiceLimits limits_;
  std::mutex mutex_;
  std::map<SessionId, std::shared_ptr<Session>> sessions_;
  SessionId next_session_ = 1;
  absl::Status closed_;  // not OK: no more streams
};

}  // namespace geopipe
