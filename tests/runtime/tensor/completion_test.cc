#include "runtime/tensor/completion.h"

#include <catch2/catch.hpp>
#include <thread>
#include <vector>

#include "runtime/tensor/device.h"

namespace geopipe {
namespace {

TEST_CASE("what is known from the start is done, and calls back at once") {
  const Completion known(3, 7);
  CHECK(known.done());
  CHECK(known.begun_ns() == 3);
  CHECK(known.ready_ns() == 7);
  int calls = 0;
  known.Then([&] { ++calls; });
  CHECK(HostDevice().Wait(known, 0).ok());
  CHECK(calls == 1);
  CHECK(Completion().ready_ns() == 0);
  CHECK(Timed<int>{.value = 5, .ready = known}.ready_ns() == 7);
}

TEST_CASE("work under way is completed once, for all its copies, and calls back in order") {
  Completion pending = Completion::Pending();
  const Completion copy = pending;
  const Completion later = copy.NotBefore(50);
  CHECK_FALSE(later.done());
  std::vector<int> calls;
  copy.Then([&] { calls.push_back(1); });
  later.Then([&] { calls.push_back(2); });
  CHECK(calls.empty());
  pending.Complete(10, 20);
  CHECK(calls == std::vector<int>{1, 2});
  copy.Then([&] { calls.push_back(3); });
  CHECK(calls.back() == 3);
  CHECK(copy.begun_ns() == 10);
  CHECK(copy.ready_ns() == 20);
  CHECK(later.begun_ns() == 10);
  CHECK(later.ready_ns() == 50);
}

TEST_CASE("whoever waits is woken by the thread that completes") {
  Completion pending = Completion::Pending();
  std::thread device([pending]() mutable { pending.Complete(1, 2); });
  CHECK(HostDevice().Wait(pending, DeviceDeadlineNs()).ok());
  CHECK(pending.ready_ns() == 2);
  device.join();
}

}  // namespace
}  // namespace geopipe
