// Start times of all actions of given sequences, for the local search: the times of Simulate for non-blocking messages,
// and also what each action and message waited for, without making a schedule or allocating memory. (If actions of no
// duration feed one FIFO from several devices at one instant, the order of their messages may differ from the
// simulator's, whose times are decisive.)
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "optimizer/scheduler/instance.h"

namespace geopipe {

class SequenceTimer {
 public:
  static constexpr int64_t kDeadlock = std::numeric_limits<int64_t>::max();

  // REQUIRES: `instance` outlives this.
  explicit SequenceTimer(const Instance& instance);

  // End of the last action, or kDeadlock. REQUIRES: `sequences` are a permutation of all work, device by device.
  int64_t Run(const Sequences& sequences);

  // Start in the last Run.
  int64_t StartNs(WorkIndex work, int32_t micro_batch) const { return start_ns_[instance_.Index(work, micro_batch)]; }
  // Output and micro-batch as one index (Instance::Index).
  int64_t ArrivalNs(int64_t output) const { return arrival_ns_[output]; }
  // The message that `output` stood behind in its FIFO, or -1.
  int64_t QueuedBehind(int64_t output) const { return queued_behind_[output]; }
  // The device that ended last.
  int32_t last_device() const { return last_device_; }

 private:
  struct Device {
    int64_t free_ns = 0;
    int64_t position = 0;
    int64_t waits_for = -1;
  };
  // A message for a FIFO that several devices feed.
  struct Entry {
    int64_t at_ns = 0;
    int32_t producer = 0;
    int64_t output = 0;

    friend bool operator<(const Entry& a, const Entry& b) {
      return a.at_ns != b.at_ns ? a.at_ns > b.at_ns
                                : (a.producer != b.producer ? a.producer > b.producer : a.output > b.output);
    }
  };

  void RunDevice(int32_t index, const std::vector<WorkIndex>& sequence);
  void Send(int32_t index, int32_t output_kind, int64_t output, int64_t now_ns);
  void Enter(const OutputRoute& route, int64_t output, int64_t now_ns);
  void Arrive(const OutputRoute& route, int64_t output, int64_t at_ns);

  const Instance& instance_;
  std::vector<int64_t> start_ns_;       // [work][micro-batch]
  std::vector<int64_t> arrival_ns_;     // [output][micro-batch]; -1: not made yet
  std::vector<int64_t> queued_behind_;  // [output][micro-batch]
  std::vector<int64_t> fifo_free_ns_;   // [fifo]
  std::vector<int64_t> fifo_last_;      // [fifo]: output that entered last
  std::vector<int32_t> next_;           // [work]: micro-batch
  std::vector<Device> devices_;
  std::vector<int32_t> runnable_;
  std::vector<Entry> entries_;  // heap
  int32_t last_device_ = 0;
};

}  // namespace geopipe
