#include "tests/support/gpu_emulator/emulated_runtime.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstring>

namespace geopipe::emulator {
namespace {

// Modelled speeds, of an H100 on PCIe 5: bytes per microsecond, and what every piece of work takes.
constexpr int64_t kCrossingBytesPerUs = 50'000;
constexpr int64_t kDeviceBytesPerUs = 1'500'000;
constexpr int64_t kStartNs = 2000;

int64_t DurationNs(int64_t bytes, int64_t bytes_per_us) { return kStartNs + bytes * 1000 / bytes_per_us; }

GpResult NoStream() { return ResultOf(kInvalidHandle); }
GpResult NoEvent() { return Fail(kGpInvalid, "no such event of the current device"); }
GpResult IfAlive(const Device& device) { return ResultOf(device.lost()); }

GpResult LaunchResult(int32_t error) { return ResultOf(error); }

GpResult Versions(Driver& driver, GpVersions* versions) {
  *versions = {};
  versions->driver = static_cast<int32_t>(driver.settings().driver);
  versions->runtime = static_cast<int32_t>(driver.settings().runtime);
  versions->toolkit = versions->runtime;
  versions->products = 130100;
  std::snprintf(versions->kernels, sizeof(versions->kernels), "%s", GEOPIPE_KERNELS_SHA256);
  std::snprintf(versions->products_name, sizeof(versions->products_name), "emulated");
  return kGpOk;
}

GpResult DeviceCount(Driver& driver, int32_t* count) {
  *count = 0;
  if (driver.settings().driver == 0) {
    return Fail(kGpUnsupported, "no driver is installed (cudaErrorInsufficientDriver)");
  }
  *count = static_cast<int32_t>(driver.settings().devices);
  return kGpOk;
}

Device* FindDevice(Driver& driver, int32_t ordinal) {
  Device* device = driver.settings().driver == 0 ? nullptr : driver.DeviceOf(ordinal);
  if (device == nullptr) {
    Fail(kGpInvalid, fmt::format("there is no device {} (cudaErrorInvalidDevice)", ordinal));
  }
  return device;
}

GpResult DeviceProperties(Driver& driver, int32_t ordinal, GpDeviceProperties* properties) {
  *properties = {};
  if (FindDevice(driver, ordinal) == nullptr) {
    return kGpInvalid;
  }
  std::snprintf(properties->name, sizeof(properties->name), "Emulated GPU");
  std::snprintf(properties->uuid, sizeof(properties->uuid), "GPU-00000000-0000-0000-0000-%012x",
                static_cast<unsigned>(ordinal));
  std::snprintf(properties->pci_address, sizeof(properties->pci_address), "0000:%02x:00.0",
                (static_cast<unsigned>(ordinal) + 1) & 0xFFU);
  properties->architecture = static_cast<int32_t>(driver.settings().architecture);
  properties->multiprocessors = 132;
  properties->copy_engines = 3;
  properties->can_register_memory = 1;
  properties->memory_bytes = driver.settings().memory_bytes;
  properties->l2_cache_bytes = int64_t{50} << 20;
  return kGpOk;
}

GpResult DeviceByUuid(Driver& driver, const char* uuid, int32_t* ordinal) {
  for (int32_t i = 0; driver.DeviceOf(i) != nullptr; ++i) {
    GpDeviceProperties properties = {};
    if (DeviceProperties(driver, i, &properties) == kGpOk && std::strcmp(properties.uuid, uuid) == 0) {
      *ordinal = i;
      return kGpOk;
    }
  }
  return Fail(kGpInvalid, fmt::format("{}: no device that this process sees has this UUID", uuid));
}

GpResult UseDevice(Driver& driver, int32_t ordinal) {
  Device* device = FindDevice(driver, ordinal);
  if (device == nullptr) {
    return kGpInvalid;
  }
  driver.Use(*device);
  return IfAlive(*device);
}

GpResult Health(Driver& /*driver*/, Device& device) { return IfAlive(device); }

GpResult MemoryInfo(Driver& driver, Device& device, int64_t* free_bytes, int64_t* total_bytes) {
  *total_bytes = driver.settings().memory_bytes;
  *free_bytes = *total_bytes - driver.AllocatedBytes(device);
  return kGpOk;
}

GpResult StreamCreate(Driver& driver, Device& device, GpStream* stream) {
  *stream = driver.OpenStream(device);
  return *stream == nullptr ? Fail(kGpInternal, fmt::format("a device has no more than {} streams", Device::kStreams))
                            : kGpOk;
}

GpResult StreamDestroy(Driver& driver, Device& device, GpStream handle) {
  Stream* stream = driver.StreamOf(device, handle);
  if (stream == nullptr) {
    return NoStream();
  }
  device.Synchronize(stream->line);
  driver.CloseStream(stream);
  return IfAlive(device);
}

GpResult StreamSynchronize(Driver& driver, Device& device, GpStream handle) {
  driver.Count(Counted::kWait);
  const Stream* stream = driver.StreamOf(device, handle);
  if (stream == nullptr) {
    return NoStream();
  }
  device.Synchronize(stream->line);
  return IfAlive(device);
}

GpResult StreamQuery(Driver& driver, Device& device, GpStream handle) {
  const Stream* stream = driver.StreamOf(device, handle);
  if (stream == nullptr) {
    return NoStream();
  }
  return device.IsIdle(stream->line) ? IfAlive(device) : kGpNotReady;
}

GpResult StreamWaitEvent(Driver& driver, Device& device, GpStream handle, GpEvent event) {
  const Stream* stream = driver.StreamOf(device, handle);
  SeededQueues::EventPtr last;
  bool is_timed = false;
  if (stream == nullptr || !driver.LastRecord(device, event, &last, &is_timed)) {
    return stream == nullptr ? NoStream() : NoEvent();
  }
  if (last != nullptr) {
    device.WaitFor(stream->line, last);
  }
  return kGpOk;
}

GpResult StreamCallHost(Driver& driver, Device& device, GpStream handle, GpHostFunction function, void* data) {
  const Stream* stream = driver.StreamOf(device, handle);
  if (stream == nullptr) {
    return NoStream();
  }
  driver.Count(Counted::kHostCall);
  device.Enqueue(
      stream->line, [function, data] { Driver::CallHost(function, data); }, kStartNs);
  return kGpOk;
}

GpResult EventCreate(Driver& driver, Device& device, int32_t is_timed, GpEvent* event) {
  *event = driver.OpenEvent(device, is_timed != 0);
  return kGpOk;
}

GpResult EventDestroy(Driver& driver, Device& device, GpEvent event) {
  return driver.CloseEvent(device, event) ? kGpOk : NoEvent();
}

GpResult EventRecord(Driver& driver, Device& device, GpEvent event, GpStream handle) {
  const Stream* stream = driver.StreamOf(device, handle);
  if (stream == nullptr) {
    return NoStream();
  }
  return driver.Record(device, event, *stream) ? kGpOk : NoEvent();
}

GpResult EventQuery(Driver& driver, Device& device, GpEvent event) {
  SeededQueues::EventPtr last;
  bool is_timed = false;
  if (!driver.LastRecord(device, event, &last, &is_timed)) {
    return NoEvent();
  }
  return last == nullptr || last->happened() ? IfAlive(device) : kGpNotReady;
}

GpResult EventSynchronize(Driver& driver, Device& device, GpEvent event) {
  driver.Count(Counted::kWait);
  SeededQueues::EventPtr last;
  bool is_timed = false;
  if (!driver.LastRecord(device, event, &last, &is_timed)) {
    return NoEvent();
  }
  if (last != nullptr) {
    device.Await(last);
  }
  return IfAlive(device);
}

GpResult EventElapsed(Driver& driver, Device& device, GpEvent begin, GpEvent end, int64_t* elapsed_ns) {
  *elapsed_ns = 0;
  SeededQueues::EventPtr begun;
  SeededQueues::EventPtr ended;
  bool is_begin_timed = false;
  bool is_end_timed = false;
  if (!driver.LastRecord(device, begin, &begun, &is_begin_timed) ||
      !driver.LastRecord(device, end, &ended, &is_end_timed)) {
    return NoEvent();
  }
  if (!is_begin_timed || !is_end_timed || begun == nullptr || ended == nullptr) {
    return Fail(kGpInvalid, "an event is not timed, or was never recorded (cudaErrorInvalidResourceHandle)");
  }
  if (!begun->happened() || !ended->happened()) {
    return kGpNotReady;
  }
  *elapsed_ns = driver.settings().is_clock_modelled ? ended->modelled_ns() - begun->modelled_ns()
                                                    : ended->real_ns() - begun->real_ns();
  return kGpOk;
}

GpResult DeviceAllocate(Driver& driver, Device& device, int64_t bytes, void** memory) {
  *memory = nullptr;
  const int64_t number = driver.Count(Counted::kDeviceAllocation);
  if (bytes < 1) {
    return Fail(kGpInvalid, fmt::format("{} bytes cannot be allocated", bytes));
  }
  if (!driver.Strikes(number, driver.settings().out_of_memory_at)) {
    *memory = driver.AllocateDevice(device, bytes);
  }
  return *memory != nullptr
             ? kGpOk
             : Fail(kGpOutOfMemory, fmt::format("{} bytes: out of memory (cudaErrorMemoryAllocation), "
                                                "{} of {} bytes are in use",
                                                bytes, driver.AllocatedBytes(device), driver.settings().memory_bytes));
}

GpResult DeviceFree(Driver& driver, Device& device, void* memory) {
  driver.Count(Counted::kDeviceFree);
  device.SynchronizeAll();
  if (device.lost() != 0) {
    return IfAlive(device);
  }
  return driver.FreeDevice(device, memory) ? kGpOk : Fail(kGpInvalid, "no such memory of the current device");
}

GpResult HostAllocate(Driver& driver, Device& /*device*/, int64_t bytes, void** memory) {
  *memory = nullptr;
  const int64_t number = driver.Count(Counted::kHostAllocation);
  if (bytes < 1) {
    return Fail(kGpInvalid, fmt::format("{} bytes cannot be allocated", bytes));
  }
  if (!driver.Strikes(number, driver.settings().host_out_of_memory_at)) {
    *memory = driver.AllocateHost(bytes);
  }
  return *memory != nullptr
             ? kGpOk
             : Fail(kGpOutOfMemory,
                    fmt::format("{} bytes of pinned memory: out of memory (cudaErrorMemoryAllocation)", bytes));
}

GpResult HostFree(Driver& driver, Device& device, void* memory) {
  driver.Count(Counted::kHostFree);
  device.SynchronizeAll();
  if (device.lost() != 0) {
    return IfAlive(device);
  }
  return driver.FreeHost(memory) ? kGpOk : Fail(kGpInvalid, "no such pinned memory");
}

GpResult HostRegister(Driver& driver, Device& /*device*/, void* memory, int64_t bytes) {
  driver.Count(Counted::kRegistration);
  if (memory == nullptr || bytes < 1) {
    return Fail(kGpInvalid, "there is no memory to register");
  }
  return driver.Register(memory, bytes)
             ? kGpOk
             : Fail(kGpInvalid, "part of it is pinned already (cudaErrorHostMemoryAlreadyRegistered)");
}

GpResult HostUnregister(Driver& driver, Device& device, void* memory) {
  device.SynchronizeAll();
  return driver.Unregister(memory) ? IfAlive(device)
                                   : Fail(kGpInvalid, "it is not registered (cudaErrorHostMemoryNotRegistered)");
}

GpResult Copy(Driver& driver, Device& device, const void* from, void* to, int64_t bytes, GpStream handle) {
  const Stream* stream = driver.StreamOf(device, handle);
  if (stream == nullptr) {
    return NoStream();
  }
  const bool is_from_device = driver.IsDeviceMemory(device, from, bytes);
  const bool is_to_device = driver.IsDeviceMemory(device, to, bytes);
  if (bytes < 0 || (!is_from_device && !driver.IsPinned(from, bytes)) ||
      (!is_to_device && !driver.IsPinned(to, bytes))) {
    return Fail(kGpInvalid, fmt::format("copy of {} bytes from {} to {}: an end lies neither in device memory nor in "
                                        "pinned host memory, or not as a whole",
                                        bytes, from, to));
  }
  driver.Count(Counted::kCopy);
  driver.Count(Counted::kCopiedByte, bytes);
  device.Enqueue(
      stream->line, [from, to, bytes] { std::memcpy(Real(to), Real(from), static_cast<size_t>(bytes)); },
      DurationNs(bytes, is_from_device && is_to_device ? kDeviceBytesPerUs : kCrossingBytesPerUs));
  return kGpOk;
}

GpResult Fill(Driver& driver, Device& device, void* memory, uint8_t byte, int64_t bytes, GpStream handle) {
  const Stream* stream = driver.StreamOf(device, handle);
  if (stream == nullptr) {
    return NoStream();
  }
  if (bytes < 0 || !driver.IsDeviceMemory(device, memory, bytes)) {
    return Fail(kGpInvalid, fmt::format("fill of {} bytes at {}: not device memory as a whole", bytes, memory));
  }
  driver.Count(Counted::kFill);
  device.Enqueue(
      stream->line, [memory, byte, bytes] { std::memset(Real(memory), byte, static_cast<size_t>(bytes)); },
      DurationNs(bytes, kDeviceBytesPerUs));
  return kGpOk;
}

}  // namespace

const GpRuntime kRuntime = {
    .last_error = LastError,
    .launch_result = LaunchResult,
    .versions = WithDriver<Versions>,
    .device_count = WithDriver<DeviceCount>,
    .device_properties = WithDriver<DeviceProperties>,
    .device_by_uuid = WithDriver<DeviceByUuid>,
    .use_device = WithDriver<UseDevice>,
    .health = OnDevice<Health>,
    .memory_info = OnDevice<MemoryInfo>,
    .stream_create = OnDevice<StreamCreate>,
    .stream_destroy = OnDevice<StreamDestroy>,
    .stream_query = OnDevice<StreamQuery>,
    .stream_synchronize = OnDevice<StreamSynchronize>,
    .stream_wait_event = OnDevice<StreamWaitEvent>,
    .stream_call_host = OnDevice<StreamCallHost>,
    .event_create = OnDevice<EventCreate>,
    .event_destroy = OnDevice<EventDestroy>,
    .event_record = OnDevice<EventRecord>,
    .event_query = OnDevice<EventQuery>,
    .event_synchronize = OnDevice<EventSynchronize>,
    .event_elapsed = OnDevice<EventElapsed>,
    .device_allocate = OnDevice<DeviceAllocate>,
    .device_free = OnDevice<DeviceFree>,
    .host_allocate = OnDevice<HostAllocate>,
    .host_free = OnDevice<HostFree>,
    .host_register = OnDevice<HostRegister>,
    .host_unregister = OnDevice<HostUnregister>,
    .copy = OnDevice<Copy>,
    .fill = OnDevice<Fill>,
};

}  // namespace geopipe::emulator
