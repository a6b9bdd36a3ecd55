// Frames that come with other bytes than were sent, over a network that has to be given two seconds for frames to
// overtake each other.
#include <catch2/catch.hpp>
#include <utility>
#include <vector>

#include "runtime/transport/stream/reliable_stream.h"
#include "tests/runtime/transport/stream/stream_pair.h"
#include "tests/runtime/transport/stream/stream_world.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

constexpr int64_t kReorderingNs = 2 * kSecond;

// A pair over such a network.
Pair WidePair() { return Pair(2, 20, kReorderingNs); }

TEST_CASE("a chunk that came damaged is asked for at once, and only it goes again") {
  Pair pair = WidePair();
  pair.Up();
  REQUIRE(pair.Send(10).ok());
  CHECK(pair.MoveDamaging(pair.sender, pair.receiver, [](int frame) { return frame == 4; }) == 10);
  CHECK_FALSE(pair.receiver.NextDelivery().has_value());
  pair.Settle();  // no time passes, no timer fires
  CHECK(pair.receiver.counters().corrupt_frames == 1);
  CHECK(pair.receiver.counters().refused_frames == 0);
  CHECK(pair.receiver.counters().duplicate_frames == 0);
  CHECK(pair.sender.counters().frames_resent == 1);
  CHECK(pair.sender.counters().probes_sent == 1);  // the first path's
  CHECK(pair.sender.Acknowledged(kForward) == 1);
  const auto delivery = pair.receiver.NextDelivery();
  REQUIRE(delivery.has_value());
  const std::vector<std::byte>& memory = pair.memory[delivery->slot_id];
  CHECK(std::all_of(memory.begin(), memory.begin() + delivery->bytes,
                    [](std::byte byte) { return byte == std::byte{0x33}; }));
}

TEST_CASE("many damaged chunks of several messages are asked for in as many nacks as they need") {
  Pair pair = WidePair();
  pair.Up();
  REQUIRE(pair.Send(15).ok());
  REQUIRE(pair.Send(15).ok());
  pair.MoveDamaging(pair.sender, pair.receiver, [](int frame) { return frame % 2 == 0; });
  pair.Settle();
  CHECK(pair.receiver.counters().corrupt_frames == 15);
  CHECK(pair.sender.counters().frames_resent == 15);
  CHECK(pair.sender.Acknowledged(kForward) == 2);
}

TEST_CASE("a repetition that comes damaged is asked for again") {
  Pair pair = WidePair();
  pair.Up();
  REQUIRE(pair.Send(1).ok());
  for (int times = 0; times < 3; ++times) {
    CHECK(pair.MoveDamaging(pair.sender, pair.receiver, All) == 1);
    pair.now_ns += kMs;
    pair.Move(pair.receiver, pair.sender);
  }
  pair.Settle();
  CHECK(pair.sender.counters().frames_resent == 3);
  CHECK(pair.sender.Acknowledged(kForward) == 1);
}

TEST_CASE("a damaged header names nothing, and its chunk goes again after two round trips") {
  Pair pair = WidePair();
  pair.Up();
  REQUIRE(pair.Send(10).ok());
  pair.MoveDamaging(pair.sender, pair.receiver, None, [](int frame) { return frame == 9; });
  const int64_t begin_ns = pair.now_ns;
  for (int crossing = 0; crossing < 3; ++crossing) {  // the nack, the probe with its answer, the chunk
    pair.now_ns += 5 * kMs;
    pair.Move(pair.receiver, pair.sender);
    pair.now_ns += 5 * kMs;
    pair.Move(pair.sender, pair.receiver);
  }
  pair.Move(pair.receiver, pair.sender);
  CHECK(pair.now_ns - begin_ns == 30 * kMs);
  CHECK(pair.receiver.counters().corrupt_frames == 1);
  CHECK(pair.sender.counters().frames_resent == 1);
  CHECK(pair.receiver.counters().duplicate_frames == 0);
  CHECK(pair.sender.Acknowledged(kForward) == 1);
}

TEST_CASE("a damaged acknowledgement comes again without a timer") {
  Pair pair = WidePair();
  pair.Up();
  REQUIRE(pair.Send(4).ok());
  pair.Move(pair.sender, pair.receiver);
  pair.MoveDamaging(pair.receiver, pair.sender, None, All);
  CHECK(pair.sender.Acknowledged(kForward) == 0);
  pair.Settle();
  CHECK(pair.sender.Acknowledged(kForward) == 1);
  CHECK(pair.sender.counters().frames_resent == 0);
  CHECK(pair.sender.counters().corrupt_frames > 0);
}

TEST_CASE("a link that damages every frame costs a bounded number of repetitions") {
  Pair pair = WidePair();
  pair.Up();
  REQUIRE(pair.Send(100).ok());
  constexpr int kSeconds = 5;
  int64_t nacks = 0;
  for (const int64_t end_ns = pair.now_ns + kSeconds * kSecond; pair.now_ns < end_ns; pair.now_ns += kMs / 4) {
    pair.sender.OnTimer(pair.now_ns);
    while (pair.MoveDamaging(pair.sender, pair.receiver, All) > 0) {
      const int64_t before = pair.receiver.counters().frames_sent;
      pair.Move(pair.receiver, pair.sender);
      nacks += pair.receiver.counters().frames_sent - before;
    }
  }
  const int64_t budget = NackBudget::kAtOnce + kSeconds * kSecond / NackBudget::kIntervalNs;
  // Acknowledgements show chunks as lost besides, each every two seconds.
  CHECK(pair.sender.counters().frames_resent > NackBudget::kAtOnce);
  CHECK(pair.sender.counters().frames_resent <= budget + 100 * kSeconds / 2);
  CHECK(nacks <= budget + 100);
  CHECK(pair.receiver.failure().ok());
  // It recovers when the link does.
  for (int i = 0; i < 100 && pair.sender.outstanding(); ++i) {
    pair.FireTimer();
    pair.Settle();
  }
  CHECK(pair.sender.Acknowledged(kForward) == 1);
}

TEST_CASE("a peer that asks for everything again and again gets a bounded number of repetitions") {
  Pair pair = WidePair();
  pair.Up();
  REQUIRE(pair.Send(1).ok());
  const auto first = pair.sender.NextFrame(pair.now_ns);
  REQUIRE(first.has_value());
  const auto decoded = DecodeFrame(first->header, first->payload.bytes);
  REQUIRE(decoded.ok());
  const FrameEnvelope back{.job_hash = decoded->envelope.job_hash,
                           .epoch = decoded->envelope.epoch,
                           .from_session = decoded->envelope.to_session,
                           .to_session = decoded->envelope.from_session};
  const auto ask = [&](const NackedChunk& chunk, bool unnamed = false) {
    const auto header = EncodeNack(back, {.sent_ns = pair.now_ns, .unnamed = unnamed, .chunks = {chunk}});
    pair.sender.OnFrame(pair.now_ns, {header, {}, pair.now_ns});
    int frames = 0;
    while (pair.sender.NextFrame(pair.now_ns).has_value()) {
      ++frames;
    }
    return frames;
  };
  const NackedChunk sent{.channel = kForward, .sequence = 0, .offset = 0, .sent_ns = pair.now_ns};
  int frames = 0;
  for (int i = 0; i < 10'000; ++i) {
    frames += ask(sent);
  }
  CHECK(frames == NackBudget::kAtOnce);
  frames = 0;
  for (int i = 0; i < 10'000; ++i) {
    frames += ask(sent, true);
  }
  CHECK(frames == 0);
  pair.now_ns += kSecond;
  // Nor does it get what is not on its way.
  NackedChunk other = sent;
  other.sent_ns += 1;
  CHECK(ask(other) == 0);
  other = sent;
  other.sequence = 1;
  CHECK(ask(other) == 0);
  other = sent;
  other.offset = uint64_t{1} << 60;
  CHECK(ask(other) == 0);
  CHECK(ask(sent) == 1);
}

TEST_CASE("damage costs round trips, not the time that frames may overtake each other by") {
  int64_t corrupt = 0;
  int slow = 0;  // where a nack was damaged itself
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    LoopbackFaults faults;
    faults.corrupt = 0.005;
    faults.latency_ns = 5 * kMs;
    StreamWorld world(seed, faults, 20, 5000, kReorderingNs);
    const StreamWorld::Result result = world.Run(60 * kSecond, kSecond);
    INFO("seed " << seed);
    CHECK(result.error.empty());
    CHECK(result.duplicates <= result.corrupt);
    slow += result.finished_ns < kReorderingNs ? 0 : 1;
    corrupt += result.corrupt;
  }
  CHECK(corrupt > 200);
  CHECK(slow <= 5);
}

}  // namespace
}  // namespace geopipe
