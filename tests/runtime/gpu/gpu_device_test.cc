#include "runtime/gpu/gpu_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/gpu/open_port.h"
#include "runtime/tensor/staging.h"
#include "tests/support/gpu_emulator/emulated_gpu.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

constexpr int64_t kCount = 1000;
constexpr int64_t kBytes = kCount * 4;
const std::string kName = "GPU 0 (Emulated GPU, GPU-00000000-0000-0000-0000-000000000000)";

// The emulated GPU, begun anew, and its device.
struct Gpu {
  explicit Gpu(const std::string& settings = "", int32_t ordinal = 0)
      : emulated(settings), device(*GpuDevice::Open(EmulatedGpuLibrary(), ordinal)) {}

  GpEmulatorCounters counters() const { return emulated.counters(); }

  EmulatedGpu emulated;
  std::unique_ptr<GpuDevice> device;
};

std::string Seeded(int seed) { return "seed=" + std::to_string(seed); }

// y += 1: a kernel on the compute queue.
absl::Status AddOne(GpuDevice& device, std::byte* ones, std::byte* y) {
  const GpAxpy axpy = {
      .size = kCount, .alpha = 1, .x = reinterpret_cast<const float*>(ones), .y = reinterpret_cast<float*>(y)};
  if (const absl::Status status = device.Enter(); !status.ok()) {
    return status;
  }
  const int32_t error = device.port().kernels.axpy(&axpy, device.stream(Queue::kCompute));
  return device.StatusOf(device.port().runtime.launch_result(error), "adding");
}

// Device memory with these values in it.
std::byte* Filled(GpuDevice& device, float value) {
  std::byte* host = device.Allocate(kBytes, MemorySpace::kHost);
  std::fill_n(reinterpret_cast<float*>(host), kCount, value);
  std::byte* memory = device.Allocate(kBytes, MemorySpace::kDevice);
  REQUIRE(device.Copy(host, memory, kBytes, Queue::kCompute).ok());
  device.Free(host, kBytes, MemorySpace::kHost);
  return memory;
}

TEST_CASE("queues wait for each other as they are told, whatever the device's order") {
  std::set<float> without;
  for (int seed = 0; seed < TestSeeds(); ++seed) {
    INFO("seed " << seed);
    for (const bool waits : {true, false}) {
      const Gpu gpu(Seeded(seed));
      GpuDevice& device = *gpu.device;
      std::byte* ones = Filled(device, 1);
      std::byte* sum = Filled(device, 0);
      std::byte* host = device.Allocate(kBytes, MemorySpace::kHost);
      REQUIRE(AddOne(device, ones, sum).ok());
      REQUIRE(AddOne(device, ones, sum).ok());
      const Completion added = device.Record(Queue::kCompute);
      if (waits) {
        REQUIRE(device.After(Queue::kOut, added).ok());
      }
      REQUIRE(device.Copy(sum, host, kBytes, Queue::kOut).ok());
      REQUIRE(device.Wait(device.Record(Queue::kOut), DeviceDeadlineNs()).ok());
      const float seen = reinterpret_cast<const float*>(host)[kCount - 1];
      if (waits) {
        CHECK(seen == 2);
      } else {
        without.insert(seen == seen ? seen : -1);
      }
    }
  }
  CHECK(without.size() > 1);
}

TEST_CASE("work is over in the order of its queue, callbacks run on the device's thread, and times follow each other") {
  const Gpu gpu;
  GpuDevice& device = *gpu.device;
  const int64_t before_ns = Clock::Real().NowNs();
  std::byte* ones = Filled(device, 1);
  std::vector<Completion> works;
  std::vector<int> order;
  std::set<std::thread::id> threads;
  for (int i = 0; i < 20; ++i) {
    const Mark begun = device.Begin(Queue::kCompute);
    REQUIRE(AddOne(device, ones, ones).ok());
    works.push_back(device.Record(Queue::kCompute, begun));
    works.back().Then([&, i] {
      order.push_back(i);
      threads.insert(std::this_thread::get_id());
    });
  }
  REQUIRE(device.Wait(works.back(), DeviceDeadlineNs()).ok());
  CHECK(std::ranges::is_sorted(order));
  CHECK(order.size() == 20);
  int64_t last_ns = before_ns;
  for (const Completion& work : works) {
    CHECK(work.begun_ns() >= last_ns - 1'000'000);
    CHECK(work.ready_ns() >= work.begun_ns());
    last_ns = work.ready_ns();
  }
  CHECK(last_ns <= Clock::Real().NowNs() + 1'000'000);
  CHECK(threads.size() == 1);
}

TEST_CASE("nothing waits in the driver, and events are made once") {
  const Gpu gpu;
  GpuDevice& device = *gpu.device;
  std::byte* ones = Filled(device, 1);
  REQUIRE(device.WaitIdle(DeviceDeadlineNs()).ok());
  const int64_t waits = gpu.counters().waits;
  for (int i = 0; i < 10; ++i) {
    REQUIRE(AddOne(device, ones, ones).ok());
    REQUIRE(device.AfterAll(Queue::kOut).ok());
    REQUIRE(device.WaitIdle(DeviceDeadlineNs()).ok());
  }
  CHECK(gpu.counters().waits == waits);
  CHECK(device.counts().waits == 11);
}

TEST_CASE("memory that is freed goes back when the driver finds no more, behind the work that uses it") {
  const Gpu gpu("memory_bytes=16384");
  GpuDevice& device = *gpu.device;
  std::byte* ones = Filled(device, 1);
  std::byte* sum = Filled(device, 0);
  std::byte* host = device.Allocate(kBytes, MemorySpace::kHost);
  CHECK(reinterpret_cast<uintptr_t>(host) % 64 == 0);
  REQUIRE(AddOne(device, ones, sum).ok());
  REQUIRE(device.After(Queue::kOut, device.Record(Queue::kCompute)).ok());
  REQUIRE(device.Copy(sum, host, kBytes, Queue::kOut).ok());
  device.Free(ones, kBytes, MemorySpace::kDevice);
  device.Free(sum, kBytes, MemorySpace::kDevice);
  CHECK(gpu.counters().device_frees == 0);
  std::byte* large = device.Allocate(3 * kBytes, MemorySpace::kDevice);
  CHECK(large != nullptr);
  CHECK(gpu.counters().device_frees == 2);
  CHECK(reinterpret_cast<const float*>(host)[0] == 1);
  CHECK(device.Allocate(3 * kBytes, MemorySpace::kDevice) == nullptr);
  CHECK(device.health().ok());
  device.Free(large, 3 * kBytes, MemorySpace::kDevice);
}

TEST_CASE("a device gives all memory back when it is closed") {
  const EmulatedGpu emulated;
  {
    const std::unique_ptr<GpuDevice> device = *GpuDevice::Open(EmulatedGpuLibrary(), 0);
    Allocator allocator(1 << 20, *device);
    const Tensor tensor = *Tensor::Zeros(allocator.staging(), MemoryCategory::kWeights, DType::kFp32, {8});
    CHECK(ToDevice({tensor.Part(0, {8}), {}}, allocator, MemoryCategory::kWeights).ok());
  }
  const GpEmulatorCounters counters = emulated.counters();
  CHECK(counters.device_allocations > 0);
  CHECK(counters.device_frees == counters.device_allocations);
  CHECK(counters.host_frees == counters.host_allocations);
}

TEST_CASE("copies reach memory that was registered, until it is no more") {
  const Gpu gpu;
  GpuDevice& device = *gpu.device;
  void* mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(mapped != MAP_FAILED);
  auto* host = static_cast<std::byte*>(mapped);
  REQUIRE(device.Register(host, kBytes).ok());
  std::byte* fives = Filled(device, 5);
  REQUIRE(device.Copy(fives, host, kBytes, Queue::kCompute).ok());
  REQUIRE(device.WaitIdle(DeviceDeadlineNs()).ok());
  CHECK(reinterpret_cast<const float*>(host)[kCount - 1] == 5);
  device.Unregister(host);
  CHECK(gpu.counters().registrations == 1);
  CHECK(!device.Copy(fives, host, kBytes, Queue::kCompute).ok());
  munmap(mapped, kBytes);
}

TEST_CASE("a lost device fails all that it had to do, and all that follows, with one sentence") {
  const std::string fault = GENERATE("lost_at=2", "off_bus_at=2");
  const Gpu gpu(fault);
  GpuDevice& device = *gpu.device;
  std::byte* ones = Filled(device, 1);
  REQUIRE(AddOne(device, ones, ones).ok());
  const Completion copied = device.Record(Queue::kIn);
  (void)AddOne(device, ones, ones);
  const Completion lost = device.Record(Queue::kCompute);
  std::atomic<bool> told = false;
  lost.Then([&] { told = true; });
  const absl::Status status = device.Wait(lost, DeviceDeadlineNs());
  CHECK(told);
  CHECK(absl::IsInternal(status));
  const std::string sentence(status.message());
  CHECK_THAT(sentence, StartsWith(kName + " has failed: "));
  CHECK_THAT(sentence, Contains(fault == "lost_at=2" ? "illegal memory access" : "fallen off the bus"));
  CHECK_THAT(sentence, Contains("restart the worker"));
  CHECK(device.health() == status);
  CHECK(device.Enter() == status);
  CHECK(device.Copy(ones, ones, 1, Queue::kOut) == status);
  CHECK(device.Wait(device.Record(Queue::kGroup), DeviceDeadlineNs()) == status);
  CHECK(device.After(Queue::kOut, lost) == status);
  CHECK(device.WaitIdle(DeviceDeadlineNs()) == status);
  CHECK(device.Register(ones, kBytes) == status);
  Allocator allocator(1 << 20, device);
  CHECK(allocator.Allocate(64, MemoryCategory::kWorkspace).status() == status);
}

TEST_CASE("a kernel that never ends is one sentence at the deadline, and closing waits for nothing") {
  const Gpu gpu("stuck_at=1");
  GpuDevice& device = *gpu.device;
  std::byte* ones = Filled(device, 1);
  REQUIRE(AddOne(device, ones, ones).ok());
  const Completion stuck = device.Record(Queue::kCompute);
  const Completion other = device.Record(Queue::kOut);
  Allocator allocator(1 << 20, device);
  const Tensor tensor = *Tensor::Create(allocator, MemoryCategory::kWeights, DType::kFp32, {8});
  REQUIRE(FillFromHost(tensor, [](const Tensor&) { return absl::OkStatus(); }).ok());
  CHECK(device.Wait(other, DeviceDeadlineNs()).ok());
  const absl::Status status = device.Wait(stuck, Clock::Real().NowNs() + 1'000'000);
  CHECK(absl::IsInternal(status));
  CHECK_THAT(std::string(status.message()), StartsWith(kName + " has failed: its work is not over in time"));
  CHECK(device.health() == status);
}

TEST_CASE("memory runs out as one sentence, and the device goes on") {
  const Gpu gpu("out_of_memory_at=2");
  GpuDevice& device = *gpu.device;
  Allocator allocator(1 << 20, device);
  const Buffer first = *allocator.Allocate(kBytes, MemoryCategory::kWeights);
  const absl::StatusOr<Buffer> second = allocator.Allocate(kBytes, MemoryCategory::kActivations);
  CHECK(absl::IsResourceExhausted(second.status()));
  CHECK_THAT(std::string(second.status().message()), Contains("the device has no 4000 bytes for activations left"));
  CHECK(allocator.Allocate(kBytes, MemoryCategory::kActivations).ok());
}

TEST_CASE("devices are counted from 0, and one that is not there is an error with a remedy") {
  const EmulatedGpu emulated("devices=2");
  CHECK(GpuDevice::Check(EmulatedGpuLibrary(), 1).ok());
  const absl::Status none = GpuDevice::Check(EmulatedGpuLibrary(), 2);
  CHECK(absl::IsNotFound(none));
  CHECK(none.message() ==
        "GPU 2 cannot be used: this process sees 2, counted from 0; check the agent's devices and "
        "CUDA_VISIBLE_DEVICES");
  CHECK(GpuDevice::Open(EmulatedGpuLibrary(), -1).status().code() == absl::StatusCode::kNotFound);
  CHECK(absl::IsNotFound(GpuDevice::Check("/nowhere/libgeopipe_cuda.so", 0)));
  const std::unique_ptr<GpuDevice> second = *GpuDevice::Open(EmulatedGpuLibrary(), 1);
  CHECK(second->versions().name == "Emulated GPU");
  CHECK(second->versions().architecture == "sm_90");
  CHECK(second->versions().multiprocessors == 132);
  CHECK(second->versions().driver == "13.0");
  CHECK(second->versions().runtime == "13.0");
  CHECK(second->versions().cublas_lt == "emulated 13.1.0");
  CHECK(second->versions().kernels.size() == 64);
}

}  // namespace
}  // namespace geopipe
