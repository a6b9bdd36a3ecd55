#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "tests/support/gpu_emulator/emulated_gpu.h"

namespace geopipe {
namespace {

using Catch::Matchers::Contains;

constexpr int64_t kCount = 64;
constexpr int64_t kBytes = kCount * 4;

std::span<float> Floats(void* memory) { return {static_cast<float*>(memory), static_cast<size_t>(kCount)}; }

void FillWith(void* memory, float value) { std::ranges::fill(Floats(memory), value); }

// The number that a second stream reads where a first one writes 1, then 2, then 3.
float ReadBySecond(uint64_t seed, bool waits) {
  const EmulatedGpu gpu("seed=" + std::to_string(seed));
  const GpRuntime& runtime = gpu.runtime();
  GpStream writer = gpu.Stream();
  GpStream reader = gpu.Stream();
  GpEvent written = gpu.Event();
  void* device = gpu.DeviceMemory(kBytes);
  void* read = gpu.PinnedMemory(kBytes);
  for (const float value : {1.0F, 2.0F, 3.0F}) {
    void* source = gpu.PinnedMemory(kBytes);
    FillWith(source, value);
    REQUIRE(runtime.copy(source, device, kBytes, writer) == kGpOk);
  }
  REQUIRE(runtime.event_record(written, writer) == kGpOk);
  if (waits) {
    REQUIRE(runtime.stream_wait_event(reader, written) == kGpOk);
  }
  REQUIRE(runtime.copy(device, read, kBytes, reader) == kGpOk);
  REQUIRE(runtime.stream_synchronize(reader) == kGpOk);
  return Floats(read)[kCount - 1];
}

TEST_CASE("streams run in any order that events allow") {
  std::set<std::string> seen;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    INFO("seed " << seed);
    CHECK(ReadBySecond(seed, /*waits=*/true) == 3);
    const float value = ReadBySecond(seed, /*waits=*/false);
    seen.insert(std::isnan(value) ? "nothing" : std::to_string(static_cast<int>(value)));
  }
  CHECK(seen == std::set<std::string>{"1", "2", "3", "nothing"});
}

TEST_CASE("device memory is out of the host's reach and holds NaNs until it is written") {
  const EmulatedGpu gpu;
  void* device = gpu.DeviceMemory(kBytes);
  CHECK(reinterpret_cast<uintptr_t>(device) % 256 == 0);
  // The kernel reads for us: it answers where we would be killed.
  std::array<int, 2> ends = {};
  REQUIRE(pipe(ends.data()) == 0);
  CHECK(write(ends[1], device, 1) == -1);
  CHECK(errno == EFAULT);
  close(ends[0]);
  close(ends[1]);

  void* host = gpu.PinnedMemory(kBytes);
  CHECK(std::isnan(Floats(host)[0]));
  FillWith(host, 1);
  GpStream stream = gpu.Stream();
  REQUIRE(gpu.runtime().copy(device, host, kBytes, stream) == kGpOk);
  REQUIRE(gpu.runtime().stream_synchronize(stream) == kGpOk);
  CHECK(std::ranges::all_of(Floats(host), [](float value) { return std::isnan(value); }));

  REQUIRE(gpu.runtime().fill(device, 0, kBytes - 4, stream) == kGpOk);
  REQUIRE(gpu.runtime().copy(device, host, kBytes, stream) == kGpOk);
  REQUIRE(gpu.runtime().stream_synchronize(stream) == kGpOk);
  CHECK(Floats(host)[kCount - 2] == 0);
  CHECK(std::isnan(Floats(host)[kCount - 1]));
}

TEST_CASE("copies take device memory and pinned host memory alone, as a whole") {
  const EmulatedGpu gpu;
  const GpRuntime& runtime = gpu.runtime();
  GpStream stream = gpu.Stream();
  auto* device = static_cast<std::byte*>(gpu.DeviceMemory(kBytes));
  auto* pinned = static_cast<std::byte*>(gpu.PinnedMemory(kBytes));
  std::vector<std::byte> pageable(kBytes);
  CHECK(runtime.copy(pageable.data(), device, kBytes, stream) == kGpInvalid);
  CHECK_THAT(runtime.last_error(), Contains("neither in device memory nor in pinned host memory"));
  CHECK(runtime.copy(device, pageable.data(), kBytes, stream) == kGpInvalid);
  CHECK(runtime.copy(pinned + 8, device, kBytes, stream) == kGpInvalid);
  CHECK(runtime.copy(pinned, device + 8, kBytes, stream) == kGpInvalid);
  CHECK(runtime.copy(pinned + 8, device + 8, kBytes - 8, stream) == kGpOk);
  CHECK(runtime.fill(pinned, 0, kBytes, stream) == kGpInvalid);
  CHECK(runtime.fill(device + 8, 0, kBytes, stream) == kGpInvalid);
  CHECK(runtime.copy(pinned, device, kBytes, nullptr) == kGpInvalid);
  REQUIRE(runtime.device_free(device) == kGpOk);
  CHECK(runtime.copy(pinned, device, kBytes, stream) == kGpInvalid);
  CHECK(runtime.device_free(device) == kGpInvalid);
  CHECK(runtime.device_free(pinned) == kGpInvalid);
  CHECK(runtime.host_free(pinned) == kGpOk);
  CHECK(runtime.host_free(pinned) == kGpInvalid);
}

TEST_CASE("memory that the caller mapped can be registered once") {
  const EmulatedGpu gpu;
  const GpRuntime& runtime = gpu.runtime();
  const int file = memfd_create("state", 0);
  REQUIRE(ftruncate(file, 2 * kBytes) == 0);
  void* mapped = mmap(nullptr, 2 * kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  REQUIRE(mapped != MAP_FAILED);
  GpStream stream = gpu.Stream();
  void* device = gpu.DeviceMemory(kBytes);
  CHECK(runtime.copy(mapped, device, kBytes, stream) == kGpInvalid);
  REQUIRE(runtime.host_register(mapped, 2 * kBytes) == kGpOk);
  CHECK(runtime.host_register(static_cast<std::byte*>(mapped) + kBytes, kBytes) == kGpInvalid);
  CHECK_THAT(runtime.last_error(), Contains("cudaErrorHostMemoryAlreadyRegistered"));
  FillWith(mapped, 5);
  CHECK(runtime.copy(mapped, device, kBytes, stream) == kGpOk);
  CHECK(runtime.copy(device, static_cast<std::byte*>(mapped) + kBytes, kBytes, stream) == kGpOk);
  CHECK(runtime.stream_synchronize(stream) == kGpOk);
  CHECK(Floats(static_cast<std::byte*>(mapped) + kBytes)[7] == 5);
  CHECK(runtime.host_free(mapped) == kGpInvalid);
  REQUIRE(runtime.host_unregister(mapped) == kGpOk);
  CHECK(runtime.host_unregister(mapped) == kGpInvalid);
  CHECK(runtime.copy(mapped, device, kBytes, stream) == kGpInvalid);
  munmap(mapped, 2 * kBytes);
  close(file);
}

TEST_CASE("host functions are called behind the stream's work") {
  const EmulatedGpu gpu;
  const GpRuntime& runtime = gpu.runtime();
  GpStream stream = gpu.Stream();
  void* device = gpu.DeviceMemory(kBytes);
  void* host = gpu.PinnedMemory(kBytes);
  FillWith(host, 1);
  REQUIRE(runtime.fill(device, 0, kBytes, stream) == kGpOk);
  REQUIRE(runtime.copy(device, host, kBytes, stream) == kGpOk);
  struct Seen {
    const GpRuntime& runtime;
    void* host;
    std::atomic<float> value = -1;
    std::atomic<GpResult> call = kGpOk;
  } seen = {.runtime = runtime, .host = host};
  const GpHostFunction look = [](void* data) {
    auto* s = static_cast<Seen*>(data);
    s->value = Floats(s->host)[0];
    int32_t devices = 0;
    s->call = s->runtime.device_count(&devices);
  };
  REQUIRE(runtime.stream_call_host(stream, look, &seen) == kGpOk);
  GpEvent end = gpu.Event();
  REQUIRE(runtime.event_record(end, stream) == kGpOk);
  REQUIRE(runtime.event_synchronize(end) == kGpOk);
  CHECK(seen.value == 0);
  CHECK(seen.call == kGpInvalid);  // host functions may not call the port
}

TEST_CASE("queries tell work that is to do from work that is done") {
  const EmulatedGpu gpu("stuck_at=1");
  const GpRuntime& runtime = gpu.runtime();
  GpStream stream = gpu.Stream();
  GpEvent event = gpu.Event();
  CHECK(runtime.stream_query(stream) == kGpOk);
  CHECK(runtime.event_query(event) == kGpOk);  // never recorded

  void* device = gpu.DeviceMemory(kBytes);
  REQUIRE(runtime.fill(device, 0, kBytes, stream) == kGpOk);
  REQUIRE(runtime.event_record(event, stream) == kGpOk);
  REQUIRE(runtime.event_synchronize(event) == kGpOk);
  CHECK(runtime.event_query(event) == kGpOk);
  REQUIRE(runtime.stream_synchronize(stream) == kGpOk);
  CHECK(runtime.stream_query(stream) != kGpInvalid);

  const GpAxpy axpy = {.size = kCount, .alpha = 1, .x = static_cast<float*>(device), .y = static_cast<float*>(device)};
  REQUIRE(gpu.port().kernels.axpy(&axpy, stream) == 0);  // never ends
  REQUIRE(runtime.event_record(event, stream) == kGpOk);
  CHECK(runtime.event_query(event) == kGpNotReady);
  CHECK(runtime.stream_query(stream) == kGpNotReady);
  GpStream other = gpu.Stream();
  CHECK(runtime.stream_query(other) == kGpOk);
  REQUIRE(runtime.stream_wait_event(other, event) == kGpOk);
  CHECK(runtime.stream_query(other) == kGpNotReady);
}

TEST_CASE("events that are timed tell modelled time on request") {
  const EmulatedGpu gpu("clock=modelled");
  const GpRuntime& runtime = gpu.runtime();
  GpStream stream = gpu.Stream();
  GpEvent begin = gpu.Event(/*is_timed=*/true);
  GpEvent end = gpu.Event(/*is_timed=*/true);
  GpEvent untimed = gpu.Event();
  constexpr int64_t kLarge = 5'000'000;
  void* device = gpu.DeviceMemory(kLarge);
  void* host = gpu.PinnedMemory(kLarge);
  int64_t elapsed_ns = 0;
  CHECK(runtime.event_elapsed(begin, end, &elapsed_ns) == kGpInvalid);  // never recorded
  REQUIRE(runtime.event_record(begin, stream) == kGpOk);
  REQUIRE(runtime.copy(host, device, kLarge, stream) == kGpOk);
  REQUIRE(runtime.event_record(end, stream) == kGpOk);
  REQUIRE(runtime.event_record(untimed, stream) == kGpOk);
  REQUIRE(runtime.event_synchronize(untimed) == kGpOk);
  REQUIRE(runtime.event_elapsed(begin, end, &elapsed_ns) == kGpOk);
  CHECK(elapsed_ns == 102'000);  // 50 GB/s and 2 us
  CHECK(runtime.event_elapsed(begin, untimed, &elapsed_ns) == kGpInvalid);
}

TEST_CASE("objects belong to their device, and calls to the thread's current one") {
  const EmulatedGpu gpu("devices=2");
  const GpRuntime& runtime = gpu.runtime();
  GpStream stream = gpu.Stream();
  GpEvent event = gpu.Event();
  void* memory = gpu.DeviceMemory(kBytes);
  REQUIRE(runtime.use_device(1) == kGpOk);
  CHECK(runtime.stream_synchronize(stream) == kGpInvalid);
  CHECK(runtime.event_query(event) == kGpInvalid);
  CHECK(runtime.event_record(event, gpu.Stream()) == kGpInvalid);
  CHECK(runtime.fill(memory, 0, kBytes, gpu.Stream()) == kGpInvalid);
  CHECK(runtime.device_free(memory) == kGpInvalid);
  CHECK(runtime.event_destroy(event) == kGpInvalid);
  const GpAxpy axpy = {};
  CHECK(runtime.launch_result(gpu.port().kernels.axpy(&axpy, stream)) == kGpOk);  // nothing to do
  REQUIRE(runtime.use_device(0) == kGpOk);
  CHECK(runtime.stream_destroy(stream) == kGpOk);
  CHECK(runtime.stream_destroy(stream) == kGpInvalid);
  CHECK(runtime.event_destroy(event) == kGpOk);
  CHECK(runtime.event_destroy(event) == kGpInvalid);

  TheGpuEmulator().restart("");
  CHECK(runtime.health() == kGpInvalid);
  CHECK_THAT(runtime.last_error(), Contains("call use_device first"));
}

TEST_CASE("kernels run on streams, on device memory") {
  const EmulatedGpu gpu;
  const GpRuntime& runtime = gpu.runtime();
  GpStream stream = gpu.Stream();
  auto* x = static_cast<float*>(gpu.DeviceMemory(kBytes));
  auto* y = static_cast<float*>(gpu.DeviceMemory(kBytes));
  void* host = gpu.PinnedMemory(kBytes);
  FillWith(host, 2);
  REQUIRE(runtime.copy(host, x, kBytes, stream) == kGpOk);
  REQUIRE(runtime.fill(y, 0, kBytes, stream) == kGpOk);
  const GpAxpy axpy = {.size = kCount, .alpha = 3, .x = x, .y = y};
  REQUIRE(runtime.launch_result(gpu.port().kernels.axpy(&axpy, stream)) == kGpOk);
  REQUIRE(runtime.launch_result(gpu.port().kernels.axpy(&axpy, stream)) == kGpOk);
  REQUIRE(runtime.copy(y, host, kBytes, stream) == kGpOk);
  REQUIRE(runtime.stream_synchronize(stream) == kGpOk);
  CHECK(std::ranges::all_of(Floats(host), [](float value) { return value == 12; }));
  CHECK(runtime.launch_result(gpu.port().kernels.axpy(&axpy, nullptr)) == kGpInvalid);
  CHECK_THAT(runtime.last_error(), Contains("cudaErrorInvalidResourceHandle"));
}

TEST_CASE("calls are counted") {
  const EmulatedGpu gpu;
  const GpRuntime& runtime = gpu.runtime();
  GpStream stream = gpu.Stream();
  void* first = gpu.DeviceMemory(1000);
  void* second = gpu.DeviceMemory(24);
  void* host = gpu.PinnedMemory(1000);
  CHECK(gpu.counters().device_bytes == 1536);
  int64_t free_bytes = 0;
  int64_t total_bytes = 0;
  REQUIRE(runtime.memory_info(&free_bytes, &total_bytes) == kGpOk);
  CHECK(total_bytes - free_bytes == 1536);
  REQUIRE(runtime.copy(host, first, 1000, stream) == kGpOk);
  REQUIRE(runtime.fill(second, 0, 24, stream) == kGpOk);
  const GpAxpy axpy = {.size = 6, .alpha = 1, .x = static_cast<float*>(second), .y = static_cast<float*>(second)};
  REQUIRE(gpu.port().kernels.axpy(&axpy, stream) == 0);
  REQUIRE(runtime.stream_synchronize(stream) == kGpOk);
  REQUIRE(runtime.device_free(first) == kGpOk);
  const GpEmulatorCounters counters = gpu.counters();
  CHECK(counters.device_allocations == 2);
  CHECK(counters.device_frees == 1);
  CHECK(counters.host_allocations == 1);
  CHECK(counters.copies == 1);
  CHECK(counters.copied_bytes == 1000);
  CHECK(counters.fills == 1);
  CHECK(counters.launches == 1);
  CHECK(counters.waits == 1);
  CHECK(counters.products == 0);
  CHECK(counters.device_bytes == 512);
  CHECK(counters.peak_device_bytes == 1536);
}

}  // namespace
}  // namespace geopipe
