#include "runtime/worker/agent_stream.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "geopipe/v1/worker_service.grpc.pb.h"
#include "proto/wire/session_wire.h"
#include "runtime/base/grpc/channel.h"
#include "runtime/base/thread_name.h"

namespace geopipe {
namespace {

constexpr std::chrono::seconds kConnectTimeout{1};

}  // namespace

AgentStream::AgentStream(std::string address, std::function<void(WorkerEvent)> post)
    : address_(std::move(address)), post_(std::move(post)), thread_([this] { Run(); }) {}

AgentStream::~AgentStream() { Close(0); }

void AgentStream::Dial(DialAgent order) {
  const std::lock_guard lock(mutex_);
  if (session_ != nullptr) {
    session_->context.TryCancel();
  }
  dial_ = std::move(order);
  changed_.notify_all();
}

void AgentStream::HangUp(AgentStreamId stream) {
  const std::lock_guard lock(mutex_);
  if (dial_.has_value() && dial_->stream == stream) {
    dial_.reset();
  }
  if (session_ != nullptr && session_->order.stream == stream) {
    session_->context.TryCancel();
  }
}

void AgentStream::Send(TellAgent order) {
  const std::lock_guard lock(mutex_);
  if (session_ != nullptr && session_->order.stream == order.stream) {
    session_->outbox.TryPush(std::move(order.request));
  }
}

void AgentStream::Close(int64_t flush_ns) {
  {
    std::unique_lock lock(mutex_);
    closing_ = true;
    changed_.notify_all();
    if (session_ != nullptr) {
      session_->outbox.Close();
      changed_.wait_for(lock, std::chrono::nanoseconds(flush_ns), [this] { return session_ == nullptr; });
    }
    if (session_ != nullptr) {
      session_->context.TryCancel();
    }
  }
  if (thread_.joinable()) {
    thread_.join();
  }
}

void AgentStream::Run() {
  NameThisThread("agent");
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return closing_ || dial_.has_value(); });
    if (closing_) {
      return;
    }
    const auto session = std::make_shared<Session>(*std::exchange(dial_, std::nullopt));
    session_ = session;
    lock.unlock();
    absl::Status status = RunSession(*session);
    lock.lock();
    session_.reset();
    changed_.notify_all();
    if (!closing_) {
      lock.unlock();
      post_(StreamClosed{.stream = session->order.stream, .status = std::move(status)});
      lock.lock();
    }
  }
}

absl::Status AgentStream::RunSession(Session& session) {
  const std::shared_ptr<grpc::Channel> channel = MakeChannel(address_);
  if (!channel->WaitForConnected(std::chrono::system_clock::now() + kConnectTimeout)) {
    return absl::UnavailableError(fmt::format("no agent answers at {}", address_));
  }
  const AgentStreamId id = session.order.stream;
  const auto stub = v1::WorkerService::NewStub(channel);
  const auto stream = stub->Attach(&session.context);
  post_(StreamOpened{id});
  const auto on_message = [this, id](v1::AttachResponse response) {
    absl::Status status = ValidateMessage(response);
    if (status.ok()) {
      post_(AgentSaid{.stream = id, .message = std::move(response)});
    }
    return status;
  };
  const auto on_written = [this, id] {
    post_(ReportWritten{id});
    return true;
  };
  absl::Status status =
      RunStream<v1::AttachRequest, v1::AttachResponse>(session.context, *stream, session.order.hello, session.outbox,
                                                       {.on_message = on_message, .on_written = on_written});
  return status.ok() ? absl::UnavailableError("the agent ended the stream") : status;
}

}  // namespace geopipe
