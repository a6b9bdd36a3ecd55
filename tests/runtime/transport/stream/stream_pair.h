// Two ends of a reliable stream whose frames the test moves by hand.
#pragma once

#include <catch2/catch.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/transport/stream/reliable_stream.h"
#include "tests/support/durations.h"

namespace geopipe {

inline constexpr ChannelId kForward{.kind = MessageKind::kActivation, .boundary = 0, .from_rank = 0, .to_rank = 1};
inline constexpr int64_t kSlotBytes = 64 * 4000;
inline constexpr uint32_t kChunkBytes = 64;

// Picks of frames.
inline bool All(int /*frame*/) { return true; }
inline bool None(int /*frame*/) { return false; }

// Rank 0 sends to rank 1; the test moves every frame by hand.
class Pair {
 public:
  explicit Pair(int slots = 2, uint64_t receiver_session = 20, int64_t reordering_ns = 0)
      : sender(Options(0, 10, reordering_ns), {Spec(slots)}),
        receiver(Options(1, receiver_session, reordering_ns), {Spec(slots)}) {
    memory.resize(static_cast<size_t>(slots), std::vector<std::byte>(kSlotBytes));
    for (size_t i = 0; i < memory.size(); ++i) {
      receiver.Post(kForward, {.id = i, .memory = memory[i]});
    }
  }

  static StreamOptions Options(int32_t rank, uint64_t session, int64_t reordering_ns = 0) {
    StreamOptions options;
    options.reordering_ns = reordering_ns;
    options.local_rank = rank;
    options.peer_rank = 1 - rank;
    options.job_hash = 1;
    options.epoch = 2;
    options.session = session;
    options.chunk_bytes = kChunkBytes;
    options.max_messages = 3;
    options.initial_timeout_ns = 100 * kMs;
    options.min_timeout_ns = 50 * kMs;
    options.silence_limit_ns = 10'000 * kMs;
    return options;
  }

  static ChannelSpec Spec(int slots) { return {.id = kForward, .slot_bytes = kSlotBytes, .slots = slots}; }

  void Up(bool same_host = false) {
    sender.OnPeerUp(now_ns, same_host);
    receiver.OnPeerUp(now_ns, same_host);
    Settle();
  }

  absl::Status Send(size_t chunks, int64_t ready_ns = 0) {
    auto bytes = std::make_shared<std::vector<std::byte>>(chunks * kChunkBytes, std::byte{0x33});
    return sender.Send(now_ns, kForward, {}, {}, {.owner = bytes, .bytes = *bytes}, ready_ns);
  }

  // Moves the frames of one end to the other except those `lose` picks (by their number); returns how many there were.
  int Move(ReliableStream& from, ReliableStream& to, const std::function<bool(int)>& lose = None) {
    int frames = 0;
    while (std::optional<OutgoingFrame> frame = from.NextFrame(now_ns)) {
      if (!lose(frames++)) {
        to.OnFrame(now_ns, {frame->header, frame->payload.bytes, frame->ready_ns + crossing_ns});
      }
    }
    return frames;
  }

  // Moves the frames and loses none: it flips a bit in the payload of those that `payload` picks, and in the header of
  // those that `header` picks.
  int MoveDamaging(ReliableStream& from, ReliableStream& to, const std::function<bool(int)>& payload,
                   const std::function<bool(int)>& header = None) {
    int frames = 0;
    for (; std::optional<OutgoingFrame> frame = from.NextFrame(now_ns); ++frames) {
      std::vector<std::byte> bytes(frame->payload.bytes.begin(), frame->payload.bytes.end());
      if (payload(frames) && !bytes.empty()) {
        bytes.back() ^= std::byte{0x10};
      }
      if (header(frames)) {
        frame->header.back() ^= std::byte{0x10};
      }
      to.OnFrame(now_ns, {frame->header, bytes, frame->ready_ns + crossing_ns});
    }
    return frames;
  }

  void Settle() {
    while (Move(sender, receiver) + Move(receiver, sender) > 0) {
    }
  }

  void FireTimer() {
    REQUIRE(sender.NextTimerNs() != kNeverNs);
    now_ns = sender.NextTimerNs();
    sender.OnTimer(now_ns);
  }

  int64_t now_ns = 1000 * kMs;
  int64_t crossing_ns = 0;  // of every frame, as the carrier tells it
  std::vector<std::vector<std::byte>> memory;
  ReliableStream sender;
  ReliableStream receiver;
};

// Moves all frames of `from` to `to`, `delay_ns` later, over clocks that differ by `skew_ns`.
inline int MoveLater(ReliableStream& from, int64_t from_now_ns, ReliableStream& to, int64_t delay_ns, int64_t skew_ns) {
  int frames = 0;
  while (std::optional<OutgoingFrame> frame = from.NextFrame(from_now_ns)) {
    const int64_t at_ns = from_now_ns + delay_ns + skew_ns;
    to.OnFrame(at_ns, {frame->header, frame->payload.bytes, at_ns});
    ++frames;
  }
  return frames;
}

}  // namespace geopipe
