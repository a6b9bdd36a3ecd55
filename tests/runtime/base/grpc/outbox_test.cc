// Tests the outbox without gRPC, so that ThreadSanitizer can follow its threads.
#include "runtime/base/grpc/outbox.h"

#include <catch2/catch.hpp>
#include <thread>
#include <utility>
#include <vector>

namespace geopipe {
namespace {

TEST_CASE("an outbox without room drops what may not wait, and sends what waits after its close") {
  Outbox<int> outbox(2);
  outbox.Push(1);
  outbox.TryPush(2);
  outbox.TryPush(3);
  outbox.Close();
  outbox.Push(4);
  for (const int expected : {1, 2}) {
    const int* message = outbox.Front();
    REQUIRE(message != nullptr);
    CHECK(*message == expected);
    outbox.Pop();
  }
  CHECK(outbox.Front() == nullptr);
}

TEST_CASE("streams that break one after another send each message once, in order, from many threads") {
  constexpr int kSenders = 3;
  constexpr int kEach = 400;
  using Message = std::pair<int, int>;  // sender, number
  Outbox<Message> outbox(4);
  std::vector<std::jthread> senders;
  for (int sender = 0; sender < kSenders; ++sender) {
    senders.emplace_back([&outbox, sender] {
      for (int i = 0; i < kEach; ++i) {
        outbox.Push({sender, i});
      }
    });
  }
  std::vector<int> next(kSenders, 0);
  int sent = 0;
  bool in_order = true;
  for (int round = 0; sent < kSenders * kEach; ++round) {
    outbox.Resume();
    std::jthread stream([&, until = sent + 50] {
      while (const Message* message = outbox.Front()) {
        in_order = in_order && message->second == next[message->first]++;
        outbox.Pop();
        if (++sent == until || sent == kSenders * kEach) {
          return;
        }
      }
    });
    if (round % 2 == 1) {  // its reader finds the stream broken
      outbox.Interrupt();
    }
    stream.join();
  }
  CHECK(in_order);
  for (const int each : next) {
    CHECK(each == kEach);
  }
}

}  // namespace
}  // namespace geopipe
