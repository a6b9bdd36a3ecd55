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

CoordinatorLink::CoordinatorLink(const CoordinatorLinkOptions& options, HelloMaker make_hello, TakenHandler on_taken)
    : options_(options),
      make_hello_(std::move(make_hello)),
      on_taken_(std::move(on_taken)),
      jitter_(options.seed),
      queue_(options.queue_bytes),
      highest_coordinator_(options.known_coordinator),
      federation_(options.federation) {}

v1::ConnectRequest CoordinatorLink::Message() const {
  v1::ConnectRequest message;
  message.set_incarnation(options_.incarnation);
  if (state_ == State::kRegistered) {
    message.set_orders_taken(orders_taken_);
  }
  return message;
}

void CoordinatorLink::SetLeaving(int64_t now_ns, std::optional<int64_t> within_ns) {
  leaves_ns_ = within_ns.has_value() ? std::optional(now_ns + *within_ns) : std::nullopt;
  heartbeat_due_ = state_ == State::kRegistered;
}

v1::NodeLeaving CoordinatorLink::Leaving(int64_t now_ns) const {
  v1::NodeLeaving leaving;
  leaving.set_within_ns(std::max<int64_t>(0, *leaves_ns_ - now_ns));
  return leaving;
}

int64_t CoordinatorLink::next_deadline_ns() const {
  return CanSay() && queue_.ready() ? std::min(deadline_ns_, gathered_until_ns_) : deadline_ns_;
}

void CoordinatorLink::Flush(int64_t now_ns, bool all, Effects& effects) {
  if (heartbeat_due_ && CanSay()) {  // ahead of a long queue, or the coordinator would think this agent dead
    v1::ConnectRequest message = Message();
    v1::AgentHeartbeat& heartbeat = *message.mutable_heartbeat();
    if (leaves_ns_.has_value()) {
      *heartbeat.mutable_leaving() = Leaving(now_ns);
    }
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
  heard_awake_ns_.reset();
  if (state_ == State::kDialled) {
    if (event.message.has_welcome()) {
      OnWelcome(now_ns, event.message.welcome(), effects);
    } else {
      effects.emplace_back(HangUp{connection_});
      Break(now_ns, absl::InternalError("its first message was not a welcome"), effects);
    }
    return std::nullopt;
  }
  if (event.message.has_reports_taken()) {
    queue_.Acknowledge(event.message.reports_taken().sequence(), on_taken_);
    return std::nullopt;
  }
  const uint64_t sequence = event.message.sequence();
  if (event.message.has_welcome() || (sequence != 0 && sequence <= orders_taken_)) {
    return std::nullopt;
  }
  if (sequence > orders_taken_ + 1) {  // it will be told of the last one in the hello
    effects.emplace_back(HangUp{connection_});
    Break(now_ns,
          absl::DataLossError(
              fmt::format("its order {} came after its order {}; those between are lost", sequence, orders_taken_)),
          effects);
    return std::nullopt;
  }
  return event.message;
}

void CoordinatorLink::Took(const v1::ConnectResponse& order) {
  orders_taken_ = std::max(orders_taken_, order.sequence());
}

std::string CoordinatorLink::WhyNot(const v1::AgentWelcome& welcome) const {
  const bool is_foreign = !federation_.empty() && !welcome.federation().empty() && welcome.federation() != federation_;
  if (is_foreign && has_workers_) {
    return fmt::format(
        "its job store is of federation {} and this node has workers of federation {}, which go on by themselves; give "
        "the coordinator its own store (state_dir), or, where this node was moved to another federation, stop the "
        "agent, remove {} and start it",
        welcome.federation(), federation_, options_.incarnation_file);
  }
  const uint64_t incarnation = welcome.coordinator_incarnation();
  if (!is_foreign && incarnation != 0 && incarnation < highest_coordinator_) {
    return fmt::format(
        "its incarnation {:x} is older than {:x}, which this node has obeyed; stop the older coordinator (or, "
        "where this node was moved to another federation, remove {})",
        incarnation, highest_coordinator_, options_.incarnation_file);
  }
  return "";
}

void CoordinatorLink::OnWelcome(int64_t now_ns, const v1::AgentWelcome& welcome, Effects& effects) {
  if (const std::string why = WhyNot(welcome); !why.empty()) {
    effects.emplace_back(HangUp{connection_});
    Break(now_ns, absl::UnavailableError(why), effects);
    return;
  }
  const uint64_t incarnation = welcome.coordinator_incarnation();
  const bool is_other = !welcome.federation().empty() && welcome.federation() != federation_;
  if (is_other && !federation_.empty()) {
    effects.emplace_back(WriteLog{
        LogLevel::kWarning,
        fmt::format("leaves federation {} for {}: it has no workers of it", federation_, welcome.federation())});
  }
  if (is_other || incarnation > highest_coordinator_) {
    highest_coordinator_ = incarnation;
    federation_ = welcome.federation().empty() ? federation_ : welcome.federation();
    effects.emplace_back(RememberCoordinator{incarnation, federation_});
  }
  if (incarnation != coordinator_) {  // a coordinator begins anew to count
    coordinator_ = incarnation;
    orders_taken_ = 0;
  }
  orders_taken_ = std::max(orders_taken_, welcome.orders_before());
  state_ = State::kRegistered;
  heartbeat_interval_ns_ = std::max(welcome.heartbeat_interval_ns(), kMinHeartbeatNs);
  silent_after_ns_ = welcome.silent_after_ns();
  deadline_ns_ = now_ns + heartbeat_interval_ns_;
  breaks_ = 0;
  effects.emplace_back(
      WriteLog{LogLevel::kInfo, fmt::format("registered with the coordinator (incarnation {:x})", incarnation)});
  if (!announced_) {
    announced_ = true;
    effects.emplace_back(Announce{});
  }
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
  const bool is_refused = absl::IsFailedPrecondition(status) || absl::IsAlreadyExists(status);
  if (absl::IsAlreadyExists(status) && !announced_ && !has_workers_) {
    refusal_ = status;
    deadline_ns_ = std::numeric_limits<int64_t>::max();
    return;
  }
  const int64_t delay_ns = is_refused
                               ? LengthenedNs(options_.refused_backoff_ns, jitter_)
                               : BackoffNs(options_.first_backoff_ns, options_.max_backoff_ns, ++breaks_, jitter_);
  deadline_ns_ = now_ns + delay_ns;
  const std::string reason =
      status.ok() ? "it ended the stream"
                  : fmt::format("{} ({})", std::string(status.message()), absl::StatusCodeToString(status.code()));
  effects.emplace_back(WriteLog{LogLevel::kWarning, fmt::format("{}: {}; trying again in {:.1f} s", what, reason,
                                                                static_cast<double>(delay_ns) * 1e-9)});
}

void CoordinatorLink::ReportDrops(int64_t now_ns, Effects& effects) {
  constexpr int64_t kIntervalNs = 10'000'000'000;
  const int64_t dropped = queue_.dropped() - reported_drops_;
  const int64_t stripped = queue_.stripped() - reported_stripped_;
  if ((dropped == 0 && stripped == 0) || now_ns < next_drop_report_ns_) {
    return;
  }
  effects.emplace_back(WriteLog{
      LogLevel::kWarning,
      fmt::format("more waits for the coordinator than the bound of {} MiB: gave up {} reports and the actions of {}",
                  options_.queue_bytes >> 20, dropped, stripped)});
  reported_drops_ = queue_.dropped();
  reported_stripped_ = queue_.stripped();
  next_drop_report_ns_ = now_ns + kIntervalNs;
}

void CoordinatorLink::OnTime(int64_t now_ns, int64_t awake_ns, Effects& effects) {
  ReportDrops(now_ns, effects);
  if (!heard_awake_ns_.has_value()) {
    heard_awake_ns_ = awake_ns;
  }
  const int64_t silent_ns = awake_ns - *heard_awake_ns_;
  if (state_ == State::kRegistered && silent_after_ns_ > 0 && silent_ns >= silent_after_ns_) {
    effects.emplace_back(HangUp{connection_});
    Break(now_ns,
          absl::DeadlineExceededError(
              fmt::format("nothing was heard from it for {:.1f} s", static_cast<double>(silent_ns) * 1e-9)),
          effects);
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
      hello.mutable_hello()->set_coordinator_incarnation(coordinator_);
      hello.mutable_hello()->set_orders_taken(orders_taken_);
      hello.mutable_hello()->set_federation(federation_);
      if (leaves_ns_.has_value()) {
        *hello.mutable_hello()->mutable_leaving() = Leaving(now_ns);
      }
      has_workers_ = hello.hello().workers_size() > 0;
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
