#include <atomic>
#include <catch2/catch.hpp>
#include <string>

#include "runtime/base/files.h"
#include "tests/support/gpu_emulator/emulated_gpu.h"

namespace geopipe {
namespace {

using Catch::Matchers::Contains;

constexpr int64_t kElements = 16;
constexpr int64_t kVectorBytes = kElements * 4;

// A stream of launches on zeros.
struct Launches {
  explicit Launches(const EmulatedGpu& of) : gpu(of) {
    REQUIRE(gpu.runtime().fill(memory, 0, kVectorBytes, stream) == kGpOk);
  }
  GpResult Launch() {
    const GpAxpy axpy = {.size = kElements, .alpha = 1, .x = memory, .y = memory};
    return gpu.runtime().launch_result(gpu.port().kernels.axpy(&axpy, stream));
  }

  const EmulatedGpu& gpu;
  GpStream stream = gpu.Stream();
  float* memory = static_cast<float*>(gpu.DeviceMemory(kVectorBytes));
};

TEST_CASE("device memory ends at the planted call, once, and at its size") {
  const EmulatedGpu gpu("out_of_memory_at=2,memory_bytes=4096");
  void* memory = nullptr;
  CHECK(gpu.runtime().device_allocate(512, &memory) == kGpOk);
  CHECK(gpu.runtime().device_allocate(512, &memory) == kGpOutOfMemory);
  CHECK(memory == nullptr);
  CHECK_THAT(gpu.runtime().last_error(), Contains("cudaErrorMemoryAllocation") && Contains("512 of 4096 bytes"));
  CHECK(gpu.runtime().device_allocate(512, &memory) == kGpOk);
  void* rest = nullptr;
  CHECK(gpu.runtime().device_allocate(3073, &rest) == kGpOutOfMemory);
  CHECK(gpu.runtime().device_allocate(3072, &rest) == kGpOk);
  CHECK(gpu.runtime().device_free(memory) == kGpOk);
  CHECK(gpu.runtime().device_allocate(1, &memory) == kGpOk);
  CHECK(gpu.runtime().device_allocate(0, &memory) == kGpInvalid);
  CHECK(gpu.runtime().health() == kGpOk);
}

TEST_CASE("pinned memory ends at the planted call") {
  const EmulatedGpu gpu("host_out_of_memory_at=1");
  void* memory = nullptr;
  CHECK(gpu.runtime().host_allocate(512, &memory) == kGpOutOfMemory);
  CHECK(memory == nullptr);
  CHECK(gpu.runtime().host_allocate(512, &memory) == kGpOk);
}

TEST_CASE("an illegal address ends the device when its kernel runs, and for ever") {
  const EmulatedGpu gpu("lost_at=2");
  const GpRuntime& runtime = gpu.runtime();
  Launches launches(gpu);
  CHECK(launches.Launch() == kGpOk);
  CHECK(runtime.stream_synchronize(launches.stream) == kGpOk);
  std::atomic<bool> called = false;
  CHECK(launches.Launch() == kGpOk);  // it is lost later
  const GpHostFunction call = [](void* data) { *static_cast<std::atomic<bool>*>(data) = true; };
  (void)runtime.stream_call_host(launches.stream, call, &called);
  CHECK(runtime.stream_synchronize(launches.stream) == kGpDeviceLost);
  CHECK_THAT(runtime.last_error(), Contains("illegal memory access"));
  CHECK(runtime.health() == kGpDeviceLost);
  CHECK(runtime.stream_query(launches.stream) == kGpDeviceLost);
  CHECK(launches.Launch() == kGpDeviceLost);
  CHECK(runtime.device_free(launches.memory) == kGpDeviceLost);
  void* memory = nullptr;
  CHECK(runtime.device_allocate(1, &memory) == kGpDeviceLost);
  CHECK(runtime.use_device(0) == kGpDeviceLost);
  CHECK_FALSE(called);
}

TEST_CASE("a kernel that never runs loses no device") {
  const EmulatedGpu gpu("stuck_at=1,lost_at=2");
  Launches launches(gpu);
  CHECK(launches.Launch() == kGpOk);
  CHECK(launches.Launch() == kGpOk);
  CHECK(gpu.runtime().health() == kGpOk);
  CHECK(gpu.runtime().stream_query(launches.stream) == kGpNotReady);
}

TEST_CASE("a device that falls off the bus fails every call from there on") {
  const EmulatedGpu gpu("off_bus_at=2,devices=2");
  const GpRuntime& runtime = gpu.runtime();
  Launches launches(gpu);
  CHECK(launches.Launch() == kGpOk);
  CHECK(launches.Launch() == kGpDeviceLost);
  CHECK_THAT(runtime.last_error(), Contains("fallen off the bus"));
  CHECK(runtime.stream_synchronize(launches.stream) == kGpDeviceLost);
  CHECK(runtime.health() == kGpDeviceLost);
  CHECK(runtime.use_device(1) == kGpOk);  // the other stays
  CHECK(runtime.health() == kGpOk);
}

TEST_CASE("of all processes with the same settings, faults happen in one") {
  const TempFolder folder = *TempFolder::Create("geopipe-test-");
  const std::string settings = "lost_at=1,out_of_memory_at=2,once=" + (folder.path() / "once").string();
  for (const bool is_first : {true, false}) {
    const EmulatedGpu gpu(settings);  // as a process begins
    Launches launches(gpu);
    void* memory = nullptr;
    CHECK(gpu.runtime().device_allocate(512, &memory) == (is_first ? kGpOutOfMemory : kGpOk));
    CHECK(launches.Launch() == kGpOk);
    CHECK(gpu.runtime().stream_synchronize(launches.stream) == (is_first ? kGpDeviceLost : kGpOk));
  }
}

TEST_CASE("a stuck kernel holds its stream, and no other") {
  const EmulatedGpu gpu("stuck_at=1");
  const GpRuntime& runtime = gpu.runtime();
  Launches stuck(gpu);
  Launches free(gpu);
  REQUIRE(runtime.stream_synchronize(stuck.stream) == kGpOk);
  CHECK(stuck.Launch() == kGpOk);
  GpEvent behind = gpu.Event();
  REQUIRE(runtime.event_record(behind, stuck.stream) == kGpOk);
  CHECK(free.Launch() == kGpOk);
  CHECK(runtime.stream_synchronize(free.stream) == kGpOk);
  CHECK(runtime.event_query(behind) == kGpNotReady);
  CHECK(runtime.health() == kGpOk);
}

TEST_CASE("faults count products among the launches") {
  const EmulatedGpu gpu("lost_at=1");
  const GpProductShape shape = {.operand_type = kGpFp32,
                                .result_type = kGpFp32,
                                .a_transposed = 0,
                                .b_transposed = 0,
                                .m = 2,
                                .n = 2,
                                .k = 2,
                                .a_stride = 2,
                                .b_stride = 2,
                                .c_stride = 0,
                                .d_stride = 2,
                                .batch = 1,
                                .a_batch_stride = 0,
                                .b_batch_stride = 0,
                                .c_batch_stride = 0,
                                .d_batch_stride = 0,
                                .has_addend = 0,
                                .has_row = 0,
                                .a_alignment_bytes = 4,
                                .b_alignment_bytes = 4,
                                .c_alignment_bytes = 0,
                                .d_alignment_bytes = 4,
                                .row_alignment_bytes = 0,
                                .multiprocessors = 0,
                                .workspace_limit_bytes = 0};
  GpProductPlan* plan = nullptr;
  REQUIRE(gpu.port().products.make(&shape, &plan) == kGpOk);
  GpStream stream = gpu.Stream();
  const GpProductOperands operands = {
      .a = gpu.DeviceMemory(16), .b = gpu.DeviceMemory(16), .c = nullptr, .row = nullptr, .d = gpu.DeviceMemory(16)};
  CHECK(gpu.port().products.run(plan, &operands, nullptr, 0, stream) == kGpOk);
  CHECK(gpu.runtime().stream_synchronize(stream) == kGpDeviceLost);
  CHECK(gpu.counters().launches == 1);
  CHECK(gpu.counters().products == 1);
  CHECK(gpu.counters().plans == 1);
  gpu.port().products.destroy(plan);
}

}  // namespace
}  // namespace geopipe
