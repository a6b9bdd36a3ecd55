#include "agent/worker_gateway.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "geopipe/v1/worker_service.grpc.pb.h"
#include "proto/wire/session_wire.h"
#include "runtime/base/files.h"
#include "runtime/base/grpc/channel.h"
#include "runtime/base/grpc/stream_server.h"

namespace geopipe::agent {
namespace {

class Gateway final : public WorkerGateway, private v1::WorkerService::CallbackService {
 public:
  Gateway(const WorkerGatewayOptions& options, PostEvent post)
      : post_(std::move(post)),
        streams_({.peer = "worker",
                  .max_streams = static_cast<size_t>(options.max_sessions),
                  .max_queued_messages = options.max_waiting_commands}) {}

  ~Gateway() override {
    streams_.EndAll(absl::UnavailableError("the agent is leaving"));
    if (server_ != nullptr) {
      server_->Shutdown(
          std::chrono::system_clock::now());  // cancels the streams that are left, waits for their threads
    }
  }

  absl::Status Listen(const std::string& socket_path) {
    grpc::ServerBuilder builder;
    ListenOn("unix:" + socket_path, builder);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) {
      return absl::UnavailableError(fmt::format("cannot listen on {}; is its folder writable?", socket_path));
    }
    // The folder is the agent's own, so nobody comes in between.
    return chmod(socket_path.c_str(), 0600) == 0 ? absl::OkStatus()
                                                 : ErrnoStatus(errno, fmt::format("cannot protect {}", socket_path));
  }

  void Carry(const AcceptSession& accept) override { Continue(accept.session); }
  void Carry(const ReadOn& read_on) override { Continue(read_on.session); }
  void Carry(SendToWorker send) override { streams_.Send(send.session, std::move(send.message)); }
  void Carry(const CloseSession& close) override { streams_.End(close.session, close.status); }

 private:
  grpc::ServerBidiReactor<v1::AttachRequest, v1::AttachResponse>* Attach(
      grpc::CallbackServerContext* context) override {
    return streams_.Open(context, {.on_message =
                                       [this](SessionId id, v1::AttachRequest message, std::function<void()> read_on) {
                                         return OnMessage(id, std::move(message), std::move(read_on));
                                       },
                                   .on_closed =
                                       [this](SessionId id, const absl::Status& /*status*/) {
                                         TakePaused(id);
                                         post_(WorkerClosed{id});
                                       }});
  }

  // A stream is read on when the core has accepted it, or has room for its next message.
  absl::Status OnMessage(SessionId id, v1::AttachRequest message, std::function<void()> read_on) {
    if (absl::Status status = ValidateMessage(message); !status.ok()) {
      return status;
    }
    {
      const std::lock_guard lock(mutex_);
      paused_.emplace(id, std::move(read_on));
    }
    return post_(WorkerMessage{id, std::move(message)}) ? absl::OkStatus()
                                                        : absl::UnavailableError("the agent is leaving");
  }

  void Continue(SessionId id) {
    if (const std::function<void()> read_on = TakePaused(id)) {
      read_on();
    }
  }

  // Empty when the session is being read or has ended.
  std::function<void()> TakePaused(SessionId id) {
    const std::lock_guard lock(mutex_);
    const auto node = paused_.extract(id);
    return node.empty() ? nullptr : std::move(node.mapped());
  }

  const PostEvent post_;
  std::mutex mutex_;
  std::map<SessionId, std::function<void()>> paused_;  // called to read on
  StreamServer<v1::AttachRequest, v1::AttachResponse> streams_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerGateway>> WorkerGateway::Start(const std::string& socket_path,
                                                                    const WorkerGatewayOptions& options,
                                                                    PostEvent post) {
  auto gateway = std::make_unique<Gateway>(options, std::move(post));
  if (absl::Status status = gateway->Listen(socket_path); !status.ok()) {
    return status;
  }
  return gateway;
}

}  // namespace geopipe::agent
