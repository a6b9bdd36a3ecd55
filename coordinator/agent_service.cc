#include "coordinator/agent_service.h"

#include <fmt/format.h>

#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "coordinator/grpc_status.h"
#include "proto/wire/session_wire.h"
#include "runtime/base/log.h"

namespace geopipe {

// Lives until gRPC is done with the stream. At most one read and one write are under way; the next read begins when the
// message of the last is in the inbox.
class AgentServiceAdapter::Session final : public grpc::ServerBidiReactor<v1::ConnectRequest, v1::ConnectResponse>,
                                           public std::enable_shared_from_this<Session> {
 public:
  Session(AgentServiceAdapter& service, grpc::CallbackServerContext* context, SessionId id)
      : service_(service), context_(context), id_(id), sender_(std::make_shared<EventSender>(service.port_)) {}

  void Begin() {
    self_ = shared_from_this();
    StartRead(&request_);
  }

  void Send(v1::ConnectResponse message) {
    std::lock_guard lock(mutex_);
    if (ending_.has_value()) {
      return;
    }
    const size_t bytes = message.ByteSizeLong();
    if (queue_.size() >= service_.limits_.max_queued_messages ||
        queued_bytes_ + bytes > service_.limits_.max_queued_bytes) {
      LogWarning("agent stream {} ({}) does not read: {} messages wait; it is disconnected", id_, context_->peer(),
                 queue_.size());
      EndLocked(absl::ResourceExhaustedError("the agent does not read what the coordinator sends; dial again"));
      context_->TryCancel();  // its write would otherwise never end
      return;
    }
    queued_bytes_ += bytes;
    queue_.push_back(std::move(message));
    WriteLocked();
  }

  void End(const absl::Status& status) {
    std::lock_guard lock(mutex_);
    EndLocked(status);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      End(absl::OkStatus());
      return;
    }
    if (const absl::Status status = ValidateMessage(request_); !status.ok()) {
      End(status);
      return;
    }
    sender_->Post(AgentMessage{id_, std::move(request_)}, [self = shared_from_this()] { self->ReadOn(); });
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    writing_ = false;
    queued_bytes_ -= queue_.front().ByteSizeLong();
    queue_.pop_front();
    if (!ok && !ending_.has_value()) {
      ending_ = absl::UnavailableError("the agent's connection broke");
    }
    WriteLocked();
    FinishLocked();
  }

  void OnCancel() override { End(absl::CancelledError("the agent's connection broke")); }

  void OnDone() override {
    service_.Forget(id_);
    std::shared_ptr<Session> self = std::move(self_);
    std::string reason = "closed";
    {
      std::lock_guard lock(mutex_);
      done_ = true;
      if (ending_.has_value() && !ending_->ok()) {
        reason = std::string(ending_->message());
      }
    }
    sender_->Post(AgentClosed{id_, std::move(reason)}, {});
  }

 private:
  void ReadOn() {
    std::lock_guard lock(mutex_);
    if (!finished_ && !done_) {
      StartRead(&request_);
    }
  }

  void WriteLocked() {
    if (!writing_ && !ending_.has_value() && !queue_.empty()) {
      writing_ = true;
      StartWrite(&queue_.front());
    }
  }

  void EndLocked(const absl::Status& status) {
    if (!ending_.has_value()) {
      ending_ = status;
    }
    FinishLocked();
  }

  // Once no write is under way; what still waits is not sent.
  void FinishLocked() {
    if (ending_.has_value() && !writing_ && !finished_) {
      finished_ = true;
      Finish(ToGrpcStatus(*ending_));
    }
  }

  AgentServiceAdapter& service_;
  grpc::CallbackServerContext* const context_;
  const SessionId id_;
  v1::ConnectRequest request_;
  const std::shared_ptr<EventSender> sender_;
  std::shared_ptr<Session> self_;  // until OnDone

  std::mutex mutex_;
  std::deque<v1::ConnectResponse> queue_;  // the front one is being written when writing_
  size_t queued_bytes_ = 0;
  bool writing_ = false;
  bool finished_ = false;  // Finish was called
  bool done_ = false;      // gRPC is done
  std::optional<absl::Status> ending_;
};

AgentServiceAdapter::AgentServiceAdapter(EventPort& port, const AgentServiceLimits& limits)
    : port_(port), limits_(limits) {}

AgentServiceAdapter::~AgentServiceAdapter() = default;

grpc::ServerBidiReactor<v1::ConnectRequest, v1::ConnectResponse>* AgentServiceAdapter::Connect(
    grpc::CallbackServerContext* context) {
  std::shared_ptr<Session> session;
  absl::Status refused;
  {
    std::lock_guard lock(mutex_);
    const SessionId id = next_session_++;
    session = std::make_shared<Session>(*this, context, id);
    refused = closed_;
    if (refused.ok() && sessions_.size() >= limits_.max_streams) {
      refused = absl::ResourceExhaustedError(
          fmt::format("{} agent streams are open, which is this coordinator's limit", sessions_.size()));
    }
    if (refused.ok()) {
      sessions_[id] = session;
    }
  }
  session->Begin();
  if (!refused.ok()) {
    session->End(refused);
  }
  return session.get();
}

void AgentServiceAdapter::Send(SessionId session, v1::ConnectResponse message) {
  if (const std::shared_ptr<Session> found = Find(session); found != nullptr) {
    found->Send(std::move(message));
  }
}

void AgentServiceAdapter::Close(SessionId session, const absl::Status& status) {
  if (const std::shared_ptr<Session> found = Find(session); found != nullptr) {
    found->End(status);
  }
}

void AgentServiceAdapter::CloseAll(const absl::Status& status) {
  std::vector<std::shared_ptr<Session>> sessions;
  {
    std::lock_guard lock(mutex_);
    if (closed_.ok()) {
      closed_ = status;  // the first reason stays
    }
    for (const auto& [id, session] : sessions_) {
      sessions.push_back(session);
    }
  }
  for (const std::shared_ptr<Session>& session : sessions) {
    session->End(status);
  }
}

std::shared_ptr<AgentServiceAdapter::Session> AgentServiceAdapter::Find(SessionId session) {
  std::lock_guard lock(mutex_);
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : found->second;
}

void AgentServiceAdapter::Forget(SessionId session) {
  std::lock_guard lock(mutex_);
  sessions_.erase(session);
}

}  // namespace geopipe
