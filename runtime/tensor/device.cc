#include "runtime/tensor/device.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <iterator>
#include <new>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/clock.h"

namespace geopipe {
namespace {

constexpr std::align_val_t kAlignment{64};
constexpr size_t kHugePage = size_t{2} << 20;

size_t WholeHugePages(size_t bytes) { return (bytes + kHugePage - 1) / kHugePage * kHugePage; }

// Returns whole huge pages, or nullptr. The kernel may give them pages of 4 KiB all the same, which are read and
// written at about two thirds of the rate.
std::byte* MapHugePages(size_t bytes) {
  const size_t wanted = WholeHugePages(bytes);
  void* const mapped = mmap(nullptr, wanted + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    return nullptr;
  }
  auto* const begin = static_cast<std::byte*>(mapped);
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
  if (before > 0) {
    (void)munmap(begin, before);
  }
  (void)munmap(begin + before + wanted, kHugePage - before);
  (void)madvise(begin + before, wanted, MADV_HUGEPAGE);
  return begin + before;
}

// Writes to each page, so that the kernel clears them now and not while the memory's first user computes.
void TouchPages(std::byte* memory, size_t bytes) {
#if defined(MADV_POPULATE_WRITE)
  constexpr size_t kPage = 4096;
  if (reinterpret_cast<uintptr_t>(memory) % kPage == 0 && madvise(memory, bytes, MADV_POPULATE_WRITE) == 0) {
    return;
  }
#endif
  volatile std::byte* const first = memory;
  for (size_t at = 0; at < bytes; at += 4096) {
    first[at] = std::byte{0};
  }
}

class Host final : public Device {
 public:
  MemorySpace space() const override { return MemorySpace::kHost; }
  void Free(std::byte* memory, int64_t bytes, MemorySpace /*space*/) override {
    const auto size = static_cast<size_t>(bytes);
    size >= kHugePage ? void(munmap(memory, WholeHugePages(size))) : ::operator delete(memory, kAlignment);
  }
  Mark Begin(Queue /*queue*/) override { return {.ns = Clock::Real().NowNs()}; }
  absl::Status After(Queue /*queue*/, const Completion& work) override {
    GP_CHECK(work.done(), "the processor is to wait for work that is not its own");
    return work.status();
  }

 protected:
  std::byte* AllocateMemory(int64_t bytes, MemorySpace /*space*/) override {
    const auto size = static_cast<size_t>(bytes);
    auto* const memory = size >= kHugePage ? MapHugePages(size)
                                           : static_cast<std::byte*>(::operator new(size, kAlignment, std::nothrow));
    if (memory != nullptr) {
      TouchPages(memory, size);
    }
    return memory;
  }
  absl::Status EnqueueCopy(const std::byte* from, std::byte* to, int64_t bytes, Queue /*queue*/) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }
  Completion EnqueueRecord(Queue /*queue*/, const Mark& begun) override { return {begun.ns, Clock::Real().NowNs()}; }
};

size_t IndexOf(Queue queue) { return static_cast<size_t>(queue); }

}  // namespace

std::byte* Device::Allocate(int64_t bytes, MemorySpace space) {
  ++(space == MemorySpace::kDevice ? allocations_ : host_allocations_);
  return AllocateMemory(bytes, space);
}

absl::Status Device::Copy(const std::byte* from, std::byte* to, int64_t bytes, Queue queue) {
  {
    const std::lock_guard lock(mutex_);
    lines_[IndexOf(queue)].is_recorded = false;
  }
  return EnqueueCopy(from, to, bytes, queue);
}

Completion Device::Record(Queue queue, const Mark& begun) {
  Completion work = EnqueueRecord(queue, begun);
  const std::lock_guard lock(mutex_);
  Line& line = lines_[IndexOf(queue)];
  while (!line.records.empty() && line.records.front().done()) {
    line.records.pop_front();
    ++line.first;
  }
  line.records.push_back(work);
  line.is_recorded = queue != Queue::kCompute;
  return work;
}

int64_t Device::position(Queue queue) const {
  const std::lock_guard lock(mutex_);
  const Line& line = lines_[IndexOf(queue)];
  const int64_t next = line.first + std::ssize(line.records);
  return line.is_recorded ? next - 1 : next;
}

Completion Device::Past(Queue queue, int64_t position) {
  {
    const std::lock_guard lock(mutex_);
    const Line& line = lines_[IndexOf(queue)];
    if (position < line.first) {
      return {};
    }
    if (position - line.first < std::ssize(line.records)) {
      return line.records[static_cast<size_t>(position - line.first)];
    }
  }
  return Record(queue);
}

absl::Status Device::AfterAll(Queue queue) {
  for (int i = 0; i < kQueues; ++i) {
    if (const auto other = static_cast<Queue>(i); other != queue) {
      GP_RETURN_IF_ERROR(After(queue, Record(other)));
    }
  }
  return absl::OkStatus();
}

absl::Status Device::Wait(const Completion& work, int64_t deadline_ns) {
  ++waits_;
  return Await(work, deadline_ns) ? work.status() : absl::DeadlineExceededError("the device is not done in time");
}

absl::Status Device::WaitIdle(int64_t deadline_ns) {
  absl::Status status = AfterAll(Queue::kCompute);
  status.Update(Wait(Record(Queue::kCompute), deadline_ns));  // of a failed device too: its work has to fail first
  return status;
}

Device::Counts Device::counts() const {
  return {.waits = waits_, .allocations = allocations_, .host_allocations = host_allocations_};
}

int64_t DeviceDeadlineNs() {
  constexpr int64_t kPatienceNs = 60'000'000'000;
  return Clock::Real().NowNs() + kPatienceNs;
}

int64_t SetUpDeadlineNs() {
  constexpr int64_t kPatienceNs = 10'000'000'000;
  return Clock::Real().NowNs() + kPatienceNs;
}

std::unique_ptr<Device> MakeHostDevice() { return std::make_unique<Host>(); }

Device& HostDevice() {
  static Host host;
  return host;
}

}  // namespace geopipe
