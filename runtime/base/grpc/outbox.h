// Messages that wait for a stream. This header is free of gRPC.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <utility>

namespace geopipe {

// Queue of messages to be sent, in order. It may outlive the streams that send them: a message stays until one has
// taken it.
template <class Out>
class Outbox {
 public:
  explicit Outbox(size_t capacity) : capacity_(capacity) {}

  // Waits for room; a message that comes after Close is dropped. Any thread.
  void Push(Out message) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return closed_ || messages_.size() < capacity_; });
    PushLocked(std::move(message));
  }
  // Never waits: without room the message is dropped.
  void TryPush(Out message) {
    const std::lock_guard lock(mutex_);
    if (messages_.size() < capacity_) {
      PushLocked(std::move(message));
    }
  }

  // Takes no more messages; those that wait are still sent, and then the writing ends.
  void Close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

  // --- The stream's side.

  // Ends a wait of Front, until Resume.
  void Interrupt() { SetInterrupted(true); }
  void Resume() { SetInterrupted(false); }

  // Waits for the next message, which stays here. nullptr: interrupted, or closed and empty.
  const Out* Front() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return interrupted_ || closed_ || !messages_.empty(); });
    return interrupted_ || messages_.empty() ? nullptr : &messages_.front();
  }
  // Removes the first message, which has been sent.
  void Pop() {
    const std::lock_guard lock(mutex_);
    messages_.pop_front();
    changed_.notify_all();
  }
  bool interrupted() const {
    const std::lock_guard lock(mutex_);
    return interrupted_;
  }

 private:
  void PushLocked(Out&& message) {
    if (!closed_) {
      messages_.push_back(std::move(message));
      changed_.notify_all();
    }
  }
  void SetInterrupted(bool interrupted) {
    const std::lock_guard lock(mutex_);
    interrupted_ = interrupted;
    changed_.notify_all();
  }

  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Out> messages_;
  bool closed_ = false;
  bool interrupted_ = false;
};

}  // namespace geopipe
