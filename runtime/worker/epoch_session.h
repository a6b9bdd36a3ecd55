// The parts of a rank that live for one epoch: its transport, and the means to end its training.
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
  // `clock` is the one that the rank sleeps on, and outlives the session, which ends its interruption.
  EpochSession(std::unique_ptr<UcxTransport> transport, InterruptibleClock& clock);
  EpochSession(const EpochSession&) = delete;
  EpochSession& operator=(const EpochSession&) = delete;

  UcxTransport& transport() { return *transport_; }
  const UcxTransport& transport() const { return *transport_; }
  ActionWatch& watch() { return watch_; }
  const ActionWatch& watch() const { return watch_; }
  // Groups with which the rank divides its stages; null: it has none, or not yet.
  RankCollectives* collectives() { return collectives_.get(); }
  // Sets the groups, which any thread may interrupt from here on. Once.
  void Use(std::unique_ptr<RankCollectives> collectives);
  // Set when connecting is to stop.
  const StopEvent& stopped() const { return stopped_; }
  // True when the actions of the iteration under way are to stop.
  const std::atomic<bool>& stop() const { return stop_; }

  // Called by the executor's thread before it begins an iteration; false: the epoch was ended, and it must not.
  bool Begin(int64_t iteration);
  // Called before it evaluates the weights after the last iteration; false: it must not. An epoch that was told to end
  // after the iteration under way still has this evaluation, which belongs to it.
  bool BeginLast(int64_t end_iteration);
  // Called by the executor's thread when it has returned from training.
  void Returned();

  // Lets no further iteration begin. One that is under way is finished, or interrupted if it is `abandon_from` or
  // later; before the first one begins, connecting is interrupted. Any thread; may be called again with another
  // `abandon_from`.
  void End(std::optional<int64_t> abandon_from);
  // Makes connecting and training return Cancelled soon: wakes sleepers and waiters; the arithmetic of an action is not
  // interrupted. Any thread.
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
  std::optional<int64_t> abandon_from_;  // of the latest End
  bool returned_ = false;
  int64_t under_way_ = kNotBegun;
};

}  // namespace geopipe
