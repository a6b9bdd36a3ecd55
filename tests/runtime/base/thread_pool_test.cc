#include "runtime/base/thread_pool.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <vector>

namespace geopipe {
namespace {

TEST_CASE("every index is worked on once, whatever the number of threads, again and again") {
  for (const int32_t threads : {0, 1, 2, 5}) {
    ThreadPool pool(threads);
    for (const int64_t count : {0, 1, 2, 100, 3}) {
      std::vector<std::atomic<int>> visits(count);
      pool.For(count, [&](int64_t i) { ++visits[i]; });
      for (const std::atomic<int>& visit : visits) {
        CHECK(visit == 1);
      }
    }
  }
  CHECK(ThreadPool::Processors(1) == 1);
  CHECK(ThreadPool::Processors(4) >= 1);
  CHECK(ThreadPool::Processors(4) <= 4);
}

TEST_CASE("two threads work at once") {
  ThreadPool pool(2);
  std::atomic<int> met = 0;
  // Each waits for the other; with one thread this would never end.
  pool.For(2, [&](int64_t) {
    ++met;
    met.notify_all();
    while (met < 2) {
      met.wait(1);
    }
  });
  CHECK(met == 2);
}

}  // namespace
}  // namespace geopipe
