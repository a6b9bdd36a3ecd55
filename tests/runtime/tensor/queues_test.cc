// Checks that memory which comes back while queues still use it is reused behind them, and no later than needed, on a
// device that runs its queues in orders drawn from seeds.
#include <catch2/catch.hpp>
#include <numeric>
#include <vector>

#include "runtime/tensor/allocator.h"
#include "runtime/tensor/staging.h"
#include "tests/support/sanitized.h"
#include "tests/support/seed.h"
#include "tests/support/seeded_device.h"

namespace geopipe {
namespace {

constexpr auto kTransport = MemoryCategory::kTransport;
constexpr auto kActivations = MemoryCategory::kActivations;
constexpr int64_t kElements = 16;

absl::Status Fill(SeededDevice& device, const Tensor& tensor, float value) {
  auto* const data = reinterpret_cast<float*>(SeededDevice::Real(tensor.address()));
  device.Enqueue([data, value] {
    std::fill_n(data, kElements, value);
    return absl::OkStatus();
  });
  return absl::OkStatus();
}

Tensor Make(Allocator& allocator) { return *Tensor::Create(allocator, kActivations, DType::kFp32, {kElements}); }

// Sends ten messages from memory that the next one, and kernels, take at once; returns what has arrived of each.
std::vector<float> SendOut(uint64_t seed, DeviceFault fault) {
  SeededDevice device(seed, fault);
  device.RunOnlyWhenAwaited();
  Allocator allocator(4 * kElements * 4, device);
  std::vector<Timed<Tensor>> messages;
  for (int i = 0; i < 10; ++i) {
    Tensor tensor = Make(allocator);
    REQUIRE(Fill(device, tensor, static_cast<float>(i)).ok());
    const Completion made = device.Record(Queue::kCompute);
    messages.push_back(*ToHost({std::move(tensor), made}));
  }
  std::vector<float> arrived;
  for (const Timed<Tensor>& message : messages) {
    REQUIRE(device.Wait(message.ready, DeviceDeadlineNs()).ok());
    arrived.push_back(message.value.fp32()[kElements - 1]);
  }
  return arrived;
}

// Receives ten messages into memory that kernels have just read; returns what they read.
std::vector<float> TakeIn(uint64_t seed, DeviceFault fault) {
  SeededDevice device(seed, fault);
  device.RunOnlyWhenAwaited();
  Allocator allocator(2 * kElements * 4, device);
  const Tensor sums = *Tensor::Zeros(allocator.staging(), kTransport, DType::kFp32, {10});
  for (int i = 0; i < 10; ++i) {
    Tensor host = *Tensor::Zeros(allocator.staging(), kTransport, DType::kFp32, {kElements});
    std::fill_n(host.fp32().data(), kElements, static_cast<float>(i));
    const Timed<Tensor> input = *ToDevice({std::move(host), {}}, allocator, kTransport);
    REQUIRE(device.After(Queue::kCompute, input.ready).ok());
    const auto* const data = reinterpret_cast<const float*>(SeededDevice::Real(input.value.address()));
    device.Enqueue([data, to = &sums.fp32()[i]] {
      *to = data[0] + data[kElements - 1];
      return absl::OkStatus();
    });
  }
  REQUIRE(device.WaitIdle(DeviceDeadlineNs()).ok());
  std::vector<float> taken(sums.fp32().begin(), sums.fp32().end());
  device.Drain();  // one that drops waits is not idle yet: copies still keep their staging buffers
  return taken;
}

const std::vector<float> kSent{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
const std::vector<float> kTaken{0, 2, 4, 6, 8, 10, 12, 14, 16, 18};

// True when some seed shows the fault.
template <class Run>
bool Shows(Run run, DeviceFault fault, const std::vector<float>& expected) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    if (run(seed, fault) != expected) {
      return true;
    }
  }
  return false;
}

TEST_CASE("messages leave and arrive whole, whoever takes their memory next, in every order of the queues") {
  const uint64_t first = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << first);
  for (int i = 0; i < TestSeeds(); ++i) {
    CHECK(SendOut(first + i, DeviceFault::kNone) == kSent);
    CHECK(TakeIn(first + i, DeviceFault::kNone) == kTaken);
  }
}

TEST_CASE("a wait between queues that is forgotten, memory that is free too early, and a landing too early show") {
  if (kThreadSanitized) {
    return;  // it sees the same faults its own way
  }
  CHECK(Shows(SendOut, DeviceFault::kDropsAfter, kSent));
  CHECK(Shows(TakeIn, DeviceFault::kDropsAfter, kTaken));
  if (kKeepsBlocks) {
    CHECK(Shows(TakeIn, DeviceFault::kLandsEarly, kTaken));
    CHECK(Shows(SendOut, DeviceFault::kReleasesEarly, kSent));
    CHECK(Shows(TakeIn, DeviceFault::kReleasesEarly, kTaken));
  }
}

TEST_CASE("a copy into memory that came back long ago does not wait for the kernels enqueued since") {
  SeededDevice device;
  Allocator allocator(1 << 20, device);
  { const Tensor old = Make(allocator); }
  (void)device.Record(Queue::kCompute);
  device.Hold(Queue::kCompute);
  Tensor host = *Tensor::Zeros(allocator.staging(), kTransport, DType::kFp32, {kElements});
  const Timed<Tensor> input = *ToDevice({std::move(host), {}}, allocator, kTransport);
  CHECK(device.Wait(input.ready, DeviceDeadlineNs()).ok());
  if (kKeepsBlocks) {
    CHECK(device.counts().allocations == 1);
  }
  device.Release(Queue::kCompute);
}

TEST_CASE("blocks that are kept ready are not asked of the device again") {
  SeededDevice device;
  Allocator allocator(1 << 20, device);
  const auto two = allocator.KeepReady(4 * kElements, 2);
  const auto one = allocator.KeepReady(4 * kElements, 1);
  REQUIRE(one.ok());
  REQUIRE(two.ok());
  CHECK(allocator.total().bytes == 0);
  const int64_t allocations = device.counts().allocations;
  {
    const Tensor first = Make(allocator);
    const Tensor second = Make(allocator);
    const Tensor third = Make(allocator);
    CHECK((!kKeepsBlocks || device.counts().allocations == allocations));
    CHECK_FALSE(allocator.KeepReady(1 << 20, 1).ok());
  }
}

TEST_CASE("blocks that are kept ready count as held, used or not, and make no room for others") {
  SeededDevice device;
  Allocator allocator(1 << 20, device, 1000);
  Allocator& staging = allocator.staging();
  const auto make = [&](int64_t bytes) { return staging.Allocate(bytes, kTransport); };
  REQUIRE(make(50).ok());  // comes back at once, and stays for the next
  absl::StatusOr<ReadyBlocks> ready = staging.KeepReady(100, 4);
  REQUIRE(ready.ok());
  if (kKeepsBlocks) {
    const int64_t allocations = device.counts().host_allocations;
    CHECK(staging.held().bytes == 400);
    {
      std::vector<Buffer> used;
      for (int64_t i = 1; i <= 5; ++i) {
        used.push_back(*make(100));
        CHECK(staging.held().bytes == std::max<int64_t>(400, i * 100));
      }
      CHECK(device.counts().host_allocations == allocations + 1);
      CHECK_FALSE(make(501).ok());
      CHECK(make(500).ok());  // in the place of the 50
    }
    CHECK(staging.held().bytes == 400);
    CHECK(staging.held().peak_bytes == 1000);
    CHECK_THAT(
        std::string(make(601).status().message()),
        Catch::Contains("of which 0 are in use (") && Catch::Contains(") and 400 are kept ready; give the host"));
    CHECK_FALSE(staging.Reserve(601, kTransport).ok());
    CHECK(make(600).ok());  // in the place of the fifth and the 500
    const int64_t before = device.counts().host_allocations;
    {
      std::vector<Buffer> used;
      for (int i = 0; i < 4; ++i) {
        used.push_back(*make(100));
      }
    }
    CHECK(device.counts().host_allocations == before);
    CHECK_FALSE(staging.KeepReady(100, 7).ok());
    staging.GiveBack();
    CHECK(staging.held().bytes == 400);
  }
  ready = ReadyBlocks();
  CHECK(staging.held().bytes == 0);
  CHECK(make(1000).ok());
}

TEST_CASE("blocks that are no longer kept ready are there for the next to ask") {
  SeededDevice device;
  Allocator allocator(1 << 20, device);
  REQUIRE(allocator.KeepReady(4 * kElements, 3).ok());
  const int64_t allocations = device.counts().allocations;
  REQUIRE(allocator.KeepReady(4 * kElements, 3).ok());
  CHECK((!kKeepsBlocks || device.counts().allocations == allocations));
}

TEST_CASE("a large tensor crosses in runs, through two of staging memory") {
  SeededDevice device(TestSeed());
  const int64_t elements = GENERATE(int64_t{8}, kRunBytes / 4 - 3, 2 * kRunBytes / 4 + 5, 5 * kRunBytes / 4);
  CAPTURE(elements);
  Allocator allocator(int64_t{1} << 30, device, 2 * kRunBytes);
  const Tensor tensor = *Tensor::Create(allocator, kActivations, DType::kInt32, {elements});
  const absl::Status filled = FillInRuns(tensor, [](const Tensor& host) {
    std::iota(host.int32().begin(), host.int32().end(), 7);
    return absl::OkStatus();
  });
  INFO(filled);
  REQUIRE(filled.ok());
  CHECK(allocator.staging().total().bytes == 0);
  int64_t wrong = 0;
  const absl::Status read = ReadOnHost(tensor, [&](const Tensor& host) {
    for (int64_t i = 0; i < elements; ++i) {
      wrong += host.int32()[i] == 7 + i ? 0 : 1;
    }
  });
  INFO(read);
  CHECK(read.ok());
  CHECK(wrong == 0);
  CHECK(allocator.staging().total().bytes == 0);
  const auto error = FillInRuns(tensor, [](const Tensor&) { return absl::DataLossError("torn"); });
  CHECK(error == absl::DataLossError("torn"));
}

TEST_CASE("staging memory has a limit of its own, which its error names") {
  SeededDevice device;
  Allocator allocator(1 << 20, device, 100);
  const Tensor tensor = *Tensor::Create(allocator, kActivations, DType::kFp32, {100});
  const auto staged = ToHost({tensor.Part(0, {100}), {}});
  CHECK(staged.status().code() == absl::StatusCode::kResourceExhausted);
  CHECK(staged.status().message() ==
        "400 bytes for transport do not fit into the 100 bytes of the host's memory that the device may move data "
        "through, of which 0 are in use (weights 0, gradients 0, optimizer 0, activations 0, workspace 0, transport 0, "
        "recovery 0); give the host more memory, or use fewer devices on it, or a smaller micro-batch or sequence");
  CHECK(allocator.staging().KeepReady(50, 2).ok());
  CHECK_FALSE(allocator.staging().KeepReady(50, 3).ok());
}

}  // namespace
}  // namespace geopipe
