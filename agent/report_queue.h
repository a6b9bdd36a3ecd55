// What waits to be sent to the coordinator, in order and within a bound: while the coordinator is away, or reads
// slowly, the workers go on and so do their reports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "geopipe/v1/agent_service.pb.h"

namespace geopipe::agent {

class ReportQueue {
 public:
  explicit ReportQueue(size_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}

  // Appends a report or an exit. A worker's heartbeat replaces the one of that worker that still waits. Past the bound
  // the oldest iteration report goes (the run's figures lose a line), and only when there is none the oldest message.
  void Push(v1::ConnectRequest message);

  // nullopt when empty.
  std::optional<v1::ConnectRequest> Pop();

  bool empty() const { return messages_.empty(); }
  size_t size() const { return messages_.size(); }
  size_t bytes() const { return bytes_; }
  // Messages given up since creation because of the bound.
  int64_t dropped() const { return dropped_; }

 private:
  using Messages = std::deque<v1::ConnectRequest>;
  void Remove(const Messages::iterator& at);

  const size_t capacity_bytes_;
  Messages messages_;
  size_t bytes_ = 0;
  int64_t dropped_ = 0;
};

}  // namespace geopipe::agent
