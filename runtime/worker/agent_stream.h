// The worker's stream to its agent, over gRPC: WorkerService.Attach on the agent's Unix socket. The only file of the
// worker that knows gRPC; worker_control decides when to dial and what to say.
#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "geopipe/v1/worker_service.pb.h"
#include "runtime/base/grpc/stream_client.h"
#include "runtime/worker/worker_control.h"
#include "runtime/worker/worker_events.h"

namespace geopipe {

// Two threads: one connects and reads, one writes.
class AgentStream {
 public:
  // `address`: "unix:/run/geopipe/agent.sock". `post` takes the events, on the stream's threads; it may wait for room.
  AgentStream(std::string address, std::function<void(WorkerEvent)> post);
  AgentStream(const AgentStream&) = delete;
  AgentStream& operator=(const AgentStream&) = delete;
  // Does Close(0).
  ~AgentStream();

  // Dials; one stream at a time: one that is dialed or open is hung up. Never waits.
  void Dial(DialAgent order);
  void HangUp(AgentStreamId stream);
  // Sends on the stream, if it is open. Never waits.
  void Send(TellAgent order);

  // Sends the queued reports for at most `flush_ns`, ends the stream and waits for the threads. Not on a thread of
  // `post`.
  void Close(int64_t flush_ns);

 private:
  // State of one stream.
  struct Session {
    explicit Session(DialAgent dial) : order(std::move(dial)) {}
    const DialAgent order;
    Outbox<v1::AttachRequest> outbox{2 * static_cast<size_t>(WorkerControl::kMaxUnwritten)};
    grpc::ClientContext context;
  };

  void Run();
  absl::Status RunSession(Session& session);

  const std::string address_;
  const std::function<void(WorkerEvent)> post_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<DialAgent> dial_;     // ordered
  std::shared_ptr<Session> session_;  // under way
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace geopipe
