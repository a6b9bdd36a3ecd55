#include "runtime/tensor/allocator.h"

#include <catch2/catch.hpp>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace geopipe {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("blocks are accounted by category and come back") {
  Allocator allocator(1000);
  {
    Buffer weights = *allocator.Allocate(100, MemoryCategory::kWeights);
    Buffer activations = *allocator.Allocate(250, MemoryCategory::kActivations);
    CHECK(allocator.usage(MemoryCategory::kWeights).bytes == 100);
    CHECK(allocator.usage(MemoryCategory::kActivations).bytes == 250);
    CHECK(allocator.usage(MemoryCategory::kTransport).bytes == 0);
    CHECK(allocator.total().bytes == 350);
  }
  CHECK(allocator.total().bytes == 0);
  CHECK(allocator.usage(MemoryCategory::kActivations).peak_bytes == 250);
  CHECK(allocator.total().peak_bytes == 350);
}

TEST_CASE("blocks are aligned to 64 bytes whatever their size") {
  Allocator allocator(1 << 20);
  std::vector<Buffer> buffers;
  for (int64_t bytes = 1; bytes < 300; bytes += 13) {
    buffers.push_back(*allocator.Allocate(bytes, MemoryCategory::kWorkspace));
    CHECK(reinterpret_cast<uintptr_t>(buffers.back().data()) % 64 == 0);
    CHECK(buffers.back().size() == bytes);
  }
}

TEST_CASE("an allocation over the limit names category, size, use by category and limit") {
  Allocator allocator(1000);
  const Buffer gradients = *allocator.Allocate(600, MemoryCategory::kGradients);
  CHECK(allocator.Allocate(400, MemoryCategory::kActivations).ok());  // exactly full, and back
  const absl::Status status = allocator.Allocate(401, MemoryCategory::kActivations).status();
  CHECK(status.code() == absl::StatusCode::kResourceExhausted);
  CHECK_THAT(std::string(status.message()), Contains("401 bytes for activations") && Contains("1000 bytes") &&
                                                Contains("600 are in use") && Contains("gradients 600") &&
                                                Contains("weights 0"));
  CHECK(allocator.total().bytes == 600);
}

// The host's memory is full.
class FullDevice final : public Device {
 public:
  MemorySpace space() const override { return MemorySpace::kHost; }
  void Free(std::byte*, int64_t, MemorySpace) override {}
  Mark Begin(Queue) override { return {}; }
  absl::Status After(Queue, const Completion&) override { return absl::OkStatus(); }

 protected:
  std::byte* AllocateMemory(int64_t, MemorySpace) override { return nullptr; }
  absl::Status EnqueueCopy(const std::byte*, std::byte*, int64_t, Queue) override { return absl::OkStatus(); }
  Completion EnqueueRecord(Queue, const Mark&) override { return {}; }
};

TEST_CASE("memory that the host has not is said to be the host's, and what was offloaded counts apart") {
  FullDevice full;
  Allocator none(1000, full);
  const absl::Status status = none.host().Allocate(2000, MemoryCategory::kOptimizer).status();
  CHECK(status.code() == absl::StatusCode::kResourceExhausted);
  CHECK_THAT(std::string(status.message()), Contains("the host has no 2000 bytes for optimizer beside the 0 in use"));
  CHECK_THAT(std::string(none.Allocate(1000, MemoryCategory::kOptimizer).status().message()),
             Contains("the device has no 1000 bytes for optimizer left, though this worker uses 0 of the 1000 that"));
  Allocator allocator(1000);
  const Buffer offloaded = *allocator.host().Allocate(2000, MemoryCategory::kOptimizer);
  CHECK(allocator.total().bytes == 0);
  CHECK(allocator.host().total().bytes == 2000);
}

TEST_CASE("blocks kept for reuse never count and never stand in the way of the limit") {
  Allocator allocator(1000);
  for (int64_t bytes = 900; bytes <= 1000; ++bytes) {
    CHECK(allocator.Allocate(bytes, MemoryCategory::kWorkspace).ok());
    CHECK(allocator.total().bytes == 0);
  }
}

TEST_CASE("memory that is taken elsewhere counts as long as its reservation lives") {
  Allocator allocator(1000);
  CHECK(allocator.Allocate(900, MemoryCategory::kWorkspace).ok());  // and kept for reuse
  {
    Reservation reserved = *allocator.Reserve(700, MemoryCategory::kRecovery);
    CHECK(allocator.usage(MemoryCategory::kRecovery).bytes == 700);
    CHECK_THAT(std::string(allocator.Reserve(301, MemoryCategory::kRecovery).status().message()),
               Contains("301 bytes for recovery do not fit") && Contains("recovery 700"));
    CHECK_FALSE(allocator.Allocate(301, MemoryCategory::kWeights).ok());
    CHECK(allocator.Allocate(300, MemoryCategory::kWeights).ok());
    Reservation moved = std::move(reserved);
    moved = *allocator.Reserve(100, MemoryCategory::kRecovery);
    CHECK(allocator.total().bytes == 100);
  }
  CHECK(allocator.total().bytes == 0);
}

TEST_CASE("a block changes its category without being copied") {
  Allocator allocator(1000);
  Buffer buffer = *allocator.Allocate(300, MemoryCategory::kActivations);
  const std::byte* data = buffer.data();
  buffer.SetCategory(MemoryCategory::kTransport);
  CHECK(buffer.data() == data);
  CHECK(allocator.usage(MemoryCategory::kActivations).bytes == 0);
  CHECK(allocator.usage(MemoryCategory::kTransport).bytes == 300);
  CHECK(allocator.total().bytes == 300);
  CHECK(allocator.total().peak_bytes == 300);
}

TEST_CASE("moving a block moves its ownership") {
  Allocator allocator(1000);
  Buffer a = *allocator.Allocate(10, MemoryCategory::kWeights);
  Buffer b = *allocator.Allocate(20, MemoryCategory::kWeights);
  b = std::move(a);
  CHECK(allocator.total().bytes == 10);
  CHECK(b.size() == 10);
  const Buffer c(std::move(b));
  CHECK(allocator.total().bytes == 10);
  CHECK(c.size() == 10);
}

TEST_CASE("two threads may allocate at once") {
  Allocator allocator(1 << 20);
  const auto churn = [&allocator] {
    for (int i = 1; i <= 500; ++i) {
      const auto buffer = allocator.Allocate(i, MemoryCategory::kTransport);
      if (buffer.ok()) {
        *buffer->data() = std::byte{1};
      }
    }
  };
  std::thread other(churn);
  churn();
  other.join();
  CHECK(allocator.total().bytes == 0);
}

}  // namespace
}  // namespace geopipe
