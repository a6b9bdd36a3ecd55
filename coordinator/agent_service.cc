#include "coordinator/agent_service.h"

#include <functional>
#include <string>
#include <utility>

#include "proto/wire/session_wire.h"

namespace geopipe {

AgentServiceAdapter::AgentServiceAdapter(EventPort& port, const StreamLimits& limits) : port_(port), streams_(limits) {}

grpc::ServerBidiReactor<v1::ConnectRequest, v1::ConnectResponse>* AgentServiceAdapter::Connect(
    grpc::CallbackServerContext* context) {
  const auto sender = std::make_shared<EventSender>(port_);
  return streams_.Open(context,
                       {.on_message =
                            [sender](SessionId id, v1::ConnectRequest message, std::function<void()> read_on) {
                              absl::Status status = ValidateMessage(message);
                              if (status.ok()) {
                                sender->Post(AgentMessage{id, std::move(message)}, std::move(read_on));
                              }
                              return status;
                            },
                        .on_closed =
                            [sender](SessionId id, const absl::Status& status) {
                              sender->Post(AgentClosed{id, status.ok() ? "closed" : std::string(status.message())}, {});
                            }});
}

void AgentServiceAdapter::Send(SessionId session, v1::ConnectResponse message) {
  streams_.Send(session, std::move(message));
}

void AgentServiceAdapter::Close(SessionId session, const absl::Status& status) { streams_.End(session, status); }

void AgentServiceAdapter::CloseAll(const absl::Status& status) { streams_.EndAll(status); }

}  // namespace geopipe
