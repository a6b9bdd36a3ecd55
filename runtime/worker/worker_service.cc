#include "runtime/worker/worker_service.h"

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <utility>

#include "geopipe/v1/worker_service.grpc.pb.h"
#include "proto/wire/session_wire.h"
#include "runtime/base/backoff.h"
#include "runtime/base/grpc/channel.h"
#include "runtime/base/ids.h"
#include "runtime/base/log.h"

namespace geopipe {
namespace {

constexpr int64_t kFirstBackoffNs = 100'000'000;
constexpr int64_t kMaxBackoffNs = 2'000'000'000;
constexpr std::chrono::seconds kConnectTimeout{1};

// A refusal that dialling again does not change.
bool Final(const absl::Status& status) {
  return absl::IsUnauthenticated(status) || absl::IsInvalidArgument(status) || absl::IsPermissionDenied(status) ||
         absl::IsFailedPrecondition(status) || absl::IsUnimplemented(status);
}

}  // namespace

AgentLink::AgentLink(Options options, Handlers handlers, Clock& clock)
    : options_(std::move(options)), handlers_(std::move(handlers)), clock_(clock), last_contact_ns_(clock.NowNs()) {}

void AgentLink::Start() {
  thread_ = std::thread([this] { Run(); });
}

AgentLink::~AgentLink() { Close(0); }

v1::AttachRequest AgentLink::Request(v1::WorkerReport report) const {
  v1::AttachRequest request;
  *request.mutable_worker() = options_.worker;
  *request.mutable_report() = std::move(report);
  return request;
}

void AgentLink::Report(v1::WorkerReport report) { outbox_.Push(Request(std::move(report))); }

void AgentLink::TryReport(v1::WorkerReport report) { outbox_.TryPush(Request(std::move(report))); }

void AgentLink::Close(int64_t flush_ns) {
  outbox_.Close();
  {
    std::unique_lock lock(mutex_);
    closing_ = true;
    changed_.notify_all();
    changed_.wait_for(lock, std::chrono::nanoseconds(flush_ns), [this] { return done_ || !thread_.joinable(); });
    if (context_ != nullptr) {
      context_->TryCancel();
    }
  }
  if (thread_.joinable()) {
    thread_.join();
  }
}

bool AgentLink::closing() const {
  const std::lock_guard lock(mutex_);
  return closing_;
}

void AgentLink::WaitFor(int64_t duration_ns) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::nanoseconds(duration_ns), [this] { return closing_; });
}

void AgentLink::Run() {
  SplitMix64 jitter(RandomId());
  int32_t breaks = 0;  // in a row
  while (!closing()) {
    const int64_t begin_ns = clock_.NowNs();
    const absl::Status status = RunSession();
    if (closing()) {
      break;
    }
    const int64_t silent_ns = clock_.NowNs() - last_contact_ns_;
    if (Final(status) || silent_ns >= options_.orphan_grace_ns) {
      handlers_.on_lost(
          Final(status) ? status
                        : absl::UnavailableError(fmt::format("no agent has answered at {} for {:.0f} s",
                                                             options_.address, static_cast<double>(silent_ns) * 1e-9)));
      break;
    }
    LogWarning("the stream to the agent broke ({}); dialling again", std::string(status.message()));
    breaks = clock_.NowNs() - begin_ns > kMaxBackoffNs ? 1 : breaks + 1;
    WaitFor(BackoffNs(kFirstBackoffNs, kMaxBackoffNs, breaks, jitter));
  }
  const std::lock_guard lock(mutex_);
  done_ = true;
  changed_.notify_all();
}

absl::Status AgentLink::RunSession() {
  const std::shared_ptr<grpc::Channel> channel = MakeChannel(options_.address);
  if (!channel->WaitForConnected(std::chrono::system_clock::now() + kConnectTimeout)) {
    return absl::UnavailableError(fmt::format("no agent listens at {}", options_.address));
  }
  grpc::ClientContext context;
  const auto stub = v1::WorkerService::NewStub(channel);
  const auto stream = stub->Attach(&context);
  {
    const std::lock_guard lock(mutex_);
    if (closing_) {
      context.TryCancel();
    }
    context_ = &context;
  }
  v1::WorkerReport hello;
  *hello.mutable_hello() = options_.hello;
  const auto on_message = [this](v1::AttachResponse response) {
    absl::Status status = ValidateMessage(response);
    if (status.ok() && response.has_command()) {
      handlers_.on_command(std::move(*response.mutable_command()));
    }
    return status;
  };
  const absl::Status status = RunStream<v1::AttachRequest, v1::AttachResponse>(
      context, *stream, Request(std::move(hello)), outbox_, {.on_message = on_message, .on_written = {}});
  const std::lock_guard lock(mutex_);
  context_ = nullptr;
  last_contact_ns_ = clock_.NowNs();
  return status.ok() ? absl::UnavailableError("the agent ended the stream") : status;
}

}  // namespace geopipe
