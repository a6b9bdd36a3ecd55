// A device as all code above the kernels sees it: memory of its own, and one queue of work. Kernels (runtime/backend),
// copies and records take effect in the order in which they were enqueued; only Wait blocks.
#pragma once

#include <absl/status/status.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/tensor/completion.h"

namespace geopipe {

// kHost: memory that the host may touch, and the device's copies reach. kDevice: memory for the device alone.
enum class MemorySpace : uint8_t { kHost, kDevice };

class Device {
 public:
  virtual ~Device() = default;

  // Memory in which its kernels' operands lie. kHost: copies between host and device are not needed.
  virtual MemorySpace space() const = 0;

  // Allocates memory, 64-byte aligned and not zeroed; nullptr when there is too little. kHost: staging buffers,
  // whatever space() is.
  virtual std::byte* Allocate(int64_t bytes, MemorySpace space) = 0;
  // Takes effect behind the work that was enqueued before. `bytes` and `space` are Allocate's.
  virtual void Free(std::byte* memory, int64_t bytes, MemorySpace space) = 0;

  // Enqueues a copy; either end may lie in either space. Both must stay until it is done.
  virtual absl::Status Copy(const std::byte* from, std::byte* to, int64_t bytes) = 0;

  // Completes when all work enqueued before is done; counts as begun when it was enqueued, at `since_ns` (monotonic),
  // and the device was free.
  virtual Completion Record(int64_t since_ns = 0) = 0;

  // Blocks until the work is over and the callbacks that waited for it, and for work enqueued before it, have run.
  // Returns the first error of work that was enqueued before, unless an earlier call did.
  virtual absl::Status Wait(const Completion& completion);
};

// The processor: its memory is the host's, and work is done when the call that enqueues it returns.
std::unique_ptr<Device> MakeHostDevice();
// The host device that lives as long as the process.
Device& HostDevice();

}  // namespace geopipe
