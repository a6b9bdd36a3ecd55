#include "runtime/gpu/cuda/cuda_runtime.h"

#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/runtime/gpu/cuda/cuda_stand_in.h"

namespace geopipe {
namespace {

using Catch::Matchers::Contains;

const GpRuntime& Runtime() { return cuda::kRuntime; }

void* At(uintptr_t address) { return reinterpret_cast<void*>(address); }
const GpStream kStream = At(3);
const GpEvent kEvent = At(4);

// The calls of CUDA that a call of the port makes, which succeeds.
std::string CallsOf(GpResult (*call)()) {
  TheCuda() = {};
  CHECK(call() == kGpOk);
  std::string calls;
  for (const std::string& made : TheCuda().calls) {
    calls += (calls.empty() ? "" : "; ") + made;
  }
  return calls;
}

TEST_CASE("each call of the port is one of CUDA, with the same arguments") {
  const std::vector<std::pair<GpResult (*)(), std::string>> cases = {
      {[] { return Runtime().health(); }, "cudaMemGetInfo"},
      {[] { return Runtime().stream_destroy(kStream); }, "cudaStreamSynchronize(3); cudaStreamDestroy(3)"},
      {[] { return Runtime().stream_query(kStream); }, "cudaStreamQuery(3)"},
      {[] { return Runtime().stream_synchronize(kStream); }, "cudaStreamSynchronize(3)"},
      {[] { return Runtime().stream_wait_event(kStream, kEvent); }, "cudaStreamWaitEvent(3, 4, 0)"},
      {[] { return Runtime().stream_call_host(kStream, nullptr, At(9)); }, "cudaLaunchHostFunc(3, 0, 9)"},
      {[] { return Runtime().event_destroy(kEvent); }, "cudaEventDestroy(4)"},
      {[] { return Runtime().event_record(kEvent, kStream); }, "cudaEventRecord(4, 3)"},
      {[] { return Runtime().event_query(kEvent); }, "cudaEventQuery(4)"},
      {[] { return Runtime().event_synchronize(kEvent); }, "cudaEventSynchronize(4)"},
      {[] { return Runtime().device_free(At(5)); }, "cudaFree(5)"},
      {[] { return Runtime().host_free(At(6)); }, "cudaFreeHost(6)"},
      {[] { return Runtime().host_register(At(7), 4096); }, "cudaHostRegister(7, 4096, portable)"},
      {[] { return Runtime().host_unregister(At(7)); }, "cudaHostUnregister(7)"},
      {[] { return Runtime().copy(At(7), At(5), 64, kStream); }, "cudaMemcpyAsync(to 5, from 7, 64, default, 3)"},
      {[] { return Runtime().fill(At(5), 255, 64, kStream); }, "cudaMemsetAsync(5, 255, 64, 3)"},
      {[] { return Runtime().use_device(1); }, "cudaInitDevice(1, blocking, valid); cudaSetDevice(1)"},
      {[] { return Runtime().use_device(1); }, "cudaSetDevice(1)"},  // initialised once
  };
  for (const auto& [call, calls] : cases) {
    CHECK(CallsOf(call) == calls);
  }
}

TEST_CASE("what CUDA makes is handed out, and nothing of what it failed to make") {
  TheCuda() = {};
  GpStream stream = nullptr;
  GpEvent timed = nullptr;
  GpEvent untimed = nullptr;
  void* device = nullptr;
  void* host = nullptr;
  CHECK(Runtime().stream_create(&stream) == kGpOk);
  CHECK(Runtime().event_create(1, &timed) == kGpOk);
  CHECK(Runtime().event_create(0, &untimed) == kGpOk);
  CHECK(Runtime().device_allocate(1000, &device) == kGpOk);
  CHECK(Runtime().host_allocate(2000, &host) == kGpOk);
  CHECK(stream == At(3));
  CHECK(timed == At(4));
  CHECK(device == At(5));
  CHECK(host == At(6));
  CHECK(TheCuda().calls == std::vector<std::string>{"cudaStreamCreate(non-blocking)",
                                                    "cudaEventCreate(blocking, timed)", "cudaEventCreate(blocking)",
                                                    "cudaMalloc(1000)", "cudaHostAlloc(2000, portable)"});
  TheCuda().error = cudaErrorMemoryAllocation;
  CHECK(Runtime().device_allocate(1000, &device) == kGpOutOfMemory);
  CHECK(device == nullptr);
  CHECK(Runtime().host_allocate(1000, &host) == kGpOutOfMemory);
  CHECK(host == nullptr);
}

TEST_CASE("no work goes to CUDA's default stream") {
  TheCuda() = {};
  CHECK(Runtime().copy(At(7), At(5), 64, nullptr) == kGpInvalid);
  CHECK(Runtime().fill(At(5), 0, 64, nullptr) == kGpInvalid);
  CHECK(Runtime().event_record(kEvent, nullptr) == kGpInvalid);
  CHECK(Runtime().stream_wait_event(nullptr, kEvent) == kGpInvalid);
  CHECK(Runtime().stream_call_host(nullptr, nullptr, nullptr) == kGpInvalid);
  CHECK(Runtime().stream_query(nullptr) == kGpInvalid);
  CHECK(Runtime().stream_synchronize(nullptr) == kGpInvalid);
  CHECK(Runtime().stream_destroy(nullptr) == kGpInvalid);
  CHECK_THAT(Runtime().last_error(), Contains("the stream is null"));
  CHECK(TheCuda().calls.empty());
}

TEST_CASE("devices are described as nvidia-smi does") {
  TheCuda() = {};
  GpDeviceProperties properties = {};
  REQUIRE(Runtime().device_properties(1, &properties) == kGpOk);
  CHECK(std::string(properties.name) == "NVIDIA H100 80GB HBM3");
  CHECK(std::string(properties.uuid) == "GPU-b0b1b2b3-b4b5-b6b7-b8b9-babbbcbdbebf");
  CHECK(std::string(properties.pci_address) == "0001:3c:02.0");
  CHECK(properties.architecture == 90);
  CHECK(properties.multiprocessors == 132);
  CHECK(properties.copy_engines == 3);
  CHECK(properties.can_register_memory == 1);
  CHECK(properties.memory_bytes == int64_t{80} << 30);
  CHECK(properties.l2_cache_bytes == 50 << 20);
  int32_t ordinal = -1;
  CHECK(Runtime().device_by_uuid("GPU-b0b1b2b3-b4b5-b6b7-b8b9-babbbcbdbebf", &ordinal) == kGpOk);
  CHECK(ordinal == 1);
  CHECK(Runtime().device_by_uuid("GPU-0", &ordinal) == kGpInvalid);
  CHECK_THAT(Runtime().last_error(), Contains("GPU-0") && Contains("CUDA_VISIBLE_DEVICES"));

  int32_t devices = -1;
  CHECK(Runtime().device_count(&devices) == kGpOk);
  CHECK(devices == 2);
  TheCuda().devices = 0;
  TheCuda().error = cudaErrorNoDevice;
  CHECK(Runtime().device_count(&devices) == kGpOk);
  CHECK(devices == 0);

  GpVersions versions = {};
  TheCuda().error = cudaSuccess;
  CHECK(Runtime().versions(&versions) == kGpOk);
  CHECK(versions.driver == 13010);
  CHECK(versions.runtime == 13000);
  CHECK(versions.toolkit == CUDART_VERSION);
  CHECK(versions.products == 130100);

  int64_t free_bytes = 0;
  int64_t total_bytes = 0;
  CHECK(Runtime().memory_info(&free_bytes, &total_bytes) == kGpOk);
  CHECK(free_bytes == 30);
  CHECK(total_bytes == 80);
}

TEST_CASE("times are nanoseconds") {
  TheCuda() = {};
  TheCuda().elapsed_ms = 1.5F;
  int64_t elapsed_ns = 0;
  CHECK(Runtime().event_elapsed(kEvent, At(8), &elapsed_ns) == kGpOk);
  CHECK(elapsed_ns == 1'500'000);
  CHECK(TheCuda().calls == std::vector<std::string>{"cudaEventElapsedTime(4, 8)"});
}

TEST_CASE("errors of CUDA are told apart by what remains possible") {
  const std::vector<std::pair<cudaError_t, GpResult>> cases = {
      {cudaErrorNotReady, kGpNotReady},
      {cudaErrorMemoryAllocation, kGpOutOfMemory},
      {cudaErrorIllegalAddress, kGpDeviceLost},
      {cudaErrorLaunchFailure, kGpDeviceLost},
      {cudaErrorECCUncorrectable, kGpDeviceLost},
      {cudaErrorUnknown, kGpDeviceLost},
      {cudaErrorInsufficientDriver, kGpUnsupported},
      {cudaErrorNoKernelImageForDevice, kGpUnsupported},
      {cudaErrorInvalidValue, kGpInvalid},
      {cudaErrorHostMemoryAlreadyRegistered, kGpInvalid},
      {cudaErrorSystemNotReady, kGpInternal},
  };
  for (const auto& [error, result] : cases) {
    INFO("error " << static_cast<int>(error));
    TheCuda() = {};
    TheCuda().error = error;
    CHECK(Runtime().event_query(kEvent) == result);
    CHECK(cudaPeekAtLastError() == cudaSuccess);  // taken: a later launch does not return it
    CHECK(Runtime().launch_result(error) == result);
  }
  TheCuda() = {};
  TheCuda().error = cudaErrorIllegalAddress;
  CHECK(Runtime().stream_synchronize(kStream) == kGpDeviceLost);
  CHECK(std::string(Runtime().last_error()) == "cudaStreamSynchronize: an error (Illegal)");
  CHECK(Runtime().launch_result(0) == kGpOk);
  CHECK(Runtime().use_device(64) == kGpInvalid);
  CHECK(Runtime().use_device(-1) == kGpInvalid);
}

}  // namespace
}  // namespace geopipe
