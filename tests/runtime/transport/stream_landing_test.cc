// Frames whose payload the carrier puts in its place: announced, then landed.
#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "runtime/transport/reliable_stream.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

constexpr ChannelId kLandingChannel{.kind = MessageKind::kActivation, .boundary = 0, .from_stage = 0, .to_stage = 1};
constexpr uint32_t kLandingChunkBytes = 64;
constexpr size_t kLandingSlotBytes = 1024;

// Stage 0 sends to stage 1, which has one slot; both are up.
struct LandingPair {
  explicit LandingPair(bool same_host = false)
      : memory(kLandingSlotBytes), sender(Options(0), {Spec()}), receiver(Options(1), {Spec()}) {
    receiver.Post(kLandingChannel, {.id = 1, .memory = memory});
    sender.OnPeerUp(now_ns, same_host);
    receiver.OnPeerUp(now_ns, same_host);
    Settle();
  }

  static StreamOptions Options(int32_t stage) {
    StreamOptions options;
    options.local_stage = stage;
    options.peer_stage = 1 - stage;
    options.session = 10 + static_cast<uint64_t>(stage);
    options.chunk_bytes = kLandingChunkBytes;
    return options;
  }
  static ChannelSpec Spec() { return {.id = kLandingChannel, .slot_bytes = kLandingSlotBytes, .slots = 1}; }

  void Settle() {
    for (bool moved = true; moved;) {
      moved = false;
      for (auto [from, to] : {std::pair(&sender, &receiver), std::pair(&receiver, &sender)}) {
        while (std::optional<OutgoingFrame> frame = from->NextFrame(now_ns)) {
          to->OnFrame(now_ns, frame->header, frame->payload.bytes);
          moved = true;
        }
      }
    }
  }

  void Reconnect() {
    for (ReliableStream* end : {&sender, &receiver}) {
      end->OnPeerDown(now_ns);
    }
    now_ns += kMs;
    for (ReliableStream* end : {&sender, &receiver}) {
      end->OnPeerUp(now_ns);
    }
    Settle();
  }

  OutgoingFrame SendOneChunk() {
    auto bytes = std::make_shared<std::vector<std::byte>>(kLandingChunkBytes, std::byte{0x33});
    REQUIRE(sender.Send(now_ns, kLandingChannel, {}, {}, {.owner = bytes, .bytes = *bytes}).ok());
    std::optional<OutgoingFrame> frame = sender.NextFrame(now_ns);
    REQUIRE(frame.has_value());
    return *std::move(frame);
  }

  std::optional<Landing> Announce(const OutgoingFrame& frame) {
    return receiver.OnAnnounced(now_ns, frame.header, static_cast<int64_t>(frame.payload.bytes.size()));
  }

  int64_t now_ns = 1000 * kMs;
  std::vector<std::byte> memory;
  ReliableStream sender;
  ReliableStream receiver;
};

TEST_CASE("an announced payload is put in its slot, and its message is whole when it landed") {
  LandingPair pair;
  const OutgoingFrame frame = pair.SendOneChunk();
  const std::optional<Landing> landing = pair.Announce(frame);
  REQUIRE(landing.has_value());
  CHECK(landing->memory == pair.memory.data());
  CHECK_FALSE(pair.receiver.NextDelivery().has_value());
  std::ranges::copy(frame.payload.bytes, landing->memory);
  pair.receiver.OnLanded(landing->id, true);
  const auto delivery = pair.receiver.NextDelivery();
  REQUIRE(delivery.has_value());
  CHECK(delivery->bytes == kLandingChunkBytes);
  pair.Settle();
  CHECK(pair.sender.Acknowledged(kLandingChannel) == 1);
  CHECK(pair.receiver.counters().bytes_received > kLandingChunkBytes);
}

TEST_CASE("what does not land comes again") {
  LandingPair pair;
  const std::optional<Landing> landing = pair.Announce(pair.SendOneChunk());
  REQUIRE(landing.has_value());
  // The path breaks under it.
  pair.receiver.OnLanded(landing->id, false);
  CHECK_FALSE(pair.receiver.NextDelivery().has_value());
  pair.Reconnect();
  CHECK(pair.sender.counters().frames_resent == 1);
  CHECK(pair.receiver.NextDelivery().has_value());
}

TEST_CASE("a copy that came while its predecessor was not yet given up comes once more") {
  LandingPair pair;
  const std::optional<Landing> landing = pair.Announce(pair.SendOneChunk());
  REQUIRE(landing.has_value());
  pair.Reconnect();
  CHECK(pair.receiver.counters().duplicate_frames == 1);
  pair.receiver.OnLanded(landing->id, false);
  CHECK_FALSE(pair.receiver.NextDelivery().has_value());
  while (pair.sender.outstanding()) {
    REQUIRE(pair.sender.NextTimerNs() != kNeverNs);
    pair.now_ns = pair.sender.NextTimerNs();
    pair.sender.OnTimer(pair.now_ns);
    pair.Settle();
    REQUIRE(pair.sender.failure().ok());
  }
  CHECK(pair.receiver.NextDelivery().has_value());
}

TEST_CASE("a payload that lands altered is noticed, and not delivered") {
  LandingPair pair;
  const OutgoingFrame frame = pair.SendOneChunk();
  const std::optional<Landing> landing = pair.Announce(frame);
  REQUIRE(landing.has_value());
  std::ranges::copy(frame.payload.bytes, landing->memory);
  landing->memory[7] ^= std::byte{1};
  pair.receiver.OnLanded(landing->id, true);
  CHECK(pair.receiver.counters().corrupt_frames == 1);
  CHECK_FALSE(pair.receiver.NextDelivery().has_value());
  // Its place is free again.
  CHECK(pair.Announce(frame).has_value());
}

TEST_CASE("while a chunk lands, its other copies are duplicates") {
  LandingPair pair;
  const OutgoingFrame frame = pair.SendOneChunk();
  const std::optional<Landing> landing = pair.Announce(frame);
  REQUIRE(landing.has_value());
  CHECK_FALSE(pair.Announce(frame).has_value());
  pair.receiver.OnFrame(pair.now_ns, frame.header, frame.payload.bytes);
  CHECK(pair.receiver.counters().duplicate_frames == 2);
  CHECK_FALSE(pair.receiver.NextDelivery().has_value());
  std::ranges::copy(frame.payload.bytes, landing->memory);
  pair.receiver.OnLanded(landing->id, true);
  CHECK(pair.receiver.NextDelivery().has_value());
  CHECK_FALSE(pair.Announce(frame).has_value());
}

TEST_CASE("what is announced without a place or a meaning is refused") {
  LandingPair pair;
  OutgoingFrame frame = pair.SendOneChunk();
  CHECK_FALSE(pair.receiver.OnAnnounced(pair.now_ns, frame.header, 0).has_value());
  CHECK_FALSE(pair.receiver.OnAnnounced(pair.now_ns, frame.header, kLandingChunkBytes + 1).has_value());
  CHECK(pair.receiver.counters().refused_frames == 2);
  frame.header.back() ^= std::byte{1};
  CHECK_FALSE(pair.Announce(frame).has_value());
  CHECK(pair.receiver.counters().corrupt_frames == 1);
}

TEST_CASE("payloads are summed unless they stay on the host") {
  for (const bool same_host : {false, true}) {
    LandingPair pair(same_host);
    const OutgoingFrame frame = pair.SendOneChunk();
    const auto decoded = DecodeHeader(frame.header);
    REQUIRE(decoded.ok());
    CHECK(decoded->data.summed == !same_host);
  }
}

TEST_CASE("a frame is told what is ahead of it") {
  LandingPair pair;
  CHECK(pair.SendOneChunk().ahead_bytes == 0);
  auto bytes = std::make_shared<std::vector<std::byte>>(3 * kLandingChunkBytes, std::byte{0x33});
  REQUIRE(pair.sender.Send(pair.now_ns, kLandingChannel, {}, {}, {.owner = bytes, .bytes = *bytes}).ok());
  pair.receiver.Post(kLandingChannel, {.id = 2, .memory = pair.memory});
  // The first message's chunk is still on its way when the slot is granted.
  while (std::optional<OutgoingFrame> frame = pair.receiver.NextFrame(pair.now_ns)) {
    pair.sender.OnFrame(pair.now_ns, frame->header, frame->payload.bytes);
  }
  for (int64_t chunk = 1; chunk <= 3; ++chunk) {
    const std::optional<OutgoingFrame> frame = pair.sender.NextFrame(pair.now_ns);
    REQUIRE(frame.has_value());
    CHECK(frame->ahead_bytes == chunk * kLandingChunkBytes);
  }
}

}  // namespace
}  // namespace geopipe
