#include "runtime/gpu/cuda/cuda_runtime.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "runtime/gpu/cuda/cuda_error.h"

#ifndef GEOPIPE_KERNELS_SHA256
#error "the build defines GEOPIPE_KERNELS_SHA256"
#endif

namespace geopipe::cuda {
namespace {

cudaStream_t AsStream(GpStream stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t AsEvent(GpEvent event) { return static_cast<cudaEvent_t>(event); }

// CUDA takes a null stream for its default one, which waits for all others.
GpResult NoStream(const char* call) { return Report(call, kGpInvalid, "the stream is null"); }

template <size_t kSize>
void CopyText(std::array<char, kSize> const& from, char* to) {
  std::memcpy(to, from.data(), kSize);
}

GpResult LaunchResult(int32_t error) { return Report("kernel launch", static_cast<cudaError_t>(error)); }

GpResult Versions(GpVersions* versions) {
  *versions = {};
  int runtime = 0;
  if (const GpResult result = Report("cudaRuntimeGetVersion", cudaRuntimeGetVersion(&runtime)); result != kGpOk) {
    return result;
  }
  int driver = 0;  // stays 0 where none is installed
  if (const GpResult result = Report("cudaDriverGetVersion", cudaDriverGetVersion(&driver)); result != kGpOk) {
    return result;
  }
  versions->driver = driver;
  versions->runtime = runtime;
  versions->toolkit = CUDART_VERSION;
  versions->products = static_cast<int64_t>(cublasLtGetVersion());
  static_assert(sizeof(GEOPIPE_KERNELS_SHA256) == sizeof(versions->kernels));
  std::memcpy(versions->kernels, GEOPIPE_KERNELS_SHA256, sizeof(versions->kernels));
  std::snprintf(versions->products_name, sizeof(versions->products_name), "cuBLASLt");
  return kGpOk;
}

GpResult DeviceCount(int32_t* count) {
  *count = 0;
  const cudaError_t error = cudaGetDeviceCount(count);
  if (error == cudaErrorNoDevice) {
    cudaGetLastError();
    return kGpOk;
  }
  return Report("cudaGetDeviceCount", error);
}

// "GPU-8f3a1c2e-...": the form of nvidia-smi.
void WriteUuid(const cudaUUID_t& uuid, char* text, size_t bytes) {
  std::array<unsigned, 16> part = {};
  for (size_t i = 0; i < part.size(); ++i) {
    part[i] = static_cast<unsigned char>(uuid.bytes[i]);
  }
  std::snprintf(text, bytes, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", part[0],
                part[1], part[2], part[3], part[4], part[5], part[6], part[7], part[8], part[9], part[10], part[11],
                part[12], part[13], part[14], part[15]);
}

GpResult DeviceProperties(int32_t ordinal, GpDeviceProperties* properties) {
  *properties = {};
  cudaDeviceProp found = {};
  const GpResult result = Report("cudaGetDeviceProperties", cudaGetDeviceProperties(&found, ordinal));
  if (result != kGpOk) {
    return result;
  }
  std::snprintf(properties->name, sizeof(properties->name), "%s", found.name);
  WriteUuid(found.uuid, properties->uuid, sizeof(properties->uuid));
  std::snprintf(properties->pci_address, sizeof(properties->pci_address), "%04x:%02x:%02x.0",
                static_cast<unsigned>(found.pciDomainID) & 0xFFFFU, static_cast<unsigned>(found.pciBusID) & 0xFFU,
                static_cast<unsigned>(found.pciDeviceID) & 0xFFU);
  properties->architecture = 10 * found.major + found.minor;
  properties->multiprocessors = found.multiProcessorCount;
  properties->copy_engines = found.asyncEngineCount;
  properties->can_register_memory = found.hostRegisterSupported;
  properties->memory_bytes = static_cast<int64_t>(found.totalGlobalMem);
  properties->l2_cache_bytes = found.l2CacheSize;
  return kGpOk;
}

GpResult DeviceByUuid(const char* uuid, int32_t* ordinal) {
  int32_t count = 0;
  if (const GpResult result = DeviceCount(&count); result != kGpOk) {
    return result;
  }
  for (int32_t i = 0; i < count; ++i) {
    GpDeviceProperties properties = {};
    if (const GpResult result = DeviceProperties(i, &properties); result != kGpOk) {
      return result;
    }
    if (std::strcmp(properties.uuid, uuid) == 0) {
      *ordinal = i;
      return kGpOk;
    }
  }
  return Report(uuid, kGpInvalid, "no device that this process sees has this UUID; check CUDA_VISIBLE_DEVICES");
}

GpResult UseDevice(int32_t ordinal) {
  if (ordinal < 0 || ordinal >= kMaxDevices) {
    return Report("use_device", cudaErrorInvalidDevice);
  }
  // Waits that block sleep instead of spinning.
  static std::array<std::atomic<bool>, kMaxDevices> is_initialized = {};
  std::atomic<bool>& initialized = is_initialized[static_cast<size_t>(ordinal)];
  if (!initialized) {
    const GpResult result =
        Report("cudaInitDevice", cudaInitDevice(ordinal, cudaDeviceScheduleBlockingSync, cudaInitDeviceFlagsAreValid));
    if (result != kGpOk) {
      return result;
    }
    initialized = true;
  }
  return Report("cudaSetDevice", cudaSetDevice(ordinal));
}

GpResult MemoryInfo(int64_t* free_bytes, int64_t* total_bytes) {
  size_t free = 0;
  size_t total = 0;
  const GpResult result = Report("cudaMemGetInfo", cudaMemGetInfo(&free, &total));
  *free_bytes = static_cast<int64_t>(free);
  *total_bytes = static_cast<int64_t>(total);
  return result;
}

// Any call that reaches the context returns the error that ended it.
GpResult Health() {
  int64_t free_bytes = 0;
  int64_t total_bytes = 0;
  return MemoryInfo(&free_bytes, &total_bytes);
}

GpResult StreamCreate(GpStream* stream) {
  *stream = nullptr;
  cudaStream_t made = nullptr;
  const GpResult result = Report("cudaStreamCreate", cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
  *stream = made;
  return result;
}

GpResult StreamSynchronize(GpStream stream) {
  return stream == nullptr ? NoStream("cudaStreamSynchronize")
                           : Report("cudaStreamSynchronize", cudaStreamSynchronize(AsStream(stream)));
}

GpResult StreamDestroy(GpStream stream) {
  if (const GpResult result = StreamSynchronize(stream); result != kGpOk) {
    return result;
  }
  return Report("cudaStreamDestroy", cudaStreamDestroy(AsStream(stream)));
}

GpResult StreamQuery(GpStream stream) {
  return stream == nullptr ? NoStream("cudaStreamQuery") : Report("cudaStreamQuery", cudaStreamQuery(AsStream(stream)));
}

GpResult StreamWaitEvent(GpStream stream, GpEvent event) {
  return stream == nullptr ? NoStream("cudaStreamWaitEvent")
                           : Report("cudaStreamWaitEvent", cudaStreamWaitEvent(AsStream(stream), AsEvent(event), 0));
}

GpResult StreamCallHost(GpStream stream, GpHostFunction function, void* data) {
  return stream == nullptr ? NoStream("cudaLaunchHostFunc")
                           : Report("cudaLaunchHostFunc", cudaLaunchHostFunc(AsStream(stream), function, data));
}

GpResult EventCreate(int32_t is_timed, GpEvent* event) {
  *event = nullptr;
  cudaEvent_t made = nullptr;
  const unsigned flags = is_timed != 0 ? cudaEventBlockingSync : cudaEventBlockingSync | cudaEventDisableTiming;
  const GpResult result = Report("cudaEventCreate", cudaEventCreateWithFlags(&made, flags));
  *event = made;
  return result;
}

GpResult EventDestroy(GpEvent event) { return Report("cudaEventDestroy", cudaEventDestroy(AsEvent(event))); }

GpResult EventRecord(GpEvent event, GpStream stream) {
  return stream == nullptr ? NoStream("cudaEventRecord")
                           : Report("cudaEventRecord", cudaEventRecord(AsEvent(event), AsStream(stream)));
}

GpResult EventQuery(GpEvent event) { return Report("cudaEventQuery", cudaEventQuery(AsEvent(event))); }

GpResult EventSynchronize(GpEvent event) {
  return Report("cudaEventSynchronize", cudaEventSynchronize(AsEvent(event)));
}

GpResult EventElapsed(GpEvent begin, GpEvent end, int64_t* elapsed_ns) {
  float elapsed_ms = 0;
  const GpResult result =
      Report("cudaEventElapsedTime", cudaEventElapsedTime(&elapsed_ms, AsEvent(begin), AsEvent(end)));
  *elapsed_ns = std::llround(static_cast<double>(elapsed_ms) * 1e6);
  return result;
}

GpResult DeviceAllocate(int64_t bytes, void** memory) {
  *memory = nullptr;
  return Report("cudaMalloc", cudaMalloc(memory, static_cast<size_t>(bytes)));
}

GpResult DeviceFree(void* memory) { return Report("cudaFree", cudaFree(memory)); }

GpResult HostAllocate(int64_t bytes, void** memory) {
  *memory = nullptr;
  return Report("cudaHostAlloc", cudaHostAlloc(memory, static_cast<size_t>(bytes), cudaHostAllocPortable));
}

GpResult HostFree(void* memory) { return Report("cudaFreeHost", cudaFreeHost(memory)); }

GpResult HostRegister(void* memory, int64_t bytes) {
  return Report("cudaHostRegister", cudaHostRegister(memory, static_cast<size_t>(bytes), cudaHostRegisterPortable));
}

GpResult HostUnregister(void* memory) { return Report("cudaHostUnregister", cudaHostUnregister(memory)); }

// Unified addresses tell CUDA where each end lies.
GpResult Copy(const void* from, void* to, int64_t bytes, GpStream stream) {
  if (stream == nullptr) {
    return NoStream("cudaMemcpyAsync");
  }
  return Report("cudaMemcpyAsync",
                cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, AsStream(stream)));
}

GpResult Fill(void* memory, uint8_t byte, int64_t bytes, GpStream stream) {
  return stream == nullptr
             ? NoStream("cudaMemsetAsync")
             : Report("cudaMemsetAsync", cudaMemsetAsync(memory, byte, static_cast<size_t>(bytes), AsStream(stream)));
}

}  // namespace

const GpRuntime kRuntime = {
    .last_error = LastError,
    .launch_result = LaunchResult,
    .versions = Versions,
    .device_count = DeviceCount,
    .device_properties = DeviceProperties,
    .device_by_uuid = DeviceByUuid,
    .use_device = UseDevice,
    .health = Health,
    .memory_info = MemoryInfo,
    .stream_create = StreamCreate,
    .stream_destroy = StreamDestroy,
    .stream_query = StreamQuery,
    .stream_synchronize = StreamSynchronize,
    .stream_wait_event = StreamWaitEvent,
    .stream_call_host = StreamCallHost,
    .event_create = EventCreate,
    .event_destroy = EventDestroy,
    .event_record = EventRecord,
    .event_query = EventQuery,
    .event_synchronize = EventSynchronize,
    .event_elapsed = EventElapsed,
    .device_allocate = DeviceAllocate,
    .device_free = DeviceFree,
    .host_allocate = HostAllocate,
    .host_free = HostFree,
    .host_register = HostRegister,
    .host_unregister = HostUnregister,
    .copy = Copy,
    .fill = Fill,
};

}  // namespace geopipe::cuda
