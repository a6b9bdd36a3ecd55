#include "agent/coordinator_client.h"

#include <atomic>
#include <thread>
#include <utility>

#include "agent/coordinator_link.h"
#include "geopipe/v1/agent_service.grpc.pb.h"
#include "proto/wire/session_wire.h"
#include "runtime/base/grpc/channel.h"
#include "runtime/base/grpc/stream_client.h"

namespace geopipe::agent {

// One stream, on a thread of its own.
class CoordinatorClient::Connection {
 public:
  Connection(const std::string& address, PostEvent post, Dial dial)
      : id_(dial.connection),
        post_(std::move(post)),
        stub_(v1::AgentService::NewStub(MakeChannel(address))),
        thread_([this, hello = std::move(dial.hello)] { Run(hello); }) {}

  ~Connection() {
    HangUp();
    thread_.join();
  }

  ConnectionId id() const { return id_; }
  bool done() const { return done_; }

  void HangUp() { context_.TryCancel(); }
  void Send(v1::ConnectRequest message) { outbox_.Push(std::move(message)); }

 private:
  void Run(const v1::ConnectRequest& hello) {
    const auto stream = stub_->Connect(&context_);
    const auto on_message = [this](v1::ConnectResponse message) {
      absl::Status status = ValidateMessage(message);
      if (status.ok() && !post_(CoordinatorMessage{id_, std::move(message)})) {
        status = absl::CancelledError("the agent is leaving");
      }
      return status;
    };
    const absl::Status status = RunStream<v1::ConnectRequest, v1::ConnectResponse>(
        context_, *stream, hello, outbox_,
        {.on_message = on_message, .on_written = [this] { return post_(CoordinatorSent{id_}); }});
    post_(CoordinatorClosed{id_, status});
    done_ = true;
  }

  const ConnectionId id_;
  const PostEvent post_;
  const std::unique_ptr<v1::AgentService::Stub> stub_;
  grpc::ClientContext context_;
  // Holds all that the core may have under way, so Push never waits.
  Outbox<v1::ConnectRequest> outbox_{static_cast<size_t>(CoordinatorLinkOptions().window)};
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

CoordinatorClient::CoordinatorClient(std::string address, PostEvent post)
    : address_(std::move(address)), post_(std::move(post)) {}

CoordinatorClient::~CoordinatorClient() = default;

void CoordinatorClient::Carry(Dial dial) {
  // An ending connection may be waiting for room in the core's inbox, so it is joined only when it is done.
  connections_.remove_if([](const std::unique_ptr<Connection>& connection) { return connection->done(); });
  connections_.push_back(std::make_unique<Connection>(address_, post_, std::move(dial)));
}

void CoordinatorClient::Carry(const HangUp& hang_up) {
  if (!connections_.empty() && connections_.back()->id() == hang_up.connection) {
    connections_.back()->HangUp();
  }
}

void CoordinatorClient::Carry(SendToCoordinator send) {
  if (!connections_.empty() && connections_.back()->id() == send.connection) {
    connections_.back()->Send(std::move(send.message));
  }
}

}  // namespace geopipe::agent
