// AgentService over gRPC: one stream for each agent. Messages in become events in the core's inbox, effects of the core
// become messages out. Decides nothing.
#pragma once

#include <grpcpp/grpcpp.h>

#include <utility>

#include "coordinator/runner.h"
#include "geopipe/v1/agent_service.grpc.pb.h"
#include "runtime/base/event_port.h"
#include "runtime/base/grpc/stream_server.h"

namespace geopipe {

class AgentServiceAdapter final : public v1::AgentService::CallbackService, public AgentStreams {
 public:
  // The port outlives the service, and the service outlives its server.
  AgentServiceAdapter(EventPort<Event>& port, const StreamLimits& limits) : port_(port), streams_(limits) {}

  grpc::ServerBidiReactor<v1::ConnectRequest, v1::ConnectResponse>* Connect(
      grpc::CallbackServerContext* context) override;

  // Called by the core's thread. Sessions that have ended are passed over.
  void Send(SessionId session, v1::ConnectResponse message) override { streams_.Send(session, std::move(message)); }
  void Close(SessionId session, const absl::Status& status) override { streams_.End(session, status); }

  // Ends every stream with the status, and every later one at once. Any thread.
  void CloseAll(const absl::Status& status) { streams_.EndAll(status); }

 private:
  EventPort<Event>& port_;
  StreamServer<v1::ConnectRequest, v1::ConnectResponse> streams_;
};

}  // namespace geopipe
