#include "runtime/base/inbox.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

namespace geopipe {
namespace {

using std::chrono::nanoseconds;
using std::chrono::seconds;

TEST_CASE("An inbox gives events in order and refuses what does not fit") {
  Inbox<std::unique_ptr<int>> inbox(2);
  CHECK(inbox.Push(std::make_unique<int>(1)));
  CHECK(inbox.Push(std::make_unique<int>(2)));
  auto third = std::make_unique<int>(3);
  CHECK_FALSE(inbox.TryPush(third));
  REQUIRE(third != nullptr);
  CHECK(**inbox.Pop(seconds(1)) == 1);
  CHECK(inbox.TryPush(third));
  CHECK(**inbox.Pop(seconds(1)) == 2);
  CHECK(**inbox.Pop(seconds(1)) == 3);
  CHECK_FALSE(inbox.Pop(nanoseconds(0)).has_value());
}

TEST_CASE("An inbox is bounded in bytes, too, but takes one event of any size") {
  Inbox<size_t> inbox(4096, 512, [](size_t bytes) { return bytes; });
  size_t large = 1024;
  CHECK(inbox.TryPush(large));
  size_t empty = 0;
  CHECK_FALSE(inbox.TryPush(empty));
  CHECK(inbox.Pop(seconds(1)) == 1024);
  size_t half = 256;
  CHECK(inbox.TryPush(half));
  CHECK(inbox.TryPush(half));
  CHECK(inbox.TryPush(empty));
  size_t one = 1;
  CHECK_FALSE(inbox.TryPush(one));
  bool pushed = false;
  std::thread waiting([&] { pushed = inbox.Push(256); });
  CHECK(inbox.Pop(seconds(60)) == 256);
  waiting.join();
  CHECK(pushed);
  for (const size_t expected : {256, 0, 256}) {
    CHECK(inbox.Pop(seconds(1)) == expected);
  }
}

TEST_CASE("A closed inbox takes nothing more and can be emptied") {
  Inbox<int> inbox(4);
  CHECK(inbox.Push(1));
  inbox.Close();
  CHECK(inbox.closed());
  CHECK_FALSE(inbox.Push(2));
  CHECK(inbox.Pop(seconds(1)) == 1);
  CHECK_FALSE(inbox.Pop(seconds(60)).has_value());
}

TEST_CASE("Producers wait for room and nothing is lost") {
  constexpr int kProducers = 4;
  constexpr int kEach = 500;
  Inbox<std::pair<int, int>> inbox(3);
  std::vector<std::thread> producers;
  for (int producer = 0; producer < kProducers; ++producer) {
    producers.emplace_back([&inbox, producer] {
      for (int i = 0; i < kEach; ++i) {
        inbox.Push({producer, i});
      }
    });
  }
  std::vector<int> next(kProducers, 0);
  for (int i = 0; i < kProducers * kEach; ++i) {
    const auto event = inbox.Pop(seconds(60));
    REQUIRE(event.has_value());
    CHECK(event->second == next[static_cast<size_t>(event->first)]++);
  }
  for (std::thread& producer : producers) {
    producer.join();
  }
}

TEST_CASE("Closing wakes a producer that waits for room") {
  Inbox<int> inbox(1);
  CHECK(inbox.Push(1));
  bool taken = true;
  std::thread producer([&] { taken = inbox.Push(2); });
  inbox.Close();
  producer.join();
  CHECK_FALSE(taken);
}

}  // namespace
}  // namespace geopipe
