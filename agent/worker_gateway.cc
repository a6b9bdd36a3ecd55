#include "agent/worker_gateway.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "agent/grpc_status.h"
#include "geopipe/v1/worker_service.grpc.pb.h"
#include "proto/wire/session_wire.h"
#include "runtime/base/files.h"

namespace geopipe::agent {
namespace {

constexpr std::chrono::seconds kMostWriting(2);

using Stream = grpc::ServerReaderWriter<v1::AttachResponse, v1::AttachRequest>;

// One worker's stream. Its thread is gRPC's and reads; a second one writes.
class Session {
 public:
  Session(SessionId id, grpc::ServerContext* context, Stream* stream) : id_(id), context_(context), stream_(stream) {}

  SessionId id() const { return id_; }

  // --- Called by the core's thread, under the gateway's lock.
  void Accept() {
    std::lock_guard lock(mutex_);
    accepted_ = true;
    changed_.notify_all();
  }

  void Send(v1::AttachResponse message, size_t limit) {
    std::unique_lock lock(mutex_);
    if (outgoing_.size() < limit) {
      outgoing_.push_back(std::move(message));
      changed_.notify_all();
      return;
    }
    lock.unlock();
    Close(absl::ResourceExhaustedError("the worker reads none of its commands"));
  }

  void Close(const absl::Status& status) {
    std::lock_guard lock(mutex_);
    closed_ = closed_.value_or(status);
    changed_.notify_all();
    if (accepted_) {
      context_->TryCancel();  // ends what is under way; before that the handler itself returns the status
    }
  }

  // --- Called by the stream's own thread.

  // Nothing is being read any more. A cancel would hide from the worker why it is refused; only one that reads nothing
  // is not waited for.
  void End(const absl::Status& status) {
    std::unique_lock lock(mutex_);
    closed_ = closed_.value_or(status);
    changed_.notify_all();
    if (!changed_.wait_for(lock, kMostWriting, [&] { return written_; })) {
      context_->TryCancel();
    }
  }

  // Whether the core takes the worker; otherwise `status()` says why not.
  bool AwaitVerdict(int64_t timeout_ns) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), [&] { return accepted_ || closed_.has_value(); });
    if (!accepted_ && !closed_.has_value()) {
      closed_ = absl::UnavailableError("the agent did not answer in time");
    }
    return !closed_.has_value();
  }

  absl::Status status() {
    std::lock_guard lock(mutex_);
    return closed_.value_or(absl::OkStatus());
  }

  void OnWritten() {
    std::lock_guard lock(mutex_);
    written_ = true;
    changed_.notify_all();
  }

  // Until Close, or until the stream breaks.
  void WriteCommands() {
    for (;;) {
      v1::AttachResponse message;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return closed_.has_value() || !outgoing_.empty(); });
        if (closed_.has_value()) {
          return;
        }
        message = std::move(outgoing_.front());
        outgoing_.pop_front();
      }
      if (!stream_->Write(message)) {
        context_->TryCancel();
        return;
      }
    }
  }

 private:
  const SessionId id_;
  grpc::ServerContext* const context_;
  Stream* const stream_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool accepted_ = false;
  bool written_ = false;  // nothing is any more
  std::optional<absl::Status> closed_;
  std::deque<v1::AttachResponse> outgoing_;
};

class Gateway final : public WorkerGateway, private v1::WorkerService::Service {
 public:
  Gateway(const WorkerGatewayOptions& options, PostEvent post) : options_(options), post_(std::move(post)) {}

  ~Gateway() override {
    {
      std::lock_guard lock(mutex_);
      for (const auto& [id, session] : sessions_) {
        session->Close(absl::UnavailableError("the agent is leaving"));
      }
    }
    if (server_ != nullptr) {
      server_->Shutdown(std::chrono::system_clock::now());  // cancels the streams, waits for their threads
    }
  }

  absl::Status Listen(const std::string& socket_path) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + socket_path, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    builder.SetMaxSendMessageSize(kMaxMessageBytes);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) {
      return absl::UnavailableError(fmt::format("cannot listen on {}; is its folder writable?", socket_path));
    }
    // The folder is the agent's own, so nobody comes in between.
    return chmod(socket_path.c_str(), 0600) == 0 ? absl::OkStatus()
                                                 : ErrnoStatus(errno, fmt::format("cannot protect {}", socket_path));
  }

  void Carry(const AcceptSession& accept) override {
    std::lock_guard lock(mutex_);
    if (Session* session = Find(accept.session); session != nullptr) {
      session->Accept();
    }
  }

  void Carry(SendToWorker send) override {
    std::lock_guard lock(mutex_);
    if (Session* session = Find(send.session); session != nullptr) {
      session->Send(std::move(send.message), options_.max_waiting_commands);
    }
  }

  void Carry(const CloseSession& close) override {
    std::lock_guard lock(mutex_);
    if (Session* session = Find(close.session); session != nullptr) {
      session->Close(close.status);
    }
  }

 private:
  Session* Find(SessionId id) {
    const auto at = sessions_.find(id);
    return at == sessions_.end() ? nullptr : at->second;
  }

  grpc::Status Attach(grpc::ServerContext* context, Stream* stream) override {
    std::optional<Session> session;
    {
      std::lock_guard lock(mutex_);
      if (sessions_.size() >= static_cast<size_t>(options_.max_sessions)) {
        return ToGrpc(absl::ResourceExhaustedError(fmt::format("{} workers are attached", sessions_.size())));
      }
      session.emplace(++last_session_, context, stream);
      sessions_.emplace(session->id(), &*session);
    }
    const absl::Status status = Serve(*session, *stream);
    {
      std::lock_guard lock(mutex_);
      sessions_.erase(session->id());
    }
    post_(WorkerClosed{session->id()});
    return ToGrpc(status);
  }

  absl::Status Serve(Session& session, Stream& stream) {
    absl::Status status = ReadOne(session, stream);
    if (!status.ok() || !session.AwaitVerdict(options_.verdict_timeout_ns)) {
      return status.ok() ? session.status() : status;
    }
    std::thread writer([&] {
      session.WriteCommands();
      session.OnWritten();
    });
    while (status.ok()) {
      status = ReadOne(session, stream);
    }
    session.End(absl::IsOutOfRange(status) ? absl::OkStatus() : status);
    writer.join();
    return session.status();
  }

  // OutOfRange at the end of the stream.
  absl::Status ReadOne(const Session& session, Stream& stream) {
    v1::AttachRequest message;
    if (!stream.Read(&message)) {
      return absl::OutOfRangeError("end of the stream");
    }
    if (absl::Status status = ValidateMessage(message); !status.ok()) {
      return status;
    }
    return post_(WorkerMessage{session.id(), std::move(message)}) ? absl::OkStatus()
                                                                  : absl::UnavailableError("the agent is leaving");
  }

  const WorkerGatewayOptions options_;
  const PostEvent post_;
  std::mutex mutex_;
  std::map<SessionId, Session*> sessions_;  // each lives in its handler's frame
  SessionId last_session_ = 0;
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
