#include "runtime/tensor/device.h"

#include <cstring>
#include <new>

#include "runtime/base/clock.h"

namespace geopipe {
namespace {

constexpr std::align_val_t kAlignment{64};

class Host final : public Device {
 public:
  MemorySpace space() const override { return MemorySpace::kHost; }
  std::byte* Allocate(int64_t bytes, MemorySpace /*space*/) override {
    return static_cast<std::byte*>(::operator new(static_cast<size_t>(bytes), kAlignment, std::nothrow));
  }
  void Free(std::byte* memory, int64_t /*bytes*/, MemorySpace /*space*/) override {
    ::operator delete(memory, kAlignment);
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
