#include "tests/support/seeded_queues.h"

#include <catch2/catch.hpp>
#include <set>
#include <string>

#include "runtime/base/clock.h"

namespace geopipe {
namespace {

constexpr int64_t kLongNs = 20'000'000'000;

int64_t Soon() { return Clock::Real().NowNs() + kLongNs; }

// The order in which a seed runs two pieces on each of two queues.
std::string OrderOf(uint64_t seed, bool second_waits) {
  SeededQueues queues(seed, 2);
  queues.RunOnlyWhenAwaited();
  std::string order;
  queues.Enqueue(0, [&] { order += 'a'; });
  queues.Enqueue(0, [&] { order += 'b'; });
  if (second_waits) {
    queues.WaitFor(1, queues.Record(0));
  }
  queues.Enqueue(1, [&] { order += 'x'; });
  queues.Enqueue(1, [&] { order += 'y'; });
  const SeededQueues::EventPtr first = queues.Record(0);
  const SeededQueues::EventPtr second = queues.Record(1);
  REQUIRE(queues.Await(first, Soon()));
  REQUIRE(queues.Await(second, Soon()));
  return order;
}

TEST_CASE("seeds run queues in every order that keeps each queue's own, and a seed in one") {
  std::set<std::string> orders;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const std::string order = OrderOf(seed, /*second_waits=*/false);
    CHECK(OrderOf(seed, /*second_waits=*/false) == order);
    orders.insert(order);
  }
  CHECK(orders == std::set<std::string>{"abxy", "axby", "axyb", "xaby", "xayb", "xyab"});
}

TEST_CASE("a queue that waits for an event of another runs behind it, whatever the seed") {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    CHECK(OrderOf(seed, /*second_waits=*/true) == "abxy");
  }
}

TEST_CASE("the modelled clock runs queues at the same time, and hosts wait in it") {
  SeededQueues queues(1, 2);
  queues.Enqueue(
      0, [] {}, 100);
  const SeededQueues::EventPtr copied = queues.Record(0);
  queues.Enqueue(
      1, [] {}, 30);
  queues.WaitFor(1, copied);
  queues.Enqueue(
      1, [] {}, 50);
  const SeededQueues::EventPtr computed = queues.Record(1);
  REQUIRE(queues.Await(computed, Soon()));
  CHECK(copied->modelled_ns() == 100);
  CHECK(computed->modelled_ns() == 150);
  queues.Enqueue(
      0, [] {}, 10);  // given when the host knew of `computed`
  const SeededQueues::EventPtr last = queues.Record(0);
  REQUIRE(queues.Await(last, Soon()));
  CHECK(last->modelled_ns() == 160);
}

TEST_CASE("a held queue ends a wait by its deadline, and goes on when it is released") {
  SeededQueues queues(1, 1);
  queues.Hold(0);
  const SeededQueues::EventPtr held = queues.Record(0);
  CHECK_FALSE(queues.Await(held, Clock::Real().NowNs()));
  CHECK(queues.pending() == 2);
  queues.Release(0);
  CHECK(queues.Await(held, Soon()));
}

}  // namespace
}  // namespace geopipe
