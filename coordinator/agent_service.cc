#include "coordinator/agent_service.h"

#include <functional>
#include <string>
#include <utility>

#include "proto/wire/session_wire.h"

namespace geopipe {

grpc::ServerBidiReactor<v1::ConnectRequest, v1::ConnectResponse>* AgentServiceAdapter::Connect(
    grpc::CallbackServerContext* context) {
  return streams_.Open(context,
                       {.on_message =
                            [this](SessionId id, v1::ConnectRequest message, std::function<void()> read_on) {
                              absl::Status status = ValidateMessage(message);
                              if (status.ok()) {
                                port_.Post(AgentMessage{id, std::move(message)}, std::move(read_on));
                              }
                              return status;
                            },
                        .on_closed =
                            [this](SessionId id, const absl::Status& status) {
                              port_.Post(AgentClosed{id, status.ok() ? "closed" : std::string(status.message())}, {});
                            }});
}

}  // namespace geopipe
