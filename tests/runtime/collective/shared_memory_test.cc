// Groups on one host: the ranks are threads, each with a mapping of its own.
#include <catch2/catch.hpp>

#include "optimizer/model/collective_memory.h"
#include "tests/runtime/collective/communicator_suite.h"
#include "tests/runtime/collective/shared_group.h"
#include "tests/support/sanitized.h"

namespace geopipe {
namespace {

TEST_CASE("shared memory: small operands") { CheckOperations(SharedGroupOf, {1, 2, 3, 4, 5, 6, 7, 8}, {1, 3, 17}); }

TEST_CASE("shared memory: about a slot of fp32") {
  CheckOperations(SharedGroupOf, {2, 3}, {kSharedSlotBytes / 4 - 1, kSharedSlotBytes / 4, kSharedSlotBytes / 4 + 1});
}

TEST_CASE("shared memory: several slots") {
  CheckOperations(SharedGroupOf, kSanitized ? std::vector<int32_t>{2} : std::vector<int32_t>{2, 4},
                  {5 * kSharedSlotBytes / 8 + 3});
  CheckOperations(SharedGroupOf, {7}, {20'011});
  CheckOperations(SharedGroupOf, {3}, {9 * kSharedSlotBytes / 8 + 5});  // large enough to be written past the caches
}

TEST_CASE("shared memory: two groups at once") { CheckTwoGroups(SharedGroupOf); }

TEST_CASE("shared memory: an abort ends all waits") { CheckAbort(SharedGroupOf); }

TEST_CASE("shared memory: a rank that does not come") { CheckDeadline(SharedGroupOf); }

TEST_CASE("shared memory: ranks in different operations") { CheckMismatch(SharedGroupOf); }

TEST_CASE("shared memory: what a rank holds is what the planner counts") {
  const int64_t before = SharedMemory().usage(MemoryCategory::kTransport).bytes;
  {
    const auto group = SharedGroupOf({.size = 3});
    const int64_t held = SharedMemory().usage(MemoryCategory::kTransport).bytes - before;
    CHECK(held <= 3 * SharedCollectiveBytes(3));
    CHECK(held > 3 * (SharedCollectiveBytes(3) - 1024));
  }
  CHECK(SharedMemory().usage(MemoryCategory::kTransport).bytes == before);
}

}  // namespace
}  // namespace geopipe
