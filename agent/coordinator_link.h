// The agent's side of its stream to the coordinator, as a state machine: dial, hello, welcome, heartbeats, reports
// within a window, backoff after a break. Reports wait in a bounded queue until the coordinator has taken them; those
// that are mere figures are gathered, so that a node sends a bounded number of messages a second, however fast its
// workers are. Pure: time comes in, effects go out.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "agent/events.h"
#include "agent/report_queue.h"
#include "optimizer/base/splitmix64.h"

namespace geopipe::agent {

struct CoordinatorLinkOptions {
  uint64_t incarnation = 0;  // of this agent process
  uint64_t seed = 0;         // of the backoff's jitter
  int64_t first_backoff_ns = 100'000'000;
  int64_t max_backoff_ns = 5'000'000'000;
  int64_t welcome_timeout_ns = 5'000'000'000;  // from the dial
  int32_t window = 32;                         // messages handed to the stream and not yet written
  int64_t gather_ns = 50'000'000;              // between two messages that have nothing urgent to say
  size_t queue_bytes = size_t{64} << 20;
};

class CoordinatorLink {
 public:
  using HelloMaker = std::function<v1::AgentHello()>;

  // `make_hello` is called at each dial.
  CoordinatorLink(const CoordinatorLinkOptions& options, HelloMaker make_hello);

  // Takes a report or exit. It goes with the next Flush that has room.
  void Send(v1::NodeReport report) { queue_.Push(std::move(report)); }
  // Says what is due; `all`: also what could be gathered for longer. After every event.
  void Flush(int64_t now_ns, bool all, Effects& effects);

  // Orders for the agent come back to the caller; a welcome is dealt with here. nullopt for what is stale or settled.
  std::optional<v1::ConnectResponse> OnMessage(int64_t now_ns, const CoordinatorMessage& event, Effects& effects);
  void OnSent(const CoordinatorSent& event);
  void OnClosed(int64_t now_ns, const CoordinatorClosed& event, Effects& effects);
  // Dials, beats or gives up waiting when it is time.
  void OnTime(int64_t now_ns, Effects& effects);

  // When OnTime or Flush next has something to do.
  int64_t next_deadline_ns() const;
  bool registered() const { return state_ == State::kRegistered; }
  // Not OK: the coordinator refuses this agent and dialling again does not help (FailedPrecondition: another version;
  // AlreadyExists: another agent lives in its place).
  const absl::Status& refusal() const { return refusal_; }
  const ReportQueue& queue() const { return queue_; }

 private:
  enum class State : uint8_t { kWaiting, kDialled, kRegistered };

  void Break(int64_t now_ns, const absl::Status& status, Effects& effects);
  bool CanSay() const { return state_ == State::kRegistered && in_flight_ < options_.window; }
  v1::ConnectRequest Message() const;

  const CoordinatorLinkOptions options_;
  const HelloMaker make_hello_;
  SplitMix64 jitter_;
  int32_t breaks_ = 0;  // since the last welcome
  ReportQueue queue_;
  State state_ = State::kWaiting;
  ConnectionId connection_ = 0;
  int64_t deadline_ns_ = 0;  // waiting: next dial; dialled: welcome due; registered: next heartbeat
  int64_t heartbeat_interval_ns_ = 0;
  int64_t gathered_until_ns_ = 0;
  int32_t in_flight_ = 0;
  bool announced_ = false;
  bool heartbeat_due_ = false;
  int64_t reported_drops_ = 0;
  absl::Status refusal_;
};

}  // namespace geopipe::agent
