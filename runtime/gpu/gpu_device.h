// A GPU behind the port, as a Device: its queues are streams, its marks and records events. A thread of its own, the
// completer, finds out when work is over and runs callbacks. It sleeps until a function of the driver's wakes it, which
// is called behind every record, on a stream for that alone; and looks at events every 100 ms besides, since a device
// that has failed calls nothing.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "runtime/backend/backend.h"
#include "runtime/gpu/gpu_clock.h"
#include "runtime/gpu/gpu_events.h"
#include "runtime/gpu/port/gpu_port.h"
#include "runtime/tensor/device.h"

namespace geopipe {

// The first error of the device is final: all work that is not over fails with it, as does all that follows. A wait
// that passes its deadline is such an error (Internal). What the device then still holds is left to the end of the
// process.
class GpuDevice final : public Device {
 public:
  // Tells whether device `ordinal` of those that this process sees can be opened; makes no context on it. `library`:
  // as in Open.
  static absl::Status Check(const std::string& library, int32_t ordinal);

  // `library`: file of the port's library; empty: DefaultGpuLibrary's. Errors: OpenGpuPort's and CheckGpuDevice's;
  // NotFound: the process sees no such device.
  static absl::StatusOr<std::unique_ptr<GpuDevice>> Open(const std::string& library, int32_t ordinal);
  GpuDevice(const GpuDevice&) = delete;
  GpuDevice& operator=(const GpuDevice&) = delete;
  ~GpuDevice() override;

  MemorySpace space() const override { return MemorySpace::kDevice; }
  // Keeps the memory until the driver finds no more, or the device is closed: the driver's own release waits for all of
  // the device's work.
  void Free(std::byte* memory, int64_t bytes, MemorySpace space) override;
  Mark Begin(Queue queue) override;
  absl::Status After(Queue queue, const Completion& work) override;
  absl::Status Register(std::byte* memory, int64_t bytes) override;
  void Unregister(std::byte* memory) override;
  absl::Status health() const override;

  const DeviceVersions& versions() const { return versions_; }

  // The port, through which backends and communicators enqueue work on the device's streams, after Enter.
  const GpPort& port() const { return port_; }
  GpStream stream(Queue queue) const { return streams_[static_cast<size_t>(queue)]; }
  // Makes the device the calling thread's current one. Errors: the device's.
  absl::Status Enter();
  // The status of a call of the port by this thread, its last: "<device>: <doing>: <sentence>". Errors but those of
  // memory and of what is unsupported are the device's from then on.
  absl::Status StatusOf(GpResult result, std::string_view doing);
  // Enqueues one of the port's kernels.
  template <class Args>
  absl::Status Launch(int32_t (*kernel)(const Args* args, void* stream), const Args& args, Queue queue) {
    GP_RETURN_IF_ERROR(Enter());
    return StatusOf(port_.runtime.launch_result(kernel(&args, stream(queue))), "enqueuing a kernel");
  }

 protected:
  // Pinned memory of the host is aligned to pages.
  std::byte* AllocateMemory(int64_t bytes, MemorySpace space) override;
  // REQUIRES: host memory is Allocate's or registered.
  absl::Status EnqueueCopy(const std::byte* from, std::byte* to, int64_t bytes, Queue queue) override;
  Completion EnqueueRecord(Queue queue, const Mark& begun) override;
  bool Await(const Completion& work, int64_t deadline_ns) override;

 private:
  using Event = std::shared_ptr<const void>;
  struct Pending {
    Completion completion;
    Event begin;  // null: begun_ns tells
    int64_t begun_ns = 0;
    Event end;  // null: the device had failed before
  };
  // The file that a function which the driver calls writes to; it is left behind where the driver may still call.
  struct Bell;

  GpuDevice(const GpPort& port, int32_t ordinal, const GpDeviceProperties& properties);
  absl::Status Start(const GpDeviceProperties& properties);
  absl::Status Fail(absl::Status why);

  absl::StatusOr<Event> RecordEvent(GpStream stream);
  // Records on the queue's stream, and has the completer woken behind it.
  absl::StatusOr<Event> RecordAndRing(Queue queue);
  GpResult AllocateOnce(int64_t bytes, MemorySpace space, void** memory);
  // Returns what was freed to the driver; false: there was nothing.
  bool Release();

  // The completer's.
  void RunCompleter();
  bool SleepUntilRung();  // false: the device is being closed
  void CompleteQueue(size_t queue);
  // The times of work that is over.
  absl::StatusOr<std::pair<int64_t, int64_t>> TimesOf(const Pending& work);
  void FailAll(const absl::Status& why);

  const GpPort& port_;
  const int32_t ordinal_;
  const std::string name_;  // "GPU 0 (NVIDIA H200, GPU-8f3a...)"
  DeviceVersions versions_;
  std::shared_ptr<GpuEvents> events_;
  std::array<GpStream, kQueues> streams_ = {};
  std::array<GpStream, kQueues> bell_streams_ = {};
  std::unique_ptr<Bell> bell_;
  std::optional<GpuClock> clock_;  // the completer's

  mutable std::mutex mutex_;
  absl::Status error_;
  std::array<std::deque<Pending>, kQueues> pending_;
  int64_t pending_count_ = 0;
  std::vector<void*> freed_;
  std::vector<void*> freed_host_;
  bool closing_ = false;
  std::thread completer_;
};

}  // namespace geopipe
