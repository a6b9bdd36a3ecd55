// Reports that wait for the coordinator, in order and within a bound: while it is away, or reads slowly, the workers
// and their reports go on. Reports get their numbers when they are first taken out, and stay here until the coordinator
// has taken them, so that a broken stream loses none.
//
// Exits, silences and the reports that a worker has numbered (and keeps as well) are never dropped here. When they
// alone fill the queue, full() says so, and the agent stops reading its workers' streams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>

#include "geopipe/v1/agent_service.pb.h"

namespace geopipe::agent {

class ReportQueue {
 public:
  explicit ReportQueue(size_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}

  // Appends a report or an exit. A worker's heartbeat replaces its previous one that still waits; so do findings of the
  // check of its data. Beyond the bound the actions of waiting iteration reports are dropped first, oldest first (the
  // run's figures lose detail), then the oldest waiting iteration report without a number, then the oldest other report
  // that may be lost.
  void Push(v1::NodeReport report);
  // True when the bound is exceeded by reports none of which may be dropped.
  bool full() const { return bytes_ > capacity_bytes_; }

  // The next message to send: first what an earlier stream did not acknowledge, else as much of what waits as a message
  // holds. nullopt when nothing waits, or too much is unacknowledged.
  std::optional<v1::NodeReports> Take();
  // True when something waits for Take.
  bool ready() const;
  // True when something waits that should not be kept back, that is, more than figures (iteration reports, heartbeats).
  bool urgent() const { return waiting_urgent_ > 0 || resend_ < taken_.size(); }

  // The coordinator has taken all up to this number: hands each to `taken`, in order, and forgets it.
  void Acknowledge(uint64_t sequence, const std::function<void(const v1::NodeReport&)>& taken);
  // The stream has ended: whatever was not acknowledged is sent again.
  void Rewind() { resend_ = 0; }

  bool empty() const { return waiting_.empty() && taken_.empty(); }
  size_t waiting() const { return waiting_.size(); }
  size_t unacknowledged() const { return taken_.size(); }
  // Numbers of reports given up, and of iteration reports that lost their actions, because of the bound, since
  // creation.
  int64_t dropped() const { return dropped_; }
  int64_t stripped() const { return stripped_; }

  static constexpr int kMaxPerMessage = 256;
  static constexpr size_t kMaxBytesPerMessage = size_t{1} << 20;  // exceeded by one report at most
  static constexpr size_t kMaxUnacknowledged = 4096;

 private:
  using Reports = std::deque<v1::NodeReport>;
  void Drop(const Reports::iterator& at);
  void MakeRoom();

  const size_t capacity_bytes_;
  Reports taken_;  // numbered from first_sequence_ on
  uint64_t first_sequence_ = 1;
  size_t resend_ = 0;  // index in taken_ from which on this stream has sent nothing
  Reports waiting_;
  size_t waiting_urgent_ = 0;
  size_t waiting_droppable_ = 0;
  size_t plain_ = 0;  // number at the front of waiting_ without actions
  size_t bytes_ = 0;  // of both
  int64_t dropped_ = 0;
  int64_t stripped_ = 0;
};

}  // namespace geopipe::agent
