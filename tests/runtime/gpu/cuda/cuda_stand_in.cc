#include "tests/runtime/gpu/cuda/cuda_stand_in.h"

#include <cublasLt.h>
#include <fmt/format.h>

#include <cstdio>
#include <cstring>
#include <utility>

namespace geopipe {
namespace {

// Handles and addresses are small numbers here.
uintptr_t Number(const void* handle) { return reinterpret_cast<uintptr_t>(handle); }

template <class... Arguments>
cudaError_t Called(fmt::format_string<Arguments...> call, Arguments&&... arguments) {
  TheCuda().calls.push_back(fmt::format(call, std::forward<Arguments>(arguments)...));
  if (TheCuda().error != cudaSuccess) {
    TheCuda().remembered = TheCuda().error;
  }
  return TheCuda().error;
}

template <class T>
T Handle(uintptr_t number) {
  return reinterpret_cast<T>(number);
}

}  // namespace

CudaStandIn& TheCuda() {
  static CudaStandIn stand_in;
  return stand_in;
}

}  // namespace geopipe

using geopipe::Called;
using geopipe::Handle;
using geopipe::Number;
using geopipe::TheCuda;

extern "C" {

size_t cublasLtGetVersion() { return 130100; }

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13010;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return std::exchange(TheCuda().remembered, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return TheCuda().remembered; }
const char* cudaGetErrorString(cudaError_t /*error*/) { return "an error"; }
const char* cudaGetErrorName(cudaError_t error) { return error == cudaErrorIllegalAddress ? "Illegal" : "Other"; }

cudaError_t cudaGetDevice(int* device) {
  *device = TheCuda().device;
  return TheCuda().error;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = TheCuda().devices;
  return Called("cudaGetDeviceCount");
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "NVIDIA H100 80GB HBM3");
  for (size_t i = 0; i < sizeof(properties->uuid.bytes); ++i) {
    properties->uuid.bytes[i] = static_cast<char>(0xa0 + 16 * static_cast<size_t>(device) + i);
  }
  properties->pciDomainID = 1;
  properties->pciBusID = 0x3b + device;
  properties->pciDeviceID = 2;
  properties->major = 9;
  properties->minor = 0;
  properties->multiProcessorCount = 132;
  properties->asyncEngineCount = 3;
  properties->hostRegisterSupported = 1;
  properties->totalGlobalMem = size_t{80} << 30;
  properties->l2CacheSize = 50 << 20;
  return Called("cudaGetDeviceProperties({})", device);
}
cudaError_t cudaInitDevice(int device, unsigned device_flags, unsigned flags) {
  return Called("cudaInitDevice({}, {}, {})", device,
                device_flags == cudaDeviceScheduleBlockingSync ? "blocking" : "other",
                flags == cudaInitDeviceFlagsAreValid ? "valid" : "other");
}
cudaError_t cudaSetDevice(int device) { return Called("cudaSetDevice({})", device); }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = 30;
  *total = 80;
  return Called("cudaMemGetInfo");
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  *stream = Handle<cudaStream_t>(3);
  return Called("cudaStreamCreate({})", flags == cudaStreamNonBlocking ? "non-blocking" : "other");
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return Called("cudaStreamSynchronize({})", Number(stream)); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return Called("cudaStreamDestroy({})", Number(stream)); }
cudaError_t cudaStreamQuery(cudaStream_t stream) { return Called("cudaStreamQuery({})", Number(stream)); }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return Called("cudaStreamWaitEvent({}, {}, {})", Number(stream), Number(event), flags);
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return Called("cudaLaunchHostFunc({}, {}, {})", Number(stream), reinterpret_cast<uintptr_t>(function), Number(data));
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = Handle<cudaEvent_t>(4);
  return Called("cudaEventCreate({}{})", (flags & cudaEventBlockingSync) != 0 ? "blocking" : "spinning",
                (flags & cudaEventDisableTiming) != 0 ? "" : ", timed");
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return Called("cudaEventDestroy({})", Number(event)); }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return Called("cudaEventRecord({}, {})", Number(event), Number(stream));
}
cudaError_t cudaEventQuery(cudaEvent_t event) { return Called("cudaEventQuery({})", Number(event)); }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return Called("cudaEventSynchronize({})", Number(event)); }
cudaError_t cudaEventElapsedTime(float* elapsed_ms, cudaEvent_t begin, cudaEvent_t end) {
  *elapsed_ms = TheCuda().elapsed_ms;
  return Called("cudaEventElapsedTime({}, {})", Number(begin), Number(end));
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  *memory = TheCuda().error == cudaSuccess ? Handle<void*>(5) : nullptr;
  return Called("cudaMalloc({})", bytes);
}
cudaError_t cudaFree(void* memory) { return Called("cudaFree({})", Number(memory)); }
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned flags) {
  *memory = TheCuda().error == cudaSuccess ? Handle<void*>(6) : nullptr;
  return Called("cudaHostAlloc({}, {})", bytes, flags == cudaHostAllocPortable ? "portable" : "other");
}
cudaError_t cudaFreeHost(void* memory) { return Called("cudaFreeHost({})", Number(memory)); }
cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned flags) {
  return Called("cudaHostRegister({}, {}, {})", Number(memory), bytes,
                flags == cudaHostRegisterPortable ? "portable" : "other");
}
cudaError_t cudaHostUnregister(void* memory) { return Called("cudaHostUnregister({})", Number(memory)); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return Called("cudaMemcpyAsync(to {}, from {}, {}, {}, {})", Number(to), Number(from), bytes,
                kind == cudaMemcpyDefault ? "default" : "other", Number(stream));
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  return Called("cudaMemsetAsync({}, {}, {}, {})", Number(memory), value, bytes, Number(stream));
}

}  // extern "C"
