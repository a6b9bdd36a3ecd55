// Due times: what devices whose time is kept are told of a message, over one host and over rehearsed links.
#include <catch2/catch.hpp>
#include <cstdlib>

#include "runtime/transport/stream/reliable_stream.h"
#include "tests/runtime/transport/stream/stream_pair.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

TEST_CASE("on one host a message is due when it was made, and its acknowledgement with it") {
  Pair pair(8);
  pair.now_ns += 1000 * kMs;
  pair.Up(true, true);
  pair.now_ns += 1000 * kMs;
  const int64_t made_ns = pair.now_ns - 7 * kMs;
  REQUIRE(pair.Send(3, made_ns).ok());
  REQUIRE(pair.Send(1).ok());
  pair.Settle();
  CHECK(pair.receiver.NextDelivery()->due_ns == made_ns);
  CHECK(pair.receiver.NextDelivery()->due_ns == 0);  // nobody keeps its time
  REQUIRE(pair.Send(2, made_ns).ok());
  pair.Settle();
  CHECK(pair.sender.Acknowledged(kForward) == 3);
  CHECK(pair.sender.AcknowledgedDueNs(kForward) == made_ns);
}

TEST_CASE("a due time is told only where the carrier keeps it, and not when it is far from now") {
  Pair far(8);
  far.Up();
  REQUIRE(far.Send(1, far.now_ns - kMs).ok());
  far.Settle();
  CHECK(far.receiver.NextDelivery()->due_ns == 0);
  CHECK(far.sender.AcknowledgedDueNs(kForward) == 0);

  Pair late(8);
  late.Up(true, true);
  const int64_t up_ns = late.now_ns;
  REQUIRE(late.Send(1, up_ns - 50 * kMs).ok());  // before there was a path
  late.now_ns += 3 * kMs;
  late.Settle();
  CHECK(late.receiver.NextDelivery()->due_ns == up_ns);
  late.now_ns += 5000 * kMs;
  REQUIRE(late.Send(1, up_ns + 1).ok());
  late.Settle();
  CHECK(late.receiver.NextDelivery()->due_ns == late.now_ns - 100 * kMs);
}

TEST_CASE("what goes again is due when it goes") {
  Pair pair(8);
  pair.Up(true, true);
  pair.now_ns += 1000 * kMs;
  const int64_t made_ns = pair.now_ns - kMs;
  REQUIRE(pair.Send(2, made_ns).ok());
  pair.Move(pair.sender, pair.receiver, [](int frame) { return frame == 1; });
  pair.now_ns += 20 * kMs;
  pair.FireTimer();
  pair.Settle();
  CHECK(pair.receiver.NextDelivery()->due_ns == pair.now_ns);
}

}  // namespace
}  // namespace geopipe
