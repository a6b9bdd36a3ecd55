#include "runtime/gpu/gpu_device.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/base/trouble.h"
#include "runtime/base/clock.h"
#include "runtime/base/thread_name.h"
#include "runtime/base/unique_fd.h"
#include "runtime/gpu/open_port.h"

namespace geopipe {
namespace {

constexpr int kLookMs = 100;

size_t IndexOf(Queue queue) { return static_cast<size_t>(queue); }

struct FoundGpu {
  const GpPort* port = nullptr;
  GpDeviceProperties properties = {};
};

absl::StatusOr<FoundGpu> FindGpu(const std::string& library, int32_t ordinal) {
  FoundGpu found;
  GP_ASSIGN_OR_RETURN(found.port, OpenGpuPort(library.empty() ? DefaultGpuLibrary() : library));
  int32_t devices = 0;
  if (const GpResult result = found.port->runtime.device_count(&devices); result != kGpOk) {
    return GpuError(*found.port, result, "counting GPUs");
  }
  if (ordinal < 0 || ordinal >= devices) {
    return absl::NotFoundError(
        fmt::format("GPU {} cannot be used: this process sees {}, counted from 0; check the agent's devices and "
                    "CUDA_VISIBLE_DEVICES",
                    ordinal, devices));
  }
  if (const GpResult result = found.port->runtime.device_properties(ordinal, &found.properties); result != kGpOk) {
    return GpuError(*found.port, result, fmt::format("asking GPU {} for its properties", ordinal));
  }
  GP_RETURN_IF_ERROR(CheckGpuDevice(found.properties));
  return found;
}

}  // namespace

struct GpuDevice::Bell {
  UniqueFd fd;

  void Ring() const {
    const uint64_t one = 1;
    (void)!write(fd.get(), &one, sizeof(one));  // it can only fail when it rings already
  }
  static void RingFromDriver(void* bell) { static_cast<const Bell*>(bell)->Ring(); }
};

absl::Status GpuDevice::Check(const std::string& library, int32_t ordinal) {
  return FindGpu(library, ordinal).status();
}

absl::StatusOr<std::unique_ptr<GpuDevice>> GpuDevice::Open(const std::string& library, int32_t ordinal) {
  GP_ASSIGN_OR_RETURN(const FoundGpu found, FindGpu(library, ordinal));
  std::unique_ptr<GpuDevice> device(new GpuDevice(*found.port, ordinal, found.properties));
  GP_RETURN_IF_ERROR(device->Start(found.properties));
  return device;
}

GpuDevice::GpuDevice(const GpPort& port, int32_t ordinal, const GpDeviceProperties& properties)
    : port_(port),
      ordinal_(ordinal),
      name_(fmt::format("GPU {} ({}, {})", ordinal, properties.name, properties.uuid)),
      events_(std::make_shared<GpuEvents>(port, ordinal)),
      bell_(new Bell{.fd = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))}) {}

absl::Status GpuDevice::Start(const GpDeviceProperties& properties) {
  if (!bell_->fd.valid()) {
    return OfNode(absl::ResourceExhaustedError(
        fmt::format("{} cannot be used: no event file descriptor is left; raise the limit of open files", name_)));
  }
  GP_RETURN_IF_ERROR(Enter());
  GpVersions versions = {};
  GP_RETURN_IF_ERROR(StatusOf(port_.runtime.versions(&versions), "asking for versions"));
  versions_.name = properties.name;
  versions_.architecture = fmt::format("sm_{}", properties.architecture);
  versions_.multiprocessors = properties.multiprocessors;
  versions_.driver = CudaVersionText(versions.driver);
  versions_.runtime = CudaVersionText(versions.runtime);
  versions_.cublas_lt = fmt::format("{} {}.{}.{}", versions.products_name, versions.products / 10000,
                                    versions.products / 100 % 100, versions.products % 100);
  versions_.kernels = versions.kernels;
  for (std::array<GpStream, kQueues>* streams : {&streams_, &bell_streams_}) {
    for (GpStream& stream : *streams) {
      GP_RETURN_IF_ERROR(StatusOf(port_.runtime.stream_create(&stream), "making a stream"));
    }
  }
  GP_ASSIGN_OR_RETURN(const Event anchor, RecordEvent(stream(Queue::kCompute)));
  GP_RETURN_IF_ERROR(StatusOf(port_.runtime.event_synchronize(EventOf(anchor)), "setting the clock"));
  clock_.emplace(anchor, Clock::Real().NowNs());
  completer_ = std::thread([this] { RunCompleter(); });
  return absl::OkStatus();
}

GpuDevice::~GpuDevice() {
  if (completer_.joinable()) {
    (void)WaitIdle(DeviceDeadlineNs());
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    bell_->Ring();
    completer_.join();
  }
  if (!Enter().ok()) {
    // The driver may still call, or use memory.
    static auto* left = new std::vector<std::unique_ptr<Bell>>;
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    left->push_back(std::move(bell_));
    return;
  }
  for (const std::array<GpStream, kQueues>* streams : {&bell_streams_, &streams_}) {
    for (const GpStream stream : *streams) {
      if (stream != nullptr) {
        (void)port_.runtime.stream_destroy(stream);
      }
    }
  }
  (void)Release();
}

absl::Status GpuDevice::health() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

absl::Status GpuDevice::Enter() {
  GP_RETURN_IF_ERROR(health());
  return StatusOf(port_.runtime.use_device(ordinal_), "using the device");
}

absl::Status GpuDevice::StatusOf(GpResult result, std::string_view doing) {
  if (result == kGpOk) {
    return absl::OkStatus();
  }
  const absl::Status error = GpuError(port_, result, doing);
  if (result == kGpOutOfMemory || result == kGpUnsupported) {
    return Reworded(error, fmt::format("{}: {}", name_, std::string(error.message())));
  }
  return Fail({error.code(), fmt::format("{} has failed: {}; restart the worker, and check the driver's log (dmesg) if "
                                         "it fails again",
                                         name_, std::string(error.message()))});
}

// Returns the device's first error, which is this one unless there was one before.
absl::Status GpuDevice::Fail(absl::Status why) {
  const std::lock_guard lock(mutex_);
  if (error_.ok()) {
    error_ = std::move(why);
    bell_->Ring();
  }
  return error_;
}

GpResult GpuDevice::AllocateOnce(int64_t bytes, MemorySpace space, void** memory) {
  return space == MemorySpace::kDevice ? port_.runtime.device_allocate(bytes, memory)
                                       : port_.runtime.host_allocate(bytes, memory);
}

std::byte* GpuDevice::AllocateMemory(int64_t bytes, MemorySpace space) {
  if (!Enter().ok()) {
    return nullptr;
  }
  void* memory = nullptr;
  GpResult result = AllocateOnce(bytes, space, &memory);
  if (result == kGpOutOfMemory && Release()) {
    result = AllocateOnce(bytes, space, &memory);
  }
  return StatusOf(result, "allocating memory").ok() ? static_cast<std::byte*>(memory) : nullptr;
}

void GpuDevice::Free(std::byte* memory, int64_t /*bytes*/, MemorySpace space) {
  const std::lock_guard lock(mutex_);
  (space == MemorySpace::kDevice ? freed_ : freed_host_).push_back(memory);
}

bool GpuDevice::Release() {
  std::vector<void*> device;
  std::vector<void*> host;
  {
    const std::lock_guard lock(mutex_);
    device.swap(freed_);
    host.swap(freed_host_);
  }
  // The driver waits for the device's work without a deadline.
  if ((device.empty() && host.empty()) || (completer_.joinable() && !WaitIdle(DeviceDeadlineNs()).ok())) {
    return false;
  }
  for (void* memory : device) {
    (void)StatusOf(port_.runtime.device_free(memory), "freeing memory");
  }
  for (void* memory : host) {
    (void)StatusOf(port_.runtime.host_free(memory), "freeing pinned memory");
  }
  return true;
}

absl::Status GpuDevice::Register(std::byte* memory, int64_t bytes) {
  GP_RETURN_IF_ERROR(Enter());
  return StatusOf(port_.runtime.host_register(memory, bytes), "registering memory of the host");
}

void GpuDevice::Unregister(std::byte* memory) {
  if (Enter().ok()) {
    (void)StatusOf(port_.runtime.host_unregister(memory), "unregistering memory of the host");
  }
}

absl::Status GpuDevice::EnqueueCopy(const std::byte* from, std::byte* to, int64_t bytes, Queue queue) {
  GP_RETURN_IF_ERROR(Enter());
  return StatusOf(port_.runtime.copy(from, to, bytes, stream(queue)), "enqueuing a copy");
}

absl::StatusOr<GpuDevice::Event> GpuDevice::RecordEvent(GpStream stream) {
  GP_RETURN_IF_ERROR(Enter());
  Event event;
  GP_RETURN_IF_ERROR(StatusOf(events_->Take(&event), "making an event"));
  GP_RETURN_IF_ERROR(StatusOf(port_.runtime.event_record(EventOf(event), stream), "recording an event"));
  return event;
}

absl::StatusOr<GpuDevice::Event> GpuDevice::RecordAndRing(Queue queue) {
  GP_ASSIGN_OR_RETURN(Event end, RecordEvent(stream(queue)));
  const GpStream bell_stream = bell_streams_[IndexOf(queue)];
  GP_RETURN_IF_ERROR(StatusOf(port_.runtime.stream_wait_event(bell_stream, EventOf(end)), "waiting for an event"));
  GP_RETURN_IF_ERROR(
      StatusOf(port_.runtime.stream_call_host(bell_stream, Bell::RingFromDriver, bell_.get()), "asking for a call"));
  return end;
}

Mark GpuDevice::Begin(Queue queue) {
  absl::StatusOr<Event> event = RecordEvent(stream(queue));
  return event.ok() ? Mark{.ns = 0, .point = *std::move(event)} : Mark{.ns = Clock::Real().NowNs()};
}

Completion GpuDevice::EnqueueRecord(Queue queue, const Mark& begun) {
  absl::StatusOr<Event> end = RecordAndRing(queue);
  const Event point = end.ok() ? *end : nullptr;
  Completion completion = Completion::Pending(point);
  {
    const std::lock_guard lock(mutex_);
    if (end.ok() || !error_.ok()) {  // of a failed device: behind the work that fails before it
      pending_[IndexOf(queue)].push_back(
          {.completion = completion, .begin = begun.point, .begun_ns = begun.ns, .end = point});
      if (++pending_count_ == 1) {
        bell_->Ring();  // the completer looks every 100 ms from now on
      }
      return completion;
    }
  }
  completion.Fail(end.status());
  return completion;
}

absl::Status GpuDevice::After(Queue queue, const Completion& work) {
  if (work.done()) {
    return work.status();
  }
  GP_RETURN_IF_ERROR(Enter());
  GP_CHECK(work.point() != nullptr, "the device is to wait for work that is not its own");
  return StatusOf(port_.runtime.stream_wait_event(stream(queue), EventOf(work.point())), "waiting for an event");
}

bool GpuDevice::Await(const Completion& work, int64_t deadline_ns) {
  if (Device::Await(work, deadline_ns)) {
    return true;
  }
  (void)Fail(absl::InternalError(  // a late peer would be a deadline's
      fmt::format("{} has failed: its work is not over in time; restart the worker, and check the driver's log (dmesg) "
                  "if it fails again",
                  name_)));
  return Device::Await(work, DeviceDeadlineNs());  // the completer fails it
}

void GpuDevice::RunCompleter() {
  NameThisThread("gpu completer");
  (void)Enter();
  while (true) {
    const bool goes_on = SleepUntilRung();
    for (size_t queue = 0; queue < pending_.size(); ++queue) {
      CompleteQueue(queue);
    }
    if (const absl::Status status = health(); !status.ok()) {
      FailAll(status);
    }
    if (!goes_on) {
      return;
    }
  }
}

bool GpuDevice::SleepUntilRung() {
  bool waits_for_work = false;
  {
    const std::lock_guard lock(mutex_);
    if (closing_) {
      return false;
    }
    waits_for_work = pending_count_ > 0;
  }
  pollfd bell = {.fd = bell_->fd.get(), .events = POLLIN, .revents = 0};
  (void)poll(&bell, 1, waits_for_work ? kLookMs : -1);
  uint64_t rings = 0;
  (void)!read(bell_->fd.get(), &rings, sizeof(rings));
  const std::lock_guard lock(mutex_);
  return !closing_;
}

void GpuDevice::CompleteQueue(size_t queue) {
  while (true) {
    Pending work;
    {
      const std::lock_guard lock(mutex_);
      if (pending_[queue].empty() || !error_.ok()) {
        return;
      }
      work = pending_[queue].front();
    }
    const GpResult result = port_.runtime.event_query(EventOf(work.end));
    if (result == kGpNotReady || !StatusOf(result, "computing").ok()) {
      return;
    }
    const absl::StatusOr<std::pair<int64_t, int64_t>> times = TimesOf(work);
    if (!times.ok()) {
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      pending_[queue].pop_front();
      --pending_count_;
    }
    work.completion.Complete(times->first, times->second);
  }
}

absl::StatusOr<std::pair<int64_t, int64_t>> GpuDevice::TimesOf(const Pending& work) {
  const int64_t seen_ns = Clock::Real().NowNs();
  const GpEvent end = EventOf(work.end);
  int64_t since_anchor_ns = 0;
  GP_RETURN_IF_ERROR(StatusOf(port_.runtime.event_elapsed(EventOf(clock_->anchor()), end, &since_anchor_ns), "timing"));
  const int64_t ready_ns = clock_->HostNs(since_anchor_ns);
  int64_t begun_ns = std::min(work.begun_ns, ready_ns);
  if (work.begin != nullptr) {
    int64_t took_ns = 0;  // none from a mark in another queue that the device has not come to
    if (const GpResult result = port_.runtime.event_elapsed(EventOf(work.begin), end, &took_ns);
        result != kGpNotReady) {
      GP_RETURN_IF_ERROR(StatusOf(result, "timing"));
    }
    begun_ns = ready_ns - took_ns;
  }
  clock_->Note(work.end, since_anchor_ns, seen_ns);
  return std::pair(begun_ns, ready_ns);
}

void GpuDevice::FailAll(const absl::Status& why) {
  std::array<std::deque<Pending>, kQueues> failed;
  {
    const std::lock_guard lock(mutex_);
    failed.swap(pending_);
    pending_count_ = 0;
  }
  // Kernels' queue comes last: WaitIdle waits for its end.
  for (auto queued = failed.rbegin(); queued != failed.rend(); ++queued) {
    for (Pending& work : *queued) {
      work.completion.Fail(why);
    }
  }
}

}  // namespace geopipe
