#include "agent/coordinator_client.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "agent/grpc_status.h"
#include "geopipe/v1/agent_service.grpc.pb.h"
#include "proto/wire/session_wire.h"

namespace geopipe::agent {
namespace {

// A channel per attempt, which shares nothing with earlier ones: whether to dial is decided in one place, not by gRPC's
// own backoff too.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

// One stream: a thread that reads, a thread that writes.
class CoordinatorClient::Connection {
 public:
  Connection(const std::string& address, PostEvent post, Dial dial)
      : id_(dial.connection), post_(std::move(post)), stub_(v1::AgentService::NewStub(MakeChannel(address))) {
    outgoing_.push_back(std::move(dial.hello));
    reader_ = std::thread([this] { Run(); });
  }

  ~Connection() {
    HangUp();
    reader_.join();
  }

  ConnectionId id() const { return id_; }
  bool done() const { return done_; }

  void HangUp() {
    context_.TryCancel();
    EndWriting();
  }

  void Send(v1::ConnectRequest message) {
    std::lock_guard lock(mutex_);
    outgoing_.push_back(std::move(message));  // bounded by the core's window
    changed_.notify_all();
  }

 private:
  void EndWriting() {
    std::lock_guard lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }

  void Run() {
    stream_ = stub_->Connect(&context_);
    std::thread writer([this] { Write(); });
    v1::ConnectResponse message;
    absl::Status status;
    while (status.ok() && stream_->Read(&message)) {
      status = ValidateMessage(message);
      if (!status.ok() || !post_(CoordinatorMessage{id_, std::move(message)})) {
        context_.TryCancel();
      }
      message.Clear();
    }
    EndWriting();  // without a cancel, which would hide the coordinator's own status
    writer.join();
    const grpc::Status finished = stream_->Finish();
    post_(CoordinatorClosed{id_, status.ok() ? FromGrpc(finished) : status});
    done_ = true;
  }

  void Write() {
    for (bool hello = true;; hello = false) {
      std::optional<v1::ConnectRequest> message;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return ending_ || !outgoing_.empty(); });
        if (ending_) {
          return;
        }
        message = std::move(outgoing_.front());
        outgoing_.pop_front();
      }
      if (!stream_->Write(*message) || (!hello && !post_(CoordinatorSent{id_}))) {
        context_.TryCancel();
        return;
      }
    }
  }

  const ConnectionId id_;
  const PostEvent post_;
  const std::unique_ptr<v1::AgentService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ConnectRequest, v1::ConnectResponse>> stream_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<v1::ConnectRequest> outgoing_;
  bool ending_ = false;
  std::atomic<bool> done_ = false;
  std::thread reader_;
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
