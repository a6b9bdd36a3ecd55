#include "runtime/tensor/device.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <new>

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
  std::byte* Allocate(int64_t bytes, MemorySpace /*space*/) override {
    const auto size = static_cast<size_t>(bytes);
    auto* const memory = size >= kHugePage ? MapHugePages(size)
                                           : static_cast<std::byte*>(::operator new(size, kAlignment, std::nothrow));
    if (memory != nullptr) {
      TouchPages(memory, size);
    }
    return memory;
  }
  void Free(std::byte* memory, int64_t bytes, MemorySpace /*space*/) override {
    const auto size = static_cast<size_t>(bytes);
    size >= kHugePage ? void(munmap(memory, WholeHugePages(size))) : ::operator delete(memory, kAlignment);
  }
  absl::Status Copy(const std::byte* from, std::byte* to, int64_t bytes) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }
  Completion Record(int64_t since_ns) override { return {since_ns, Clock::Real().NowNs()}; }
};

}  // namespace

absl::Status Device::Wait(const Completion& completion) {
  completion.Wait();
  return absl::OkStatus();
}

std::unique_ptr<Device> MakeHostDevice() { return std::make_unique<Host>(); }

Device& HostDevice() {
  static Host host;
  return host;
}

}  // namespace geopipe
