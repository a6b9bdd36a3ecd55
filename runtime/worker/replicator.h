// Fetches copies of a checkpoint's files from the workers that wrote them, on a thread of its own, while training goes
// on, slowly enough not to delay it.
#pragma once

#include <absl/status/status.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "geopipe/v1/worker_service.pb.h"
#include "runtime/base/clock.h"
#include "runtime/base/stop_event.h"
#include "runtime/checkpoint/exchange/checkpoint_fetcher.h"
#include "runtime/worker/checkpoint_writer.h"
#include "runtime/worker/worker_events.h"

namespace geopipe {

class Replicator {
 public:
  struct Order {
    CheckpointContext context;  // of the epoch that the order is of
    std::string site;           // of this worker
    std::string secret;         // of the run
    v1::ReplicateCommand command;
  };

  // `post` is called on the replicator's thread and may wait for room. `clock` outlives the replicator.
  Replicator(Clock& clock, std::function<void(WorkerEvent)> post);
  Replicator(const Replicator&) = delete;
  Replicator& operator=(const Replicator&) = delete;
  // Stop, and waits for the thread.
  ~Replicator();

  // Queues an order. ReplicaFetched answers it when the orders before are done; with an error if a newer order of
  // another checkpoint has come by then. Never waits. Any thread.
  void Fetch(Order order);
  // Ends the order under way, for good, without an answer. Any thread.
  void Stop();

 private:
  void Loop();
  void Do(const Order& order);
  absl::Status FetchAll(const Order& order, CheckpointFetcher& fetcher);
  void Answer(const Order& order, v1::ReplicaReport report, const absl::Status& status);

  Clock& clock_;
  const std::function<void(WorkerEvent)> post_;
  StopEvent stop_;
  std::mutex mutex_;
  std::condition_variable ordered_;
  std::deque<Order> orders_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace geopipe
