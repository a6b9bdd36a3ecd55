// The orders to one agent: numbered, and kept until it has taken them, so that a broken stream loses none. An agent
// that takes none for so long that too many wait is treated as one that begins anew (Restart).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include "geopipe/v1/agent_service.pb.h"

namespace geopipe {

class OrderLog {
 public:
  static constexpr size_t kMaxOrders = 4096;
  static constexpr size_t kMaxBytes = size_t{512} << 20;  // one order may be larger

  // Numbers and keeps the order, and returns it to be sent.
  const v1::ConnectResponse& Add(v1::ConnectResponse order) {
    order.set_sequence(++last_);
    bytes_ += order.ByteSizeLong();
    return waiting_.emplace_back(std::move(order));
  }
  // No more should be added before some are taken.
  bool full() const { return waiting_.size() >= kMaxOrders || bytes_ >= kMaxBytes; }

  uint64_t last() const { return last_; }

  // Notes that the agent has taken all orders up to this one.
  void Taken(uint64_t sequence) {
    while (!waiting_.empty() && waiting_.front().sequence() <= sequence) {
      bytes_ -= waiting_.front().ByteSizeLong();
      waiting_.pop_front();
    }
  }

  // Orders that are not taken yet, in order.
  const std::deque<v1::ConnectResponse>& waiting() const { return waiting_; }

  // Starts over for another agent process, which has heard nothing yet. Numbers go on, because this process may be
  // heard again after the other one (the hello of a dead agent may be late), and passes over the numbers that it has
  // taken.
  void Restart() {
    waiting_.clear();
    bytes_ = 0;
    before_ = last_;
  }
  // The last number that was not meant for this agent process.
  uint64_t before() const { return before_; }

 private:
  uint64_t last_ = 0;
  uint64_t before_ = 0;
  size_t bytes_ = 0;  // of those that wait
  std::deque<v1::ConnectResponse> waiting_;
};

}  // namespace geopipe
