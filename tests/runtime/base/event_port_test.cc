#include "runtime/base/event_port.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace geopipe {
namespace {

using std::chrono::nanoseconds;
using std::chrono::seconds;

TEST_CASE("a full inbox holds events back and loses none") {
  Inbox<int> inbox(2);
  EventPort<int> port(inbox);
  int posted = 0;
  for (int i = 1; i <= 5; ++i) {
    CHECK(port.Post(i, [&] { ++posted; }));
  }
  CHECK(posted == 2);
  int unary = 6;
  CHECK_FALSE(port.TryPost(unary));
  for (int i = 1; i <= 5; ++i) {
    CHECK(inbox.Pop(nanoseconds(0)) == i);
    port.RoomMade();
  }
  CHECK(posted == 5);
  CHECK(port.TryPost(unary));
}

TEST_CASE("a large event that waits is not overtaken by small ones") {
  Inbox<std::string> inbox(100, 100, [](const std::string& event) { return event.size(); });
  EventPort<std::string> port(inbox);
  const std::string small(40, 's');
  const std::string large(90, 'l');
  CHECK(port.Post(small, {}));
  CHECK(port.Post(small, {}));
  bool taken = false;
  CHECK(port.Post(large, [&] { taken = true; }));
  // There would be room for each of these now, or after the next Pop.
  CHECK(port.Post("tiny", {}));
  std::string unary = "unary";
  CHECK_FALSE(port.TryPost(unary));
  CHECK(inbox.Pop(nanoseconds(0)) == small);
  port.RoomMade();
  CHECK_FALSE(taken);
  CHECK(port.Post("later", {}));
  CHECK(inbox.Pop(nanoseconds(0)) == small);
  port.RoomMade();
  CHECK(taken);
  for (const char* next : {large.c_str(), "tiny", "later"}) {
    CHECK(inbox.Pop(nanoseconds(0)) == next);
    port.RoomMade();
  }
}

TEST_CASE("what waits when the inbox is closed is dropped, and nothing is taken any more") {
  Inbox<std::shared_ptr<int>> inbox(1);
  auto port = std::make_unique<EventPort<std::shared_ptr<int>>>(inbox);
  const auto event = std::make_shared<int>(7);
  bool called = false;
  CHECK(port->Post(event, {}));
  CHECK(port->Post(event, [&] { called = true; }));
  inbox.Close();
  CHECK_FALSE(port->Post(event, [&] { called = true; }));
  CHECK(inbox.Pop(nanoseconds(0)) == event);
  port->RoomMade();
  port.reset();
  CHECK_FALSE(called);
  CHECK(event.use_count() == 1);
}

// Does what gRPC's threads and the core's do: each sender gives its next event when the last one was taken, by whatever
// thread says so, and others try and go away.
TEST_CASE("many threads post through a small inbox: each sender's events come in order, and all come") {
  constexpr int kSenders = 4;
  constexpr int kEach = 500;
  using Event = std::pair<int, int>;  // sender, number
  Inbox<Event> inbox(3);
  EventPort<Event> port(inbox);
  std::vector<std::atomic<int>> taken(kSenders);
  std::vector<std::jthread> senders;
  for (int sender = 0; sender < kSenders; ++sender) {
    senders.emplace_back([&, sender] {
      for (int i = 0; i < kEach; ++i) {
        port.Post({sender, i}, [&, sender] {
          ++taken[sender];
          taken[sender].notify_one();
        });
        taken[sender].wait(i);
      }
    });
  }
  int taken_of_caller = 0;
  std::jthread caller([&] {
    for (int i = 0; i < kEach; ++i) {
      Event event{kSenders, taken_of_caller};
      taken_of_caller += port.TryPost(event) ? 1 : 0;
      std::this_thread::yield();
    }
  });
  std::vector<int> next(kSenders + 1, 0);
  for (int of_senders = 0; of_senders < kSenders * kEach;) {
    const std::optional<Event> event = inbox.Pop(seconds(60));
    REQUIRE(event.has_value());
    port.RoomMade();
    CHECK(event->second == next[event->first]++);
    of_senders += event->first < kSenders ? 1 : 0;
  }
  caller.join();
  while (inbox.Pop(nanoseconds(0)).has_value()) {
    ++next[kSenders];
  }
  CHECK(next[kSenders] == taken_of_caller);
}

}  // namespace
}  // namespace geopipe
