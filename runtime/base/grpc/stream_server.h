// The server's ends of streams, over gRPC's callback API: each writes its messages in order, reads on only when its
// reader wants more, and ends with a status that its peer gets.
#pragma once

#include <absl/status/status.h>
#include <fmt/format.h>
#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "runtime/base/grpc/grpc_status.h"

namespace geopipe {

using StreamId = uint64_t;  // never used again

struct StreamLimits {
  std::string peer = "peer";  // name of the other end in errors
  size_t max_streams = 1024;  // more are refused with RESOURCE_EXHAUSTED
  // Limits on what waits to be written to one peer; one that reads too slowly to stay below is cut off.
  size_t max_queued_messages = 1024;
  size_t max_queued_bytes = size_t{512} << 20;
};

// The writing half that all ends share; a derived class adds reading. Any thread may call what is public; lives until
// gRPC is done with it.
template <class Reactor, class Out>
class ServerStream : public Reactor, public std::enable_shared_from_this<ServerStream<Reactor, Out>> {
 public:
  ServerStream(grpc::CallbackServerContext* context, const StreamLimits& limits) : context_(context), limits_(limits) {}

  // Called once, before gRPC is given the stream.
  void Hold() { self_ = this->shared_from_this(); }

  // Written after what waits; dropped when the stream is ending.
  void Send(Out message) {
    const std::lock_guard lock(mutex_);
    if (ending_.has_value()) {
      return;
    }
    const size_t bytes = message.ByteSizeLong();
    if (queue_.size() >= limits_.max_queued_messages || queued_bytes_ + bytes > limits_.max_queued_bytes) {
      EndLocked(absl::ResourceExhaustedError(
                    fmt::format("the {} does not read what it is sent: {} messages wait", limits_.peer, queue_.size())),
                /*flush=*/false);
      context_->TryCancel();  // its write would otherwise never end
      return;
    }
    queued_bytes_ += bytes;
    queue_.push_back(std::move(message));
    AdvanceLocked();
  }

  // Ends the stream; the first status counts. Messages that wait are written before if `flush`.
  void End(const absl::Status& status, bool flush = false) {
    const std::lock_guard lock(mutex_);
    EndLocked(status, flush);
  }

  // --- Called by gRPC.

  void OnWriteDone(bool ok) final {
    {
      const std::lock_guard lock(mutex_);
      writing_ = false;
      queued_bytes_ -= queue_.front().ByteSizeLong();
      queue_.pop_front();
      if (ok) {
        AdvanceLocked();
      } else {
        EndLocked(Broken(), /*flush=*/false);
      }
    }
    if (ok) {
      OnWritten();
    }
  }

  void OnCancel() final { End(Broken()); }

  void OnDone() final {
    const std::shared_ptr<ServerStream> self = std::move(self_);
    absl::Status status;
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
      status = ending_.value_or(absl::OkStatus());
    }
    OnClosed(status);
  }

 protected:
  // Called when one message has been written; others may be meanwhile.
  virtual void OnWritten() {}
  // The last call.
  virtual void OnClosed(const absl::Status& status) = 0;

  // Calls `start` unless the stream has finished, in which case gRPC takes no more operations.
  template <class Start>
  void IfOpen(Start start) {
    const std::lock_guard lock(mutex_);
    if (!finished_) {
      start();
    }
  }

 private:
  static constexpr std::chrono::seconds kLastWrite{2};

  absl::Status Broken() const { return absl::CancelledError(fmt::format("the {}'s connection broke", limits_.peer)); }

  void EndLocked(const absl::Status& status, bool flush) {
    if (!ending_.has_value()) {
      ending_ = status;
    }
    if (!flush) {
      queue_.erase(queue_.begin() + (writing_ ? 1 : 0), queue_.end());
    }
    AdvanceLocked();
    if (writing_ && !flush && !last_write_.has_value()) {
      // Finish comes after the write under way. A peer that reads nothing is not waited for.
      last_write_.emplace().Set(std::chrono::system_clock::now() + kLastWrite,
                                [weak = this->weak_from_this()](bool expired) {
                                  if (const auto self = weak.lock(); self != nullptr && expired) {
                                    self->CutOff();
                                  }
                                });
    }
  }

  void CutOff() {
    const std::lock_guard lock(mutex_);
    if (!done_) {
      context_->TryCancel();
    }
  }

  // Writes the next message, or finishes.
  void AdvanceLocked() {
    if (writing_ || finished_) {
      return;
    }
    if (!queue_.empty()) {
      writing_ = true;
      this->StartWrite(&queue_.front());
    } else if (ending_.has_value()) {
      finished_ = true;
      this->Finish(ToGrpc(*ending_));
    }
  }

  grpc::CallbackServerContext* const context_;
  const StreamLimits limits_;
  std::shared_ptr<ServerStream> self_;  // until OnDone
  std::mutex mutex_;
  std::deque<Out> queue_;  // the first is being written when writing_
  size_t queued_bytes_ = 0;
  bool writing_ = false;
  bool finished_ = false;  // Finish was called
  bool done_ = false;      // gRPC is done
  std::optional<absl::Status> ending_;
  std::optional<grpc::Alarm> last_write_;
};

// The open streams of a service.
template <class Stream>
class StreamSet {
 public:
  explicit StreamSet(const StreamLimits& limits) : limits_(limits) {}

  // Adds a stream. Not OK: it may not be opened.
  absl::Status Add(StreamId id, std::shared_ptr<Stream> stream) {
    const std::lock_guard lock(mutex_);
    if (closed_.ok() && streams_.size() >= limits_.max_streams) {
      return absl::ResourceExhaustedError(
          fmt::format("{} streams of {}s are open, which is the limit", streams_.size(), limits_.peer));
    }
    if (closed_.ok()) {
      streams_.emplace(id, std::move(stream));
    }
    return closed_;
  }

  // Returns nullptr when the stream has ended.
  std::shared_ptr<Stream> Find(StreamId id) {
    const std::lock_guard lock(mutex_);
    const auto found = streams_.find(id);
    return found == streams_.end() ? nullptr : found->second;
  }

  // Returns false when the stream was not among these.
  bool Remove(StreamId id) {
    const std::lock_guard lock(mutex_);
    return streams_.erase(id) > 0;
  }

  // Ends every stream with the status, and refuses every later one with it; the first status stays.
  void EndAll(const absl::Status& status) {
    std::map<StreamId, std::shared_ptr<Stream>> streams;
    {
      const std::lock_guard lock(mutex_);
      closed_ = closed_.ok() ? status : closed_;
      streams = streams_;
    }
    for (const auto& [id, stream] : streams) {
      stream->End(status);
    }
  }

 private:
  const StreamLimits limits_;
  std::mutex mutex_;
  std::map<StreamId, std::shared_ptr<Stream>> streams_;
  absl::Status closed_;  // not OK: no more streams
};

// A service of streams both ways. Outlives its gRPC server.
template <class In, class Out>
class StreamServer {
 public:
  // Callbacks of one stream, one call at a time.
  struct Handlers {
    // The stream is read on when `read_on` is called, by any thread. Not OK: the stream ends with that.
    std::function<absl::Status(StreamId, In, std::function<void()> read_on)> on_message;
    // The last call.
    std::function<void(StreamId, const absl::Status&)> on_closed;
  };

  explicit StreamServer(const StreamLimits& limits) : limits_(limits), streams_(limits) {}

  grpc::ServerBidiReactor<In, Out>* Open(grpc::CallbackServerContext* context, Handlers handlers) {
    const StreamId id = ++last_id_;
    const auto stream = std::make_shared<Stream>(*this, id, context, std::move(handlers));
    stream->Hold();
    if (const absl::Status added = streams_.Add(id, stream); added.ok()) {
      stream->Read();
    } else {
      stream->End(added);
    }
    return stream.get();
  }

  // Streams that have ended are passed over.
  void Send(StreamId id, Out message) {
    if (const std::shared_ptr<Stream> stream = streams_.Find(id); stream != nullptr) {
      stream->Send(std::move(message));
    }
  }
  void End(StreamId id, const absl::Status& status) {
    if (const std::shared_ptr<Stream> stream = streams_.Find(id); stream != nullptr) {
      stream->End(status);
    }
  }
  void EndAll(const absl::Status& status) { streams_.EndAll(status); }

 private:
  class Stream final : public ServerStream<grpc::ServerBidiReactor<In, Out>, Out> {
   public:
    using Base = ServerStream<grpc::ServerBidiReactor<In, Out>, Out>;

    Stream(StreamServer& server, StreamId id, grpc::CallbackServerContext* context, Handlers handlers)
        : Base(context, server.limits_), server_(server), id_(id), handlers_(std::move(handlers)) {}

    void Read() {
      this->IfOpen([this] { this->StartRead(&message_); });
    }

    void OnReadDone(bool ok) override {
      if (!ok) {
        this->End(absl::OkStatus());
        return;
      }
      const absl::Status status =
          handlers_.on_message(id_, std::move(message_),
                               [self = std::static_pointer_cast<Stream>(this->shared_from_this())] { self->Read(); });
      if (!status.ok()) {
        this->End(status);
      }
    }

   private:
    void OnClosed(const absl::Status& status) override {
      if (server_.streams_.Remove(id_)) {
        handlers_.on_closed(id_, status);
      }
    }

    StreamServer& server_;
    const StreamId id_;
    Handlers handlers_;
    In message_;
  };

  const StreamLimits limits_;
  std::atomic<StreamId> last_id_ = 0;
  StreamSet<Stream> streams_;
};

}  // namespace geopipe
