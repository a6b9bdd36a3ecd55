// The rules of the protocol one by one, frame by frame.
#include "runtime/transport/stream/reliable_stream.h"

#include <catch2/catch.hpp>
#include <functional>
#include <utility>
#include <vector>

#include "tests/runtime/transport/stream/stream_pair.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

TEST_CASE("a message waits for its slot, then arrives and is acknowledged") {
  Pair pair(1);
  REQUIRE(pair.Send(3).ok());
  REQUIRE(pair.Send(1).ok());
  CHECK_FALSE(pair.sender.NextFrame(pair.now_ns).has_value());
  pair.Up();
  CHECK(pair.sender.Acknowledged(kForward) == 1);
  const auto first = pair.receiver.NextDelivery();
  REQUIRE(first.has_value());
  CHECK(first->bytes == 3 * kChunkBytes);
  CHECK_FALSE(pair.receiver.NextDelivery().has_value());
  // Taking it is not enough: the next message goes when a slot is posted.
  pair.Settle();
  CHECK(pair.sender.Acknowledged(kForward) == 1);
  pair.receiver.Post(kForward, {.id = 5, .memory = pair.memory[0]});
  pair.Settle();
  CHECK(pair.sender.Acknowledged(kForward) == 2);
  CHECK(pair.receiver.NextDelivery()->slot_id == 5);
  CHECK(pair.sender.NextTimerNs() == kNeverNs);
  CHECK(pair.receiver.counters().refused_frames == 0);
}

TEST_CASE("on one host a grant waits for the acknowledgement of what arrives, if the sender has slots enough") {
  for (const bool same_host : {false, true}) {
    Pair pair(4);
    pair.Up(same_host);
    REQUIRE(pair.Send(1).ok());
    pair.Settle();
    const auto first = pair.receiver.NextDelivery();
    REQUIRE(first.has_value());
    REQUIRE(pair.Send(2).ok());
    REQUIRE(pair.Move(pair.sender, pair.receiver, [](int frame) { return frame == 1; }) == 2);
    pair.Move(pair.receiver, pair.sender);
    pair.receiver.Post(kForward, {.id = first->slot_id, .memory = pair.memory[first->slot_id]});
    INFO(same_host);
    CHECK(pair.Move(pair.receiver, pair.sender) == (same_host ? 0 : 1));
    // The next frames tell the sender that all slots are free.
    pair.FireTimer();
    pair.Settle();
    while (const auto delivery = pair.receiver.NextDelivery()) {
      pair.receiver.Post(kForward, {.id = delivery->slot_id, .memory = pair.memory[delivery->slot_id]});
    }
    pair.Settle();
    for (int message = 0; message < 3; ++message) {
      REQUIRE(pair.Send(1).ok());
    }
    CHECK(pair.Move(pair.sender, pair.receiver) == 3);
  }
}

TEST_CASE("a sender with few slots left is granted more at once") {
  Pair pair(2);
  pair.Up(true);
  REQUIRE(pair.Send(1).ok());
  pair.Settle();
  const auto first = pair.receiver.NextDelivery();
  REQUIRE(first.has_value());
  REQUIRE(pair.Send(2).ok());
  pair.Move(pair.sender, pair.receiver, [](int frame) { return frame == 1; });
  pair.Move(pair.receiver, pair.sender);
  pair.receiver.Post(kForward, {.id = first->slot_id, .memory = pair.memory[first->slot_id]});
  CHECK(pair.Move(pair.receiver, pair.sender) == 1);
}

TEST_CASE("payloads are checksummed unless they stay on the host") {
  for (const bool same_host : {false, true}) {
    Pair pair;
    pair.Up(same_host);
    REQUIRE(pair.Send(1).ok());
    const std::optional<OutgoingFrame> frame = pair.sender.NextFrame(pair.now_ns);
    REQUIRE(frame.has_value());
    const auto decoded = DecodeFrame(frame->header, frame->payload.bytes);
    REQUIRE(decoded.ok());
    CHECK(decoded->data.checksummed == !same_host);
  }
}

TEST_CASE("only the lost chunk goes again") {
  Pair pair;
  pair.Up();
  REQUIRE(pair.Send(10).ok());
  CHECK(pair.Move(pair.sender, pair.receiver, [](int frame) { return frame == 4; }) == 10);
  // The gap was acknowledged at once, but frames might yet overtake each other: only later ones prove the loss.
  pair.now_ns += 10 * kMs;
  pair.Move(pair.receiver, pair.sender);
  pair.FireTimer();
  pair.Settle();
  CHECK(pair.sender.counters().frames_resent == 1);
  CHECK(pair.receiver.counters().duplicate_frames == 0);
  CHECK(pair.receiver.NextDelivery().has_value());
}

TEST_CASE("a lost tail comes again by timer") {
  Pair pair;
  pair.Up();
  REQUIRE(pair.Send(1).ok());
  pair.Move(pair.sender, pair.receiver, All);
  pair.FireTimer();
  pair.Settle();
  CHECK(pair.sender.counters().probes_sent >= 1);
  CHECK(pair.sender.counters().frames_resent == 1);
  CHECK(pair.sender.Acknowledged(kForward) == 1);
}

TEST_CASE("a lost acknowledgement costs a probe and no payload") {
  Pair pair;
  pair.Up();
  REQUIRE(pair.Send(4).ok());
  pair.Move(pair.sender, pair.receiver);
  pair.Move(pair.receiver, pair.sender, All);
  CHECK(pair.sender.Acknowledged(kForward) == 0);
  pair.FireTimer();
  pair.Settle();
  CHECK(pair.sender.Acknowledged(kForward) == 1);
  CHECK(pair.sender.counters().frames_resent == 0);
}

TEST_CASE("a lost grant of credit comes again by timer") {
  Pair pair(1);
  pair.Up();
  REQUIRE(pair.Send(1).ok());
  pair.Settle();
  REQUIRE(pair.Send(1).ok());
  REQUIRE(pair.receiver.NextDelivery().has_value());
  pair.receiver.Post(kForward, {.id = 1, .memory = pair.memory[0]});
  CHECK(pair.Move(pair.receiver, pair.sender, All) == 1);
  CHECK_FALSE(pair.sender.NextFrame(pair.now_ns).has_value());
  pair.FireTimer();
  pair.Settle();
  CHECK(pair.sender.Acknowledged(kForward) == 2);
}

TEST_CASE("probes back off, and stop when the peer was silent too long") {
  Pair pair;
  pair.Up();
  REQUIRE(pair.Send(1).ok());
  const int64_t begin_ns = pair.now_ns;
  int64_t last_ns = begin_ns;
  int64_t last_gap_ns = 0;
  int probes = 0;
  while (pair.sender.failure().ok() && probes < 100) {
    pair.Move(pair.sender, pair.receiver, All);
    pair.FireTimer();
    const int64_t gap_ns = pair.now_ns - last_ns;
    CHECK((probes > 4 || gap_ns > last_gap_ns));
    last_gap_ns = gap_ns;
    last_ns = pair.now_ns;
    ++probes;
  }
  CHECK(probes < 15);
  CHECK(pair.now_ns - begin_ns == 10'000 * kMs);
  CHECK(pair.sender.failure().code() == absl::StatusCode::kUnavailable);
  CHECK(pair.sender.NextTimerNs() == kNeverNs);
}

TEST_CASE("a peer that answers but takes nothing is waited for") {
  Pair pair(1);
  pair.Up();
  REQUIRE(pair.Send(1).ok());
  REQUIRE(pair.Send(1).ok());
  pair.Settle();
  const int64_t begin_ns = pair.now_ns;
  while (pair.now_ns < begin_ns + 60'000 * kMs) {
    pair.FireTimer();
    pair.Settle();
  }
  CHECK(pair.sender.failure().ok());
  CHECK(pair.sender.counters().probes_sent < 40);
}

TEST_CASE("when the path comes back exactly what is missing goes at once") {
  Pair pair;
  pair.Up();
  REQUIRE(pair.Send(10).ok());
  pair.Move(pair.sender, pair.receiver, [](int frame) { return frame >= 6; });
  pair.sender.OnPeerDown(pair.now_ns);
  pair.receiver.OnPeerDown(pair.now_ns);
  pair.now_ns += 500 * kMs;
  const int64_t before_ns = pair.now_ns;
  pair.Up();
  CHECK(pair.now_ns == before_ns);
  CHECK(pair.sender.Acknowledged(kForward) == 1);
  CHECK(pair.sender.counters().frames_resent == 4);
  CHECK(pair.receiver.counters().duplicate_frames == 0);
}

TEST_CASE("frames of another job, epoch or session are refused") {
  Pair pair;
  pair.Up();
  REQUIRE(pair.Send(1).ok());
  const auto frame = pair.sender.NextFrame(pair.now_ns);
  REQUIRE(frame.has_value());
  const auto decoded = DecodeFrame(frame->header, frame->payload.bytes);
  REQUIRE(decoded.ok());
  const auto offer = [&](FrameEnvelope envelope) {
    const auto header = EncodeData(envelope, decoded->data, frame->payload.bytes);
    pair.receiver.OnFrame(pair.now_ns, {header, frame->payload.bytes, pair.now_ns});
  };
  FrameEnvelope wrong = decoded->envelope;
  wrong.job_hash = 9;
  offer(wrong);
  wrong = decoded->envelope;
  wrong.epoch = 1;
  offer(wrong);
  wrong = decoded->envelope;
  wrong.to_session = 99;
  offer(wrong);
  CHECK(pair.receiver.counters().refused_frames == 3);
  CHECK_FALSE(pair.receiver.NextDelivery().has_value());
  CHECK(pair.receiver.failure().ok());
  offer(decoded->envelope);
  CHECK(pair.receiver.NextDelivery().has_value());
}

TEST_CASE("a restarted peer is told from a hiccup") {
  Pair pair;
  pair.Up();
  Pair other(2, 21);  // the receiver's next life
  other.receiver.OnPeerUp(pair.now_ns);
  pair.Move(other.receiver, pair.sender);
  CHECK(pair.sender.failure().code() == absl::StatusCode::kUnavailable);
  CHECK(std::string(pair.sender.failure().message()).find("restarted") != std::string::npos);
}

TEST_CASE("what does not fit its slot or its message is refused") {
  Pair pair;
  pair.Up();
  REQUIRE(pair.Send(3).ok());
  const auto frame = pair.sender.NextFrame(pair.now_ns);
  const auto decoded = DecodeFrame(frame->header, frame->payload.bytes);
  REQUIRE(decoded.ok());
  const auto offer = [&](const std::function<void(DataHeader&)>& change) {
    DataHeader data = decoded->data;
    change(data);
    const auto header = EncodeData(decoded->envelope, data, frame->payload.bytes);
    pair.receiver.OnFrame(pair.now_ns, {header, frame->payload.bytes, pair.now_ns});
  };
  offer([](DataHeader& data) { data.sequence = 2; });  // beyond the credit
  offer([](DataHeader& data) { data.total_bytes = kSlotBytes + kChunkBytes; });
  offer([](DataHeader& data) { data.offset = 1; });
  offer([](DataHeader& data) { data.offset = kSlotBytes; });
  offer([](DataHeader& data) { data.chunk_bytes = 0; });
  offer([](DataHeader& data) { data.chunk_bytes = kChunkBytes * 2; });
  offer([](DataHeader& data) { data.channel.boundary = 7; });
  CHECK(pair.receiver.counters().refused_frames == 7);
  offer([](DataHeader& /*data*/) {});
  offer([](DataHeader& data) {
    data.offset = kChunkBytes;
    data.tag.iteration = 8;
  });
  CHECK(pair.receiver.counters().refused_frames == 8);
}

TEST_CASE("more unacknowledged messages than the bound are an error") {
  Pair pair;
  CHECK(pair.Send(1).ok());
  CHECK(pair.Send(1).ok());
  CHECK(pair.Send(1).ok());
  CHECK(pair.Send(1).code() == absl::StatusCode::kResourceExhausted);
}

TEST_CASE("a message of more chunks than one acknowledgement can list recovers") {
  Pair pair;
  pair.Up();
  REQUIRE(pair.Send(4000).ok());
  pair.Move(pair.sender, pair.receiver, [](int frame) { return frame % 7 == 0; });
  for (int i = 0; i < 20 && pair.sender.outstanding(); ++i) {
    pair.now_ns += kMs;
    pair.Settle();
    if (pair.sender.outstanding()) {
      pair.FireTimer();
      pair.Settle();
    }
  }
  CHECK(pair.sender.Acknowledged(kForward) == 1);
  CHECK(pair.sender.counters().frames_resent == (4000 + 6) / 7);
  CHECK(pair.receiver.NextDelivery()->bytes == 4000 * kChunkBytes);
}

TEST_CASE("both ends read each other's clock from the quickest crossing each way") {
  constexpr int64_t kSkewNs = 77'000 * kMs;  // the receiver's clock is ahead
  Pair pair(8);
  int64_t now_ns = pair.now_ns;
  pair.sender.OnPeerUp(now_ns);
  pair.receiver.OnPeerUp(now_ns + kSkewNs);
  MoveLater(pair.receiver, now_ns + kSkewNs, pair.sender, 30 * kMs, -kSkewNs);
  CHECK(pair.sender.peer_clock(now_ns).round_trip_ns == 0);  // the receiver had seen nothing yet
  // Delays there and back of each exchange. Payload of the pipeline's own rhythm: none is quick both ways.
  const std::vector<std::pair<int64_t, int64_t>> delays{
      {9 * kMs, 3 * kMs}, {4 * kMs, 7 * kMs}, {2 * kMs, 6 * kMs}, {8 * kMs, 30 * kMs}};
  for (const auto& [there_ns, back_ns] : delays) {
    pair.now_ns = now_ns;
    REQUIRE(pair.Send(1).ok());
    MoveLater(pair.sender, now_ns, pair.receiver, there_ns, kSkewNs);
    now_ns += there_ns;
    MoveLater(pair.receiver, now_ns + kSkewNs, pair.sender, back_ns, -kSkewNs);
    now_ns += back_ns + 10 * kMs;
  }
  const PeerClock clock = pair.sender.peer_clock(now_ns);
  CHECK(clock.round_trip_ns == 5 * kMs);
  CHECK(clock.offset_ns == kSkewNs - kMs / 2);  // half of what they differ in remains, in the sense there - back

  // The sender tells when it has something to say: here because the path is new.
  pair.sender.OnPeerDown(now_ns);
  pair.sender.OnPeerUp(now_ns);
  CHECK(pair.sender.peer_clock(now_ns).round_trip_ns == 0);  // nothing of the old path holds
}

}  // namespace
}  // namespace geopipe
