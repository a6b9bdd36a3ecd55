#include "optimizer/scheduler/sequence_timer.h"

#include <algorithm>
#include <cstddef>

namespace geopipe {
namespace {

constexpr int64_t kNotMade = -1;
constexpr int64_t kNothing = -1;

}  // namespace

SequenceTimer::SequenceTimer(const Instance& instance)
    : instance_(instance),
      start_ns_(instance.duration_ns.size() * static_cast<size_t>(instance.micro_batches)),
      arrival_ns_(instance.routes.size() * static_cast<size_t>(instance.micro_batches)),
      queued_behind_(arrival_ns_.size(), kNothing),
      fifo_free_ns_(static_cast<size_t>(instance.fifo_count)),
      fifo_last_(static_cast<size_t>(instance.fifo_count)),
      next_(instance.duration_ns.size()),
      devices_(static_cast<size_t>(instance.devices)) {}

int64_t SequenceTimer::Run(const Sequences& sequences) {
  std::fill(arrival_ns_.begin(), arrival_ns_.end(), kNotMade);
  std::fill(fifo_free_ns_.begin(), fifo_free_ns_.end(), 0);
  std::fill(next_.begin(), next_.end(), 0);
  std::fill(devices_.begin(), devices_.end(), Device{});
  runnable_.clear();
  entries_.clear();
  for (int32_t device = instance_.devices - 1; device >= 0; --device) {
    runnable_.push_back(device);
  }
  for (;;) {
    while (!runnable_.empty()) {
      const int32_t device = runnable_.back();
      runnable_.pop_back();
      RunDevice(device, sequences[device]);
    }
    if (entries_.empty()) {
      break;
    }
    // No device can proceed, so no message can enter before the earliest.
    std::pop_heap(entries_.begin(), entries_.end());
    const Entry entry = entries_.back();
    entries_.pop_back();
    Enter(instance_.routes[entry.output / instance_.micro_batches], entry.output, entry.at_ns);
  }
  int64_t end_ns = 0;
  last_device_ = 0;
  for (int32_t device = 0; device < instance_.devices; ++device) {
    if (devices_[device].position != std::ssize(sequences[device])) {
      return kDeadlock;
    }
    if (devices_[device].free_ns > end_ns) {
      end_ns = devices_[device].free_ns;
      last_device_ = device;
    }
  }
  return end_ns;
}

void SequenceTimer::RunDevice(int32_t index, const std::vector<WorkIndex>& sequence) {
  Device device = devices_[index];
  const auto count = std::ssize(sequence);
  for (; device.position < count; ++device.position) {
    const WorkIndex work = sequence[device.position];
    const int32_t micro_batch = next_[work];
    int64_t start_ns = device.free_ns;
    if (const int32_t input = instance_.input[work]; input != kNoOutput) {
      const int64_t arrival_ns = arrival_ns_[instance_.Index(input, micro_batch)];
      if (arrival_ns == kNotMade) {
        device.waits_for = instance_.Index(input, micro_batch);
        break;
      }
      start_ns = std::max(start_ns, arrival_ns);
    }
    next_[work] = micro_batch + 1;
    start_ns_[instance_.Index(work, micro_batch)] = start_ns;
    device.free_ns = start_ns + instance_.duration_ns[work];
    if (const int32_t output = instance_.output[work]; output != kNoOutput) {
      Send(index, output, instance_.Index(output, micro_batch), device.free_ns);
    }
  }
  devices_[index] = device;
}

void SequenceTimer::Send(int32_t index, int32_t output_kind, int64_t output, int64_t now_ns) {
  const OutputRoute& route = instance_.routes[output_kind];
  if (route.fifo < 0) {
    queued_behind_[output] = kNothing;
    Arrive(route, output, now_ns);
  } else if (route.ordered) {
    Enter(route, output, now_ns);
  } else {
    entries_.push_back({now_ns, index, output});
    std::push_heap(entries_.begin(), entries_.end());
  }
}

void SequenceTimer::Enter(const OutputRoute& route, int64_t output, int64_t now_ns) {
  int64_t& free_ns = fifo_free_ns_[route.fifo];
  queued_behind_[output] = free_ns > now_ns ? fifo_last_[route.fifo] : kNothing;
  fifo_last_[route.fifo] = output;
  free_ns = std::max(free_ns, now_ns) + route.serialization_ns;
  Arrive(route, output, free_ns + route.latency_ns);
}

void SequenceTimer::Arrive(const OutputRoute& route, int64_t output, int64_t at_ns) {
  arrival_ns_[output] = at_ns;
  Device& consumer = devices_[route.consumer];
  if (consumer.waits_for == output) {
    consumer.waits_for = kNothing;
    runnable_.push_back(route.consumer);
  }
}

}  // namespace geopipe
