// The end of work on a device. A device that computes on the calling thread knows it when its call returns; another
// completes it later, from a thread of its own, and nobody waits in between.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace geopipe {

// A small value; copies refer to the same work. All times are of the monotonic clock. Thread-safe.
class Completion {
 public:
  // Work that was never needed: over at time 0.
  Completion() : Completion(0, 0) {}
  // Work that is over, or whose end is known.
  Completion(int64_t begun_ns, int64_t ready_ns) : begun_ns_(begun_ns), ready_ns_(ready_ns) {}
  static Completion At(int64_t ns) { return {ns, ns}; }
  // Work under way, which its owner completes, or fails, once. `point`: its end, as the device that does it knows it.
  static Completion Pending(std::shared_ptr<const void> point = nullptr);

  // Ends the work and runs its callbacks on the calling thread. REQUIRES: Pending, and not ended yet. Any thread.
  void Complete(int64_t begun_ns, int64_t ready_ns);
  // The same of work that has failed, which callbacks see by status(). REQUIRES: an error.
  void Fail(absl::Status why);

  // True when the work is over, or has failed.
  bool done() const;
  // REQUIRES, of all three: done(). The times of failed work are when it failed.
  absl::Status status() const;
  int64_t begun_ns() const;
  int64_t ready_ns() const;

  // Calls `callback` when the work is over or has failed: at once if it is, else on the thread that ends it.
  void Then(std::function<void()> callback) const;

  // The same work, whose result counts as ready at `ns` at the earliest.
  Completion NotBefore(int64_t ns) const;

  // True when both are of the same work, once Pending.
  bool SameAs(const Completion& other) const { return state_ != nullptr && state_ == other.state_; }

  // Pending's; null for work that is known from the start.
  const std::shared_ptr<const void>& point() const;

 private:
  friend class Device;  // Device::Wait is the only way to wait, so that waits can be counted
  struct State;

  void End(int64_t begun_ns, int64_t ready_ns, absl::Status status);
  // Waits until the work has ended and those callbacks that waited for it have run; false: not by `deadline_ns`. Not
  // for callbacks.
  bool WaitUntil(int64_t deadline_ns) const;

  std::shared_ptr<State> state_;  // of work that was under way when this was made; null: known from the start
  int64_t begun_ns_ = 0;
  int64_t ready_ns_ = 0;  // with a state: the earliest that counts
};

// A value that a device makes, and when it is ready.
template <class T>
struct Timed {
  T value{};
  Completion ready{};

  // REQUIRES: ready.done().
  int64_t ready_ns() const { return ready.ready_ns(); }
};

}  // namespace geopipe
