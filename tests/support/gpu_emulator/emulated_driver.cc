#include "tests/support/gpu_emulator/emulated_driver.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "optimizer/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/unique_fd.h"

namespace geopipe::emulator {
namespace {

thread_local std::string last_error;

struct CurrentDevice {
  int64_t generation = -1;
  Device* device = nullptr;
};
thread_local CurrentDevice current;
thread_local bool is_in_host_function = false;

constexpr int kPoison = 0xFF;      // as floats, bf16 and doubles: not a number
constexpr int64_t kGranule = 512;  // device memory is given out in multiples, counted, not touched
constexpr size_t kDeviceAlignment = 256;
constexpr size_t kHostAlignment = 4096;

void* AllocatePoisoned(size_t alignment, int64_t bytes) {
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, static_cast<size_t>(bytes)) != 0) {
    return nullptr;
  }
  std::memset(memory, kPoison, static_cast<size_t>(bytes));
  return memory;
}

void FreePoisoned(void* memory, int64_t bytes) {
  std::memset(memory, kPoison, static_cast<size_t>(bytes));
  std::free(memory);
}

int64_t Granules(int64_t bytes) { return (bytes + kGranule - 1) / kGranule * kGranule; }

uintptr_t AddressOf(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }

}  // namespace

GpResult Fail(GpResult result, std::string message) {
  last_error = std::move(message);
  return result;
}

const char* LastError() { return last_error.c_str(); }

GpResult ResultOf(int32_t error) {
  switch (error) {
    case 0:
      return kGpOk;
    case kInvalidValue:
      return Fail(kGpInvalid, "an argument is invalid (cudaErrorInvalidValue)");
    case kInvalidHandle:
      return Fail(kGpInvalid, "no such stream of the current device (cudaErrorInvalidResourceHandle)");
    case kIllegalAddress:
      return Fail(kGpDeviceLost, "an illegal memory access was encountered (cudaErrorIllegalAddress)");
    case kUnknown:
      return Fail(kGpDeviceLost, "the device has fallen off the bus (cudaErrorUnknown)");
    default:
      return Fail(kGpInternal, fmt::format("error {}", error));
  }
}

int Device::OpenLine() {
  const std::lock_guard lock(mutex_);
  const auto free = std::ranges::find(lines_, false, &Line::is_open);
  if (free == lines_.end()) {
    return -1;
  }
  free->is_open = true;
  return static_cast<int>(free - lines_.begin());
}

void Device::CloseLine(int line) {
  const std::lock_guard lock(mutex_);
  lines_.at(static_cast<size_t>(line)) = {};
}

void Device::NoteMore(int line) {
  const std::lock_guard lock(mutex_);
  lines_.at(static_cast<size_t>(line)).has_more = true;
}

void Device::Enqueue(int line, std::function<void()> work, int64_t duration_ns) {
  NoteMore(line);
  queues_.Enqueue(
      line,
      [this, work = std::move(work)] {
        if (lost_ == 0) {
          work();
        }
      },
      duration_ns);
}

void Device::WaitFor(int line, SeededQueues::EventPtr event) {
  NoteMore(line);
  queues_.WaitFor(line, std::move(event));
}

void Device::Hold(int line) {
  NoteMore(line);
  is_stuck_ = true;
  queues_.Hold(line);
}

bool Device::IsIdle(int line) {
  const std::lock_guard lock(mutex_);
  Line& looked_at = lines_.at(static_cast<size_t>(line));
  if (std::exchange(looked_at.has_more, false)) {
    looked_at.end = queues_.Record(line);
  }
  return looked_at.end == nullptr || looked_at.end->happened();
}

void Device::Await(const SeededQueues::EventPtr& event) {
  constexpr int64_t kForeverNs = int64_t{3600} * 1000 * 1000 * 1000;
  GP_CHECK(queues_.Await(event, Clock::Real().NowNs() + kForeverNs), "work of device {} never ends", ordinal_);
}

void Device::SynchronizeAll() {
  for (int line = 0; line < kStreams; ++line) {
    bool is_open = false;
    {
      const std::lock_guard lock(mutex_);
      is_open = lines_.at(static_cast<size_t>(line)).is_open;
    }
    if (is_open) {
      Synchronize(line);
    }
  }
}

Driver& Driver::Get() {
  static Driver* const driver = [] {
    auto* made = new Driver;
    (void)made->Restart(nullptr);  // keeps the error
    (void)std::atexit([] { Get().End(); });
    return made;
  }();
  return *driver;
}

GpResult Driver::Restart(const char* settings) {
  Clear();
  if (settings == nullptr) {
    settings = std::getenv("GEOPIPE_EMULATED_GPU");
  }
  const absl::StatusOr<Settings> read = ParseSettings(settings == nullptr ? "" : settings);
  settings_error_ = read.ok() ? "" : std::string(read.status().message());
  settings_ = read.ok() ? *read : Settings();
  if (!read.ok()) {
    return Fail(kGpInvalid, settings_error_);
  }
  for (int32_t i = 0; i < static_cast<int32_t>(settings_.devices); ++i) {
    devices_[i] = std::make_unique<Device>(i, static_cast<uint64_t>(settings_.seed) * 1000 + static_cast<uint64_t>(i));
  }
  return kGpOk;
}

void Driver::End() {
  for (const auto& [ordinal, device] : devices_) {
    if (device->is_stuck()) {
      device->SynchronizeAll();
    }
    device->Lose(kUnknown);
  }
}

void Driver::Clear() {
  ++generation_;
  devices_.clear();  // joins their threads
  for (const auto& [address, block] : device_blocks_) {
    FreePoisoned(block.real, block.bytes);
  }
  for (const auto& [address, block] : host_blocks_) {
    if (!block.is_registered) {
      FreePoisoned(block.real, block.bytes);
    }
  }
  device_blocks_.clear();
  host_blocks_.clear();
  allocated_bytes_.clear();
  peak_bytes_ = 0;
  streams_.clear();
  events_.clear();
  for (std::atomic<int64_t>& counter : counters_) {
    counter = 0;
  }
  made_once_file_ = false;
}

Device* Driver::DeviceOf(int32_t ordinal) {
  const auto found = devices_.find(ordinal);
  return found == devices_.end() ? nullptr : found->second.get();
}

Device* Driver::Current() { return current.generation == generation_ ? current.device : nullptr; }

void Driver::Use(Device& device) { current = {.generation = generation_, .device = &device}; }

void Driver::CallHost(GpHostFunction function, void* data) {
  is_in_host_function = true;
  function(data);
  is_in_host_function = false;
}

bool Driver::IsInHostFunction() { return is_in_host_function; }

GpEmulatorCounters Driver::Counters() {
  const auto of = [this](Counted what) { return counters_[static_cast<size_t>(what)].load(); };
  GpEmulatorCounters counters = {.device_allocations = of(Counted::kDeviceAllocation),
                                 .device_frees = of(Counted::kDeviceFree),
                                 .host_allocations = of(Counted::kHostAllocation),
                                 .host_frees = of(Counted::kHostFree),
                                 .registrations = of(Counted::kRegistration),
                                 .waits = of(Counted::kWait),
                                 .plans = of(Counted::kPlan),
                                 .launches = of(Counted::kLaunch),
                                 .products = of(Counted::kProduct),
                                 .copies = of(Counted::kCopy),
                                 .copied_bytes = of(Counted::kCopiedByte),
                                 .fills = of(Counted::kFill),
                                 .host_calls = of(Counted::kHostCall),
                                 .device_bytes = 0,
                                 .peak_device_bytes = 0};
  const std::lock_guard lock(mutex_);
  for (const auto& [ordinal, bytes] : allocated_bytes_) {
    counters.device_bytes += bytes;
  }
  counters.peak_device_bytes = peak_bytes_;
  return counters;
}

bool Driver::Strikes(int64_t number, int64_t at) {
  if (number != at || settings_.once.empty()) {
    return number == at;
  }
  const std::lock_guard lock(mutex_);
  if (!made_once_file_) {
    const UniqueFd file(open(settings_.once.c_str(), O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    made_once_file_ = file.valid();
  }
  return made_once_file_;
}

void* Driver::AllocateDevice(Device& device, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  int64_t& allocated = allocated_bytes_[device.ordinal()];
  if (bytes > settings_.memory_bytes || allocated + Granules(bytes) > settings_.memory_bytes) {
    return nullptr;
  }
  void* real = AllocatePoisoned(kDeviceAlignment, bytes);
  if (real == nullptr) {
    return nullptr;
  }
  allocated += Granules(bytes);
  int64_t all = 0;
  for (const auto& [ordinal, of_device] : allocated_bytes_) {
    all += of_device;
  }
  peak_bytes_ = std::max(peak_bytes_, all);
  const uintptr_t address = AddressOf(real) + kForeign;
  device_blocks_[address] = {.real = real, .bytes = bytes, .ordinal = device.ordinal()};
  return reinterpret_cast<void*>(address);
}

bool Driver::FreeDevice(const Device& device, void* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = device_blocks_.find(AddressOf(memory));
  if (found == device_blocks_.end() || found->second.ordinal != device.ordinal()) {
    return false;
  }
  allocated_bytes_[device.ordinal()] -= Granules(found->second.bytes);
  FreePoisoned(found->second.real, found->second.bytes);
  device_blocks_.erase(found);
  return true;
}

void* Driver::AllocateHost(int64_t bytes) {
  void* memory = AllocatePoisoned(kHostAlignment, bytes);
  if (memory != nullptr) {
    const std::lock_guard lock(mutex_);
    host_blocks_[AddressOf(memory)] = {.real = memory, .bytes = bytes};
  }
  return memory;
}

bool Driver::FreeHost(void* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = host_blocks_.find(AddressOf(memory));
  if (found == host_blocks_.end() || found->second.is_registered) {
    return false;
  }
  FreePoisoned(memory, found->second.bytes);
  host_blocks_.erase(found);
  return true;
}

bool Driver::Register(void* memory, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const uintptr_t begin = AddressOf(memory);
  const uintptr_t end = begin + static_cast<uintptr_t>(bytes);
  const bool overlaps = std::ranges::any_of(host_blocks_, [&](const auto& block) {
    return block.first < end && begin < block.first + static_cast<uintptr_t>(block.second.bytes);
  });
  if (overlaps) {
    return false;
  }
  host_blocks_[begin] = {.real = memory, .bytes = bytes, .is_registered = true};
  return true;
}

bool Driver::Unregister(void* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = host_blocks_.find(AddressOf(memory));
  if (found == host_blocks_.end() || !found->second.is_registered) {
    return false;
  }
  host_blocks_.erase(found);
  return true;
}

int64_t Driver::AllocatedBytes(const Device& device) {
  const std::lock_guard lock(mutex_);
  return allocated_bytes_[device.ordinal()];
}

const Driver::Block* Driver::BlockOf(const Blocks& blocks, const void* memory, int64_t bytes) {
  const uintptr_t begin = AddressOf(memory);
  auto found = blocks.upper_bound(begin);
  if (found == blocks.begin()) {
    return nullptr;
  }
  --found;
  const uintptr_t end = found->first + static_cast<uintptr_t>(found->second.bytes);
  return begin <= end && static_cast<uintptr_t>(bytes) <= end - begin ? &found->second : nullptr;
}

bool Driver::IsDeviceMemory(const Device& device, const void* memory, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const Block* block = BlockOf(device_blocks_, memory, bytes);
  return block != nullptr && block->ordinal == device.ordinal();
}

bool Driver::IsPinned(const void* memory, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  return BlockOf(host_blocks_, memory, bytes) != nullptr;
}

bool Driver::IsAnyDeviceMemory(const void* address) {
  const std::lock_guard lock(mutex_);
  return BlockOf(device_blocks_, address, 0) != nullptr;
}

Stream* Driver::OpenStream(Device& device) {
  const int line = device.OpenLine();
  if (line < 0) {
    return nullptr;
  }
  auto stream = std::make_unique<Stream>(Stream{.device = &device, .line = line});
  const std::lock_guard lock(mutex_);
  Stream* handle = stream.get();
  streams_[handle] = std::move(stream);
  return handle;
}

Stream* Driver::StreamOf(const Device& device, GpStream stream) {
  const std::lock_guard lock(mutex_);
  const auto found = streams_.find(stream);
  return found == streams_.end() || found->second->device != &device ? nullptr : found->second.get();
}

void Driver::CloseStream(Stream* stream) {
  stream->device->CloseLine(stream->line);
  const std::lock_guard lock(mutex_);
  streams_.erase(stream);
}

Event* Driver::OpenEvent(Device& device, bool is_timed) {
  auto event = std::make_unique<Event>(Event{.device = &device, .is_timed = is_timed, .last = nullptr});
  const std::lock_guard lock(mutex_);
  Event* handle = event.get();
  events_[handle] = std::move(event);
  return handle;
}

bool Driver::CloseEvent(const Device& device, GpEvent event) {
  const std::lock_guard lock(mutex_);
  const auto found = events_.find(event);
  if (found == events_.end() || found->second->device != &device) {
    return false;
  }
  events_.erase(found);
  return true;
}

bool Driver::LastRecord(const Device& device, GpEvent event, SeededQueues::EventPtr* last, bool* is_timed) {
  const std::lock_guard lock(mutex_);
  const auto found = events_.find(event);
  if (found == events_.end() || found->second->device != &device) {
    return false;
  }
  *last = found->second->last;
  *is_timed = found->second->is_timed;
  return true;
}

bool Driver::Record(const Device& device, GpEvent event, const Stream& stream) {
  SeededQueues::EventPtr record = stream.device->Record(stream.line);
  const std::lock_guard lock(mutex_);
  const auto found = events_.find(event);
  if (found == events_.end() || found->second->device != &device) {
    return false;
  }
  found->second->last = std::move(record);
  return true;
}

int32_t Driver::Launch(GpStream handle, std::function<void()> work, int64_t duration_ns) {
  Device* device = Current();
  const Stream* stream = device == nullptr ? nullptr : StreamOf(*device, handle);
  if (stream == nullptr) {
    return kInvalidHandle;
  }
  if (device->lost() != 0) {
    return device->lost();
  }
  const int64_t number = Count(Counted::kLaunch);
  if (Strikes(number, settings_.off_bus_at)) {
    device->Lose(kUnknown);
    return kUnknown;
  }
  if (Strikes(number, settings_.stuck_at)) {
    device->Hold(stream->line);
  }
  if (Strikes(number, settings_.lost_at)) {
    work = [device] { device->Lose(kIllegalAddress); };
  }
  device->Enqueue(stream->line, std::move(work), duration_ns);
  return 0;
}

}  // namespace geopipe::emulator
