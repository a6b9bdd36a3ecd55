// The client's end of a stream: one thread reads, one writes from an outbox.
#pragma once

#include <absl/status/status.h>
#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "runtime/base/grpc/grpc_status.h"

namespace geopipe {

// Messages to be sent, in order. The outbox may outlive the streams that send them: a message stays until one has taken
// it.
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

  // No message comes any more; what waits is still sent, and then the writing ends.
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
  // The first message has been sent.
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

template <class In>
struct StreamClientHandlers {
  // A message, on the thread that reads; while it waits, nothing is read. Not OK: the stream is cancelled.
  std::function<absl::Status(In)> on_message;
  // A message of the outbox has been written, on the thread that writes. False: the stream is cancelled. May be empty.
  std::function<bool()> on_written;
};

// Sends `first`, then the messages of the outbox, and reads, until the stream ends. Returns the status with which
// `on_message` refused a message, or else the server's. context.TryCancel() ends it early.
template <class Out, class In>
absl::Status RunStream(grpc::ClientContext& context, grpc::ClientReaderWriter<Out, In>& stream, const Out& first,
                       Outbox<Out>& outbox, const StreamClientHandlers<In>& handlers) {
  outbox.Resume();
  std::thread writer([&] {
    if (!stream.Write(first)) {
      return;  // the reader sees the end of the stream too, and the server's status
    }
    while (const Out* message = outbox.Front()) {
      if (!stream.Write(*message)) {
        return;
      }
      outbox.Pop();
      if (handlers.on_written && !handlers.on_written()) {
        context.TryCancel();
        return;
      }
    }
    if (!outbox.interrupted()) {
      stream.WritesDone();
    }
  });
  absl::Status refused;
  In message;
  while (refused.ok() && stream.Read(&message)) {
    refused = handlers.on_message(std::move(message));
    message.Clear();
  }
  if (!refused.ok()) {
    context.TryCancel();
  }
  outbox.Interrupt();  // without a cancel, which would hide the server's own status
  writer.join();
  const grpc::Status finished = stream.Finish();
  return refused.ok() ? FromGrpc(finished) : refused;
}

}  // namespace geopipe
