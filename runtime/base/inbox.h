// A bounded queue from many producers to the one thread of a core. A full inbox makes its producers wait (or stop
// reading their stream); nothing is dropped.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

namespace geopipe {

template <class Event>
class Inbox {
 public:
  // Holds at most `capacity` events, and at most `max_bytes` of them by `bytes_of`; a larger event is taken when there
  // is no other.
  explicit Inbox(size_t capacity, size_t max_bytes = 0, std::function<size_t(const Event&)> bytes_of = nullptr)
      : capacity_(capacity), max_bytes_(max_bytes), bytes_of_(std::move(bytes_of)) {}
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  // Waits for room. False when the inbox was closed: the event was not taken.
  bool Push(Event event) {
    std::unique_lock lock(mutex_);
    const size_t bytes = BytesOf(event);
    room_.wait(lock, [&] { return closed_ || HasRoom(bytes); });
    if (closed_) {
      return false;
    }
    Take(event, bytes);
    return true;
  }

  // Never waits. False when full or closed, and `event` is left as it was.
  bool TryPush(Event& event) {
    std::lock_guard lock(mutex_);
    const size_t bytes = BytesOf(event);
    if (closed_ || !HasRoom(bytes)) {
      return false;
    }
    Take(event, bytes);
    return true;
  }

  // Waits for an event for at most `timeout`. nullopt on timeout, or when closed and empty.
  std::optional<Event> Pop(std::chrono::nanoseconds timeout) {
    std::unique_lock lock(mutex_);
    arrived_.wait_for(lock, timeout, [&] { return closed_ || !events_.empty(); });
    if (events_.empty()) {
      return std::nullopt;
    }
    std::optional<Event> event(std::move(events_.front().first));
    queued_bytes_ -= events_.front().second;
    events_.pop_front();
    room_.notify_all();  // the room may do for another's event than the one that has waited longest
    return event;
  }

  // Wakes everybody. Later pushes fail; queued events can still be popped.
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
  size_t BytesOf(const Event& event) const { return bytes_of_ ? bytes_of_(event) : 0; }
  bool HasRoom(size_t bytes) const {
    return events_.size() < capacity_ && (events_.empty() || !bytes_of_ || queued_bytes_ + bytes <= max_bytes_);
  }
  void Take(Event& event, size_t bytes) {
    events_.emplace_back(std::move(event), bytes);
    queued_bytes_ += bytes;
    arrived_.notify_one();
  }

  const size_t capacity_;
  const size_t max_bytes_;
  const std::function<size_t(const Event&)> bytes_of_;
  mutable std::mutex mutex_;
  std::condition_variable room_;
  std::condition_variable arrived_;
  std::deque<std::pair<Event, size_t>> events_;  // with their bytes
  size_t queued_bytes_ = 0;
  bool closed_ = false;
};

}  // namespace geopipe
