// A device as all code above the kernels sees it: memory of its own, and queues of work. Kernels (runtime/backend),
// copies and records of one queue take effect in the order in which they were enqueued; queues run at the same time,
// and order among them is what After says. Only Wait blocks.
#pragma once

#include <absl/status/status.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

#include "runtime/tensor/completion.h"

namespace geopipe {

// kHost: memory that the host may touch, and the device's copies reach. kDevice: memory for the device alone.
enum class MemorySpace : uint8_t { kHost, kDevice };

// kCompute: kernels, and what must be in order with them. kOut, kIn: what leaves for the host and what comes from it.
// kGroup: collective operations.
enum class Queue : uint8_t { kCompute, kOut, kIn, kGroup };
inline constexpr int kQueues = 4;

// A point in a queue at which work begins.
struct Mark {
  int64_t ns = 0;                               // when the device came to it, where that is known at once
  std::shared_ptr<const void> point = nullptr;  // else as the device knows it
};

// One thread enqueues work and allocates the device's memory; any thread the rest. Queue::kGroup takes work from any
// thread.
class Device {
 public:
  virtual ~Device() = default;

  // Memory in which its kernels' operands lie. kHost: copies between host and device are not needed.
  virtual MemorySpace space() const = 0;

  // Allocates memory, 64-byte aligned and not zeroed; nullptr when there is too little. kHost: staging buffers,
  // whatever space() is.
  std::byte* Allocate(int64_t bytes, MemorySpace space);
  // Takes effect behind the work that any queue was given before. `bytes` and `space` are Allocate's.
  virtual void Free(std::byte* memory, int64_t bytes, MemorySpace space) = 0;

  // Enqueues a copy; either end may lie in either space. Both must stay until it is done.
  absl::Status Copy(const std::byte* from, std::byte* to, int64_t bytes, Queue queue);

  // Marks where the queue is now: work that is recorded with it began when the device came here.
  virtual Mark Begin(Queue queue) = 0;
  // Completes when all work that the queue was given before is done, or fails as the first of it has.
  Completion Record(Queue queue, const Mark& begun);
  Completion Record(Queue queue) { return Record(queue, Begin(queue)); }

  // Makes work that the queue is given from now on wait for `work`; the host does not. Errors: the device's, and that
  // of `work` where it has failed. REQUIRES: `work` is this device's, or done.
  virtual absl::Status After(Queue queue, const Completion& work) = 0;
  // The same for all that the other queues were given before.
  absl::Status AfterAll(Queue queue);

  // Waits until the work is over and the callbacks that waited for it, and for work that its queue was given before,
  // have run. Errors: that of the work; DeadlineExceeded: it is not over by `deadline_ns` (monotonic).
  absl::Status Wait(const Completion& work, int64_t deadline_ns);
  // Waits for all work of all queues to be over, or to have failed.
  absl::Status WaitIdle(int64_t deadline_ns);

  // Lets copies reach memory of the host that was not allocated here; it stays mapped until Unregister, which is called
  // when no copy that names it is left to do. Errors: the device's; Unimplemented: the device or the host cannot.
  virtual absl::Status Register(std::byte* /*memory*/, int64_t /*bytes*/) { return absl::OkStatus(); }
  virtual void Unregister(std::byte* /*memory*/) {}

  // The error that ended the device, which all its work has from then on. Any thread.
  virtual absl::Status health() const { return absl::OkStatus(); }

  // Points in the past of a queue: what it had been given when position() was called, a record of which Past returns.
  int64_t position(Queue queue) const;
  virtual Completion Past(Queue queue, int64_t position);

  // Calls so far: nothing waits or allocates inside an iteration.
  struct Counts {
    int64_t waits = 0;
    int64_t allocations = 0;       // of the device's memory
    int64_t host_allocations = 0;  // of staging memory

    friend bool operator==(const Counts&, const Counts&) = default;
  };
  Counts counts() const;

 protected:
  virtual std::byte* AllocateMemory(int64_t bytes, MemorySpace space) = 0;
  virtual absl::Status EnqueueCopy(const std::byte* from, std::byte* to, int64_t bytes, Queue queue) = 0;
  virtual Completion EnqueueRecord(Queue queue, const Mark& begun) = 0;
  // Waits as Wait does; false: the work is not over by then.
  virtual bool Await(const Completion& work, int64_t deadline_ns) { return work.WaitUntil(deadline_ns); }

 private:
  // Records of a queue that may not be over yet.
  struct Line {
    std::deque<Completion> records;
    int64_t first = 0;         // number of the first of them
    bool is_recorded = false;  // nothing was enqueued behind the last record; never so for kernels' queue
  };

  mutable std::mutex mutex_;
  std::array<Line, kQueues> lines_;
  std::atomic<int64_t> waits_ = 0;
  std::atomic<int64_t> allocations_ = 0;
  std::atomic<int64_t> host_allocations_ = 0;
};

// The processor: its memory is the host's, and work is done when the call that enqueues it returns.
std::unique_ptr<Device> MakeHostDevice();
// The host device that lives as long as the process.
Device& HostDevice();

// A deadline for waits of a device that nothing but itself can hold up: longer than any of its work.
int64_t DeviceDeadlineNs();
// The same for what a worker does before it trains: measured actions of one block, copies of parameters.
int64_t SetUpDeadlineNs();

}  // namespace geopipe
