// Two ends of a reliable stream over a faulty loopback network on fake time, with users that send and take at random
// moments and check everything that the protocol promises. Replayed by its seed.
#pragma once

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "optimizer/base/splitmix64.h"
#include "runtime/transport/stream/reliable_stream.h"
#include "tests/support/durations.h"
#include "tests/support/loopback_frame.h"

namespace geopipe {

inline std::vector<ChannelSpec> WorldChannels(int64_t slot_bytes, SplitMix64& random) {
  std::vector<ChannelSpec> channels;
  const auto add = [&](MessageKind kind, int32_t boundary, int32_t from, int32_t to) {
    channels.push_back({.id = {.kind = kind, .boundary = boundary, .from_rank = from, .to_rank = to},
                        .slot_bytes = slot_bytes,
                        .slots = 1 + static_cast<int32_t>(random.Next() % 4)});
  };
  add(MessageKind::kActivation, 0, 0, 1);
  add(MessageKind::kGradient, 0, 1, 0);
  add(MessageKind::kActivation, 2, 0, 1);
  add(MessageKind::kNormTerms, 0, 0, 1);
  add(MessageKind::kNormTerms, 0, 1, 0);
  return channels;
}

// The bytes of a message follow from channel and sequence, so that a receiver can tell a wrong one.
inline std::vector<std::byte> MessageBytes(uint64_t seed, const ChannelId& channel, uint64_t sequence, size_t size) {
  SplitMix64 random(seed ^ (sequence * 1000003) ^ (static_cast<uint64_t>(channel.kind) << 40) ^
                    (static_cast<uint64_t>(channel.boundary) << 48) ^ (static_cast<uint64_t>(channel.to_rank) << 56));
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; i += 8) {
    const uint64_t word = random.Next();
    std::memcpy(bytes.data() + i, &word, std::min<size_t>(8, size - i));
  }
  return bytes;
}

class StreamWorld {
 public:
  struct Result {
    std::string error;  // empty: every promise was kept
    int64_t finished_ns = 0;
    int64_t resent = 0;
    int64_t duplicates = 0;
    int64_t probes = 0;
    int64_t corrupt = 0;
    int64_t sent = 0;
  };

  StreamWorld(uint64_t seed, const LoopbackFaults& faults, int messages_per_channel, size_t max_bytes,
              int64_t reordering_ns = 0)
      : seed_(seed),
        random_(seed),
        max_bytes_(max_bytes),
        reordering_ns_(reordering_ns),
        messages_(messages_per_channel),
        channels_(WorldChannels(static_cast<int64_t>(max_bytes), random_)),
        alters_(faults.corrupt > 0),
        network_(0, 1, kChunkBytes, seed + 1) {
    network_.set_faults(faults);
    for (int32_t rank = 0; rank < 2; ++rank) {
      ends_[rank] = std::make_unique<End>(*this, rank);
      network_.Attach(rank, ends_[rank].get());
    }
  }

  // Runs until everything is delivered and acknowledged; faults stop at `calm_ns`, and `limit_ns` later it must be
  // done.
  Result Run(int64_t calm_ns, int64_t limit_ns) {
    network_.Connect(0);
    int64_t now_ns = 0;
    while (error_.empty() && !Done()) {
      if (now_ns >= calm_ns) {
        network_.set_faults({});
      }
      const int64_t next_ns = network_.Pump(now_ns);
      if (Done()) {
        break;
      }
      if (now_ns > calm_ns + limit_ns || next_ns == kNeverNs) {
        error_ = next_ns == kNeverNs ? "nothing will ever happen again" : "not finished in time";
        break;
      }
      now_ns = std::max(next_ns, now_ns + 1);
    }
    if (error_.empty() && live_payloads_ != 0) {
      // The network may still hold references to frames on their way.
      network_.set_faults({});
      network_.Disconnect(now_ns);
      if (live_payloads_ != 0) {
        error_ = "an acknowledged payload was not released";
      }
    }
    Result result;
    result.error = error_;
    result.finished_ns = now_ns;
    for (const auto& end : ends_) {
      const StreamCounters& counters = end->stream.counters();
      result.resent += counters.frames_resent;
      result.duplicates += counters.duplicate_frames;
      result.probes += counters.probes_sent;
      result.corrupt += counters.corrupt_frames;
      result.sent += counters.frames_sent;
      if (counters.refused_frames != 0 && result.error.empty()) {
        result.error = "a frame without a slot was sent";
      }
    }
    return result;
  }

 private:
  static constexpr size_t kChunkBytes = 256;

  struct Outgoing {
    int sent = 0;
    int64_t next_ns = 0;
  };
  struct Incoming {
    int received = 0;
    int32_t slots = 0;
    int32_t held = 0;
    std::map<uint64_t, std::vector<std::byte>> memory;  // posted slots
    std::deque<std::pair<int64_t, uint64_t>> repost;    // when, slot
  };

  struct End final : FrameSink {
    End(StreamWorld& w, int32_t s) : world(w), rank(s), stream(Options(w, s), w.channels_) {
      for (const ChannelSpec& spec : w.channels_) {
        if (spec.id.from_rank == rank) {
          outgoing[spec.id] = {};
          continue;
        }
        Incoming& in = incoming[spec.id];
        in.slots = spec.slots;
        for (int32_t i = 0; i < spec.slots; ++i) {
          PostNew(spec.id, in);
        }
      }
    }

    static StreamOptions Options(StreamWorld& world, int32_t rank) {
      return {.local_rank = rank,
              .peer_rank = 1 - rank,
              .job_hash = 7,
              .epoch = 3,
              .session = 100 + static_cast<uint64_t>(rank),
              .chunk_bytes = kChunkBytes,
              .max_control_bytes = 512,
              .ack_every_chunks = 4,
              .reordering_ns = world.reordering_ns_,
              .initial_timeout_ns = 100 * kMs,
              .min_timeout_ns = 20 * kMs,
              .max_timeout_ns = 400 * kMs,
              .seed = world.seed_ + static_cast<uint64_t>(rank)};
    }

    void PostNew(const ChannelId& id, Incoming& in) {
      const uint64_t slot = world.next_slot_++;
      std::vector<std::byte>& memory = in.memory[slot];
      memory.resize(world.max_bytes_);
      stream.Post(id, {.id = slot, .memory = memory});
    }

    void OnFrame(PeerId /*from*/, const Frame& frame) override { stream.OnFrame(now_ns, frame); }
    // Frames must have checksums on a network that alters them.
    void OnPeerUp(PeerId /*peer*/) override { stream.OnPeerUp(now_ns, !world.alters_); }
    void OnPeerDown(PeerId /*peer*/, const absl::Status& /*why*/) override { stream.OnPeerDown(now_ns); }

    int64_t OnProgress(int64_t now) override {
      now_ns = now;
      stream.OnTimer(now);
      int64_t next_ns = std::min(SendDue(), RepostDue());
      while (std::optional<Delivery> delivery = stream.NextDelivery()) {
        Check(*delivery);
        next_ns = std::min(next_ns, incoming[delivery->channel].repost.back().first);
      }
      FrameCarrier& carrier = world.network_.carrier(rank);
      while (carrier.Writable(1 - rank)) {
        std::optional<OutgoingFrame> frame = stream.NextFrame(now);
        if (!frame.has_value()) {
          break;
        }
        carrier.Send(1 - rank, frame->frame(), [owner = frame->payload.owner] {});
      }
      if (!stream.failure().ok()) {
        world.error_ = stream.failure().ToString();
      }
      return std::min(next_ns, stream.NextTimerNs());
    }

    int64_t SendDue() {
      int64_t next_ns = kNeverNs;
      for (auto& [id, out] : outgoing) {
        while (out.sent < world.messages_ && out.next_ns <= now_ns) {
          SendOne(id, out.sent++);
          out.next_ns = now_ns + static_cast<int64_t>(world.random_.Uniform() * 20 * kMs);
        }
        if (out.sent < world.messages_) {
          next_ns = std::min(next_ns, out.next_ns);
        }
      }
      return next_ns;
    }

    void SendOne(const ChannelId& id, int sequence) {
      const size_t size = world.random_.Next() % 8 == 0 ? 0 : world.random_.Next() % (world.max_bytes_ + 1);
      ++world.live_payloads_;
      // Released bytes change, which reveals a sender that still uses them.
      std::shared_ptr<std::vector<std::byte>> bytes(
          new std::vector<std::byte>(MessageBytes(world.seed_, id, static_cast<uint64_t>(sequence), size)),
          [&world = world](std::vector<std::byte>* released) {
            --world.live_payloads_;
            std::fill(released->begin(), released->end(), std::byte{0xDD});
            delete released;
          });
      const PayloadLayout layout{
          .dtype = DType::kInt32, .dimension_count = 1, .dimensions = {static_cast<int64_t>(size)}};
      const absl::Status status = stream.Send(now_ns, id, {.iteration = sequence / 3, .micro_batch = sequence % 3},
                                              layout, {.owner = bytes, .bytes = *bytes}, now_ns);
      if (!status.ok()) {
        world.error_ = status.ToString();
      }
    }

    int64_t RepostDue() {
      int64_t next_ns = kNeverNs;
      for (auto& [id, in] : incoming) {
        while (!in.repost.empty() && in.repost.front().first <= now_ns) {
          in.memory.erase(in.repost.front().second);
          in.repost.pop_front();
          PostNew(id, in);
        }
        if (!in.repost.empty()) {
          next_ns = std::min(next_ns, in.repost.front().first);
        }
      }
      return next_ns;
    }

    void Check(const Delivery& delivery) {
      Incoming& in = incoming[delivery.channel];
      const int expected = in.received++;
      const std::vector<std::byte> bytes =
          MessageBytes(world.seed_, delivery.channel, delivery.sequence, static_cast<size_t>(delivery.bytes));
      const auto slot = in.memory.find(delivery.slot_id);
      if (delivery.sequence != static_cast<uint64_t>(expected) ||
          delivery.tag != MessageTag{.iteration = expected / 3, .micro_batch = expected % 3}) {
        world.error_ = "a message came twice, out of order or not at all";
      } else if (slot == in.memory.end() || delivery.layout.dimensions[0] != delivery.bytes ||
                 !std::equal(bytes.begin(), bytes.end(), slot->second.begin())) {
        world.error_ = "a message's bytes were changed";
      } else if (std::cmp_greater(in.memory.size(), in.slots)) {
        world.error_ = "more slots than the channel's bound";
      }
      const int64_t last_ns = in.repost.empty() ? now_ns : in.repost.back().first;
      in.repost.emplace_back(last_ns + static_cast<int64_t>(world.random_.Uniform() * 10 * kMs), delivery.slot_id);
    }

    bool Done() const {
      for (const auto& [id, out] : outgoing) {
        if (stream.Acknowledged(id) != static_cast<uint64_t>(world.messages_)) {
          return false;
        }
      }
      return std::all_of(incoming.begin(), incoming.end(),
                         [&](const auto& entry) { return entry.second.received == world.messages_; });
    }

    StreamWorld& world;
    const int32_t rank;
    int64_t now_ns = 0;
    ReliableStream stream;
    std::map<ChannelId, Outgoing> outgoing;
    std::map<ChannelId, Incoming> incoming;
  };

  bool Done() const {
    return std::all_of(ends_.begin(), ends_.end(), [](const auto& end) { return end->Done(); });
  }

  const uint64_t seed_;
  SplitMix64 random_;
  const size_t max_bytes_;
  const int64_t reordering_ns_;
  const int messages_;
  const std::vector<ChannelSpec> channels_;
  std::string error_;
  int live_payloads_ = 0;
  uint64_t next_slot_ = 1;
  const bool alters_;
  std::array<std::unique_ptr<End>, 2> ends_;
  LoopbackNetwork network_;
};

}  // namespace geopipe
