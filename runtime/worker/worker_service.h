// The worker's stream to its agent, over gRPC: WorkerService.Attach on the agent's Unix socket. The only file of the
// worker that knows gRPC.
#pragma once

#include <absl/status/status.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "geopipe/v1/worker_service.pb.h"
#include "runtime/base/clock.h"
#include "runtime/base/grpc/stream_client.h"

namespace geopipe {

// Two threads: one connects, reads, and connects again (with backoff and jitter) when the stream breaks; one writes.
class AgentLink {
 public:
  struct Options {
    std::string address;  // "unix:/run/geopipe/agent.sock"
    v1::WorkerId worker;
    v1::WorkerHello hello;                     // first message of every stream
    int64_t orphan_grace_ns = 30'000'000'000;  // the link is lost after so long without an agent
  };
  struct Handlers {
    // A valid command; on the reading thread, must not wait.
    std::function<void(v1::WorkerCommand)> on_command;
    // The link is over for good: no agent within the grace, or it refuses this worker. Called at most once.
    std::function<void(const absl::Status&)> on_lost;
  };

  // `clock` outlives the link.
  AgentLink(Options options, Handlers handlers, Clock& clock);
  AgentLink(const AgentLink&) = delete;
  AgentLink& operator=(const AgentLink&) = delete;
  // Close(0).
  ~AgentLink();

  // Begins to dial. Once; handlers are called from here on.
  void Start();

  // Queues a report; they are sent in order, each kept until a stream has taken it. Waits while kMaxQueued are queued
  // and the link is open; dropped once it is closed. Any thread.
  void Report(v1::WorkerReport report);
  // The same, but a report that finds the queue full is dropped: for heartbeats.
  void TryReport(v1::WorkerReport report);

  // Sends what is queued for at most `flush_ns`, ends the stream and waits for the threads. Not on a handler's thread.
  void Close(int64_t flush_ns);

  static constexpr size_t kMaxQueued = 1024;

 private:
  void Run();
  absl::Status RunSession();
  v1::AttachRequest Request(v1::WorkerReport report) const;
  // Waits, unless the link is closed in between.
  void WaitFor(int64_t duration_ns);
  bool closing() const;

  const Options options_;
  const Handlers handlers_;
  Clock& clock_;
  Outbox<v1::AttachRequest> outbox_{kMaxQueued};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool closing_ = false;
  bool done_ = false;
  int64_t last_contact_ns_;
  grpc::ClientContext* context_ = nullptr;  // of the stream under way
  std::thread thread_;
};

}  // namespace geopipe
