#include "agent/coordinator_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "runtime/base/backoff.h"

namespace geopipe::agent {
namespace {

constexpr int64_t kMinHeartbeatNs = 1'000'000;

}  // namespace

CoordinatorLink::CoordinatorLink(const CoordinatorLinkOptions& options, HelloMaker make_hello)
    : options_(options), make_hello_(std::move(make_hello)), jitter_(options.seed), queue_(options.queue_bytes) {}

v1::ConnectRequest CoordinatorLink::Message() const {
  v1::ConnectRequest message;
  message.set_incarnation(options_.incarnation);
  return message;
}

int64_t CoordinatorLink::next_deadline_ns() const {
  return CanSay() && queue_.ready() ? std::min(deadline_ns_, gathered_until_ns_) : deadline_ns_;
}

void CoordinatorLink::Flush(int64_t now_ns, bool all, Effects& effects) {
  if (heartbeat_due_ && CanSay()) {  // ahead of a long queue, or the coordinator would think this agent dead
    v1::ConnectRequest message = Message();
    message.mutable_heartbeat();
    heartbeat_due_ = false;
    effects.emplace_back(SendToCoordinator{connection_, std::move(message)});
    ++in_flight_;
  }
  if (!all && !queue_.urgent() && now_ns < gathered_until_ns_) {
    return;
  }
  while (CanSay() && queue_.ready()) {
    v1::ConnectRequest message = Message();
    *message.mutable_reports() = *queue_.Take();
    effects.emplace_back(SendToCoordinator{connection_, std::move(message)});
    ++in_flight_;
    gathered_until_ns_ = now_ns + options_.gather_ns;
  }
}

std::optional<v1::ConnectResponse> CoordinatorLink::OnMessage(int64_t now_ns, const CoordinatorMessage& event,
                                                              Effects& effects) {
  if (event.connection != connection_ || state_ == State::kWaiting) {
    return std::nullopt;
  }
  if (state_ == State::kRegistered) {
    if (event.message.has_reports_taken()) {
      queue_.Acknowledge(event.message.reports_taken().sequence());
      return std::nullopt;
    }
    return event.message.has_welcome() ? std::nullopt : std::optional(event.message);
  }
  if (!event.message.has_welcome()) {
    effects.emplace_back(HangUp{connection_});
    Break(now_ns, absl::InternalError("its first message was not a welcome"), effects);
    return std::nullopt;
  }
  state_ = State::kRegistered;
  heartbeat_interval_ns_ = std::max(event.message.welcome().heartbeat_interval_ns(), kMinHeartbeatNs);
  deadline_ns_ = now_ns + heartbeat_interval_ns_;
  breaks_ = 0;
  effects.emplace_back(WriteLog{LogLevel::kInfo, fmt::format("registered with the coordinator (incarnation {:x})",
                                                             event.message.welcome().coordinator_incarnation())});
  if (!announced_) {
    announced_ = true;
    effects.emplace_back(Announce{});
  }
  return std::nullopt;
}

void CoordinatorLink::OnSent(const CoordinatorSent& event) {
  if (event.connection == connection_ && state_ == State::kRegistered && in_flight_ > 0) {
    --in_flight_;
  }
}

void CoordinatorLink::OnClosed(int64_t now_ns, const CoordinatorClosed& event, Effects& effects) {
  if (event.connection == connection_ && state_ != State::kWaiting) {
    Break(now_ns, event.status, effects);
  }
}

void CoordinatorLink::Break(int64_t now_ns, const absl::Status& status, Effects& effects) {
  const char* what = state_ == State::kRegistered ? "lost the coordinator" : "cannot register with the coordinator";
  state_ = State::kWaiting;
  in_flight_ = 0;
  queue_.Rewind();
  heartbeat_due_ = false;
  if (absl::IsFailedPrecondition(status) || absl::IsAlreadyExists(status)) {
    refusal_ = status;
    deadline_ns_ = std::numeric_limits<int64_t>::max();
    return;
  }
  const int64_t delay_ns = BackoffNs(options_.first_backoff_ns, options_.max_backoff_ns, ++breaks_, jitter_);
  deadline_ns_ = now_ns + delay_ns;
  const std::string reason =
      status.ok() ? "it ended the stream"
                  : fmt::format("{} ({})", std::string(status.message()), absl::StatusCodeToString(status.code()));
  effects.emplace_back(WriteLog{LogLevel::kWarning, fmt::format("{}: {}; trying again in {:.1f} s", what, reason,
                                                                static_cast<double>(delay_ns) * 1e-9)});
}

void CoordinatorLink::OnTime(int64_t now_ns, Effects& effects) {
  if (queue_.dropped() > reported_drops_) {
    effects.emplace_back(WriteLog{
        LogLevel::kWarning, fmt::format("gave up {} reports: more wait for the coordinator than the bound of {} MiB",
                                        queue_.dropped() - reported_drops_, options_.queue_bytes >> 20)});
    reported_drops_ = queue_.dropped();
  }
  if (now_ns < deadline_ns_) {
    return;
  }
  switch (state_) {
    case State::kWaiting: {
      ++connection_;
      state_ = State::kDialled;
      deadline_ns_ = now_ns + options_.welcome_timeout_ns;
      v1::ConnectRequest hello = Message();
      *hello.mutable_hello() = make_hello_();
      effects.emplace_back(Dial{connection_, std::move(hello)});
      return;
    }
    case State::kDialled:
      effects.emplace_back(HangUp{connection_});
      Break(now_ns, absl::DeadlineExceededError("it sent no welcome in time"), effects);
      return;
    case State::kRegistered:
      deadline_ns_ = now_ns + heartbeat_interval_ns_;
      heartbeat_due_ = true;  // at most one waits, however slowly the coordinator reads
      return;
  }
}

}  // namespace geopipe::agent
