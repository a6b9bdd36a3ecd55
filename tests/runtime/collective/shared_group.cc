#include "tests/runtime/collective/shared_group.h"

#include <fmt/format.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <string>
#include <thread>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/collective/host_communicator.h"
#include "tests/support/durations.h"

namespace geopipe {

Allocator& SharedMemory() {
  static Allocator allocator(int64_t{4} << 30);
  return allocator;
}

std::vector<std::unique_ptr<Communicator>> SharedGroupOf(const GroupOptions& options) {
  static std::atomic<int> made = 0;
  const std::string name = fmt::format("test {} of {}", ++made, Clock::Real().NowNs());
  std::vector<std::unique_ptr<Communicator>> group(static_cast<size_t>(options.size));
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < options.size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto index = static_cast<size_t>(rank);
      auto communicator = MakeSharedMemoryCommunicator(
          {.rank = rank,
           .size = options.size,
           .own_thread = options.own_thread,
           .longest_wait_ns = options.longest_wait_ns,
           .allocator = &SharedMemory(),
           .watch = options.watches.empty() ? nullptr : options.watches[index]},
          {.name = name, .secret = "the secret", .join_deadline_ns = Clock::Real().NowNs() + 30 * kSecond});
      if (communicator.ok()) {
        group[index] = *std::move(communicator);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const auto& communicator : group) {
    REQUIRE(communicator != nullptr);
  }
  return group;
}

}  // namespace geopipe
