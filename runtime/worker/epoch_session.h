// What a rank has for one epoch only: its transport, and how its training is ended.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "runtime/base/stop_event.h"
#include "runtime/executor/action_watch.h"
#include "runtime/executor/interruptible_clock.h"
#include "runtime/executor/rank_collectives.h"
#include "runtime/transport/ucx/ucx_transport.h"

namespace geopipe {

class EpochSession {
 public:
  // `clock` is the one that the rank sleeps on, and outlives the session: sleeps last again.
  EpochSession(std::unique_ptr<UcxTransport> transport, InterruptibleClock& clock);
  EpochSession(const EpochSession&) = delete;
  EpochSession& operator=(const EpochSession&) = delete;

  UcxTransport& transport() { return *transport_; }
  const UcxTransport& transport() const { return *transport_; }
  ActionWatch& watch() { return watch_; }
  const ActionWatch& watch() const { return watch_; }
  // With whom the rank divides its stages; null: nobody, or not yet.
  RankCollectives* collectives() { return collectives_.get(); }
  // Any thread may interrupt them from here on. Once.
  void Use(std::unique_ptr<RankCollectives> collectives);
  // Set when connecting is to stop.
  const StopEvent& stopped() const { return stopped_; }
  // True when the actions of the iteration under way are to stop.
  const std::atomic<bool>& stop() const { return stop_; }

  // The executor's thread is about to begin the iteration; false: the epoch was ended, and it does not.
  bool Begin(int64_t iteration);
  // The executor's thread has returned from training.
  void Returned();

  // No iteration begins any more. One that is under way is finished, or interrupted if it is `abandon_from` or later;
  // before the first one begins, connecting is interrupted. Any thread; again with another `abandon_from`, too.
  void End(std::optional<int64_t> abandon_from);
  // Makes connecting and training return Cancelled soon: wakes what sleeps or waits; an action's arithmetic is not
  // broken off. Any thread.
  void Interrupt();

 private:
  void InterruptLocked();

  static constexpr int64_t kNotBegun = -1;

  const std::unique_ptr<UcxTransport> transport_;
  std::unique_ptr<RankCollectives> collectives_;  // goes before the transport
  InterruptibleClock& clock_;
  ActionWatch watch_;
  std::atomic<bool> stop_ = false;
  StopEvent stopped_;
  std::mutex mutex_;
  bool ended_ = false;
  bool returned_ = false;
  int64_t under_way_ = kNotBegun;
};

}  // namespace geopipe
