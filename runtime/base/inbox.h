// A bounded queue from many producers to the one thread of a core. A full inbox makes its producers wait (or stop
// reading their stream); nothing is dropped.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace geopipe {

template <class Event>
class Inbox {
 public:
  explicit Inbox(size_t capacity) : capacity_(capacity) {}
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  // Waits for room. False when the inbox was closed: the event was not taken.
  bool Push(Event event) {
    std::unique_lock lock(mutex_);
    room_.wait(lock, [&] { return closed_ || events_.size() < capacity_; });
    if (closed_) {
      return false;
    }
    events_.push_back(std::move(event));
    arrived_.notify_one();
    return true;
  }

  // Never waits. False when full or closed, and `event` is left as it was.
  bool TryPush(Event& event) {
    std::lock_guard lock(mutex_);
    if (closed_ || events_.size() >= capacity_) {
      return false;
    }
    events_.push_back(std::move(event));
    arrived_.notify_one();
    return true;
  }

  // Waits for an event for at most `timeout`. nullopt on timeout, or when closed and empty.
  std::optional<Event> Pop(std::chrono::nanoseconds timeout) {
    std::unique_lock lock(mutex_);
    arrived_.wait_for(lock, timeout, [&] { return closed_ || !events_.empty(); });
    if (events_.empty()) {
      return std::nullopt;
    }
    std::optional<Event> event(std::move(events_.front()));
    events_.pop_front();
    room_.notify_one();
    return event;
  }

  // Wakes everybody; later pushes fail, what is queued can still be popped.
  void Close() {
    std::lock_guard lock(mutex_);
    closed_ = true;
    room_.notify_all();
    arrived_.notify_all();
  }

  bool closed() const {
    std::lock_guard lock(mutex_);
    return closed_;
  }

 private:
  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable room_;
  std::condition_variable arrived_;
  std::deque<Event> events_;
  bool closed_ = false;
};

}  // namespace geopipe
