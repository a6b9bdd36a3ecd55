// Tests that messages and acknowledgements arrive when the carrier says that their frames do.
#include <catch2/catch.hpp>

#include "runtime/transport/stream/reliable_stream.h"
#include "tests/runtime/transport/stream/stream_pair.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

TEST_CASE("a message is there when its last frame is, and is acknowledged as of then") {
  Pair pair(8);
  pair.crossing_ns = 5 * kMs;
  pair.Up();
  pair.now_ns += 1000 * kMs;
  const int64_t ready_ns = pair.now_ns - 7 * kMs;  // the progress thread comes late
  REQUIRE(pair.Send(3, ready_ns).ok());
  pair.Settle();
  CHECK(pair.receiver.NextDelivery()->ready_ns == ready_ns + 5 * kMs);
  CHECK(pair.sender.Acknowledged(kForward) == 1);
  CHECK(pair.sender.AcknowledgedNs(kForward) == ready_ns + 10 * kMs);
}

TEST_CASE("what was ready before there was a path waited for it") {
  Pair pair(8);
  const int64_t up_ns = pair.now_ns;
  pair.Up();
  REQUIRE(pair.Send(1, up_ns - 50 * kMs).ok());
  pair.now_ns += 3 * kMs;
  pair.Settle();
  CHECK(pair.receiver.NextDelivery()->ready_ns == up_ns);
}

TEST_CASE("what goes again is ready when it goes") {
  Pair pair(8);
  pair.Up();
  pair.now_ns += 1000 * kMs;
  REQUIRE(pair.Send(2, pair.now_ns - kMs).ok());
  pair.Move(pair.sender, pair.receiver, [](int frame) { return frame == 1; });
  pair.now_ns += 20 * kMs;
  pair.FireTimer();
  pair.Settle();
  CHECK(pair.receiver.NextDelivery()->ready_ns == pair.now_ns);
}

}  // namespace
}  // namespace geopipe
