// The agent's side of its stream to the coordinator, as a state machine: dial, hello, welcome, heartbeats, reports
// within a window, backoff after a break. Reports wait in a bounded queue until the coordinator has taken them; those
// that are mere figures are gathered, so that a node sends a bounded number of messages a second, however fast its
// workers are. Orders are numbered by the coordinator: each is handed out once, and every message says which have been
// taken. A stream on which nothing comes is hung up on, and so is a coordinator that another has followed, or, as long
// as this node has workers, one of another federation, which would know none of them. Pure: time comes in, effects go
// out.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "agent/events.h"
#include "agent/report_queue.h"
#include "optimizer/base/splitmix64.h"

namespace geopipe::agent {

struct CoordinatorLinkOptions {
  uint64_t incarnation = 0;  // of this agent process
  uint64_t seed = 0;         // of the backoff's jitter
  int64_t first_backoff_ns = 100'000'000;
  int64_t max_backoff_ns = 1'000'000'000;
  int64_t refused_backoff_ns = 10'000'000'000;  // after a refusal that only people can end: another version, above all
  int64_t welcome_timeout_ns = 5'000'000'000;   // from the dial
  int32_t window = 32;                          // messages handed to the stream and not yet written
  int64_t gather_ns = 50'000'000;               // between two messages that have nothing urgent to say
  size_t queue_bytes = size_t{64} << 20;
  uint64_t known_coordinator = 0;  // the highest incarnation that earlier agents of this folder were welcomed by
  std::string federation = {};     // that they obeyed; empty: none
  std::string incarnation_file = "the state folder";  // file that keeps both: for people
};

class CoordinatorLink {
 public:
  using HelloMaker = std::function<v1::AgentHello()>;
  using TakenHandler = std::function<void(const v1::NodeReport&)>;

  // `make_hello` is called at each dial, `on_taken` with each report that the coordinator has taken, in order.
  CoordinatorLink(const CoordinatorLinkOptions& options, HelloMaker make_hello, TakenHandler on_taken);

  // Takes a report or exit. It goes with the next Flush that has room.
  void Send(v1::NodeReport report) { queue_.Push(std::move(report)); }
  // The node goes down, and its workers are ended after this time; nullopt: it stays. Told with each hello and
  // heartbeat, the next of which is due at once.
  void SetLeaving(int64_t now_ns, std::optional<int64_t> within_ns);
  // Sends what is due; `all`: also what could be gathered for longer. After every event.
  void Flush(int64_t now_ns, bool all, Effects& effects);

  // Returns orders for the agent, for the caller to act on and then call Took; handles a welcome itself. nullopt for
  // messages that are stale, settled or taken before.
  std::optional<v1::ConnectResponse> OnMessage(int64_t now_ns, const CoordinatorMessage& event, Effects& effects);
  void Took(const v1::ConnectResponse& order);
  void OnSent(const CoordinatorSent& event);
  void OnClosed(int64_t now_ns, const CoordinatorClosed& event, Effects& effects);
  // Dials, beats or gives up waiting when it is time. `awake_ns`: time as this process has lived it, so that a
  // coordinator is not thought silent while the agent itself was stopped.
  void OnTime(int64_t now_ns, int64_t awake_ns, Effects& effects);

  // Time at which OnTime or Flush next has something to do.
  int64_t next_deadline_ns() const;
  // True when so many reports wait that no more should be taken from workers.
  bool full() const { return queue_.full(); }
  bool registered() const { return state_ == State::kRegistered; }
  // AlreadyExists: another agent lives in the place of this one, which the coordinator has never taken and which has no
  // workers: as it was started, it is of no use. After any other refusal it waits and dials again: one of another
  // version is taken when the coordinator is upgraded, and workers must not be left alone.
  const absl::Status& refusal() const { return refusal_; }
  const ReportQueue& queue() const { return queue_; }

 private:
  enum class State : uint8_t { kWaiting, kDialled, kRegistered };

  void OnWelcome(int64_t now_ns, const v1::AgentWelcome& welcome, Effects& effects);
  // Says why the coordinator is not obeyed; empty: it is.
  std::string WhyNot(const v1::AgentWelcome& welcome) const;
  void ReportDrops(int64_t now_ns, Effects& effects);
  void Break(int64_t now_ns, const absl::Status& status, Effects& effects);
  bool CanSay() const { return state_ == State::kRegistered && in_flight_ < options_.window; }
  v1::ConnectRequest Message() const;
  v1::NodeLeaving Leaving(int64_t now_ns) const;

  const CoordinatorLinkOptions options_;
  const HelloMaker make_hello_;
  const TakenHandler on_taken_;
  SplitMix64 jitter_;
  int32_t breaks_ = 0;  // since the last welcome
  ReportQueue queue_;
  State state_ = State::kWaiting;
  ConnectionId connection_ = 0;
  int64_t deadline_ns_ = 0;  // waiting: next dial; dialled: welcome due; registered: next heartbeat
  int64_t heartbeat_interval_ns_ = 0;
  int64_t silent_after_ns_ = 0;            // 0: never
  std::optional<int64_t> heard_awake_ns_;  // unset: something came since the last OnTime
  uint64_t coordinator_ = 0;               // incarnation that welcomed this process last
  uint64_t highest_coordinator_ = 0;       // highest that welcomed any agent of this folder
  std::string federation_;                 // that they belong to; empty: none yet
  bool has_workers_ = false;               // when this stream was dialled
  uint64_t orders_taken_ = 0;              // of coordinator_
  int64_t gathered_until_ns_ = 0;
  int32_t in_flight_ = 0;
  bool announced_ = false;
  bool heartbeat_due_ = false;
  std::optional<int64_t> leaves_ns_;  // the node goes down, and its workers are ended then
  int64_t reported_drops_ = 0;
  int64_t reported_stripped_ = 0;
  int64_t next_drop_report_ns_ = 0;
  absl::Status refusal_;
};

}  // namespace geopipe::agent
