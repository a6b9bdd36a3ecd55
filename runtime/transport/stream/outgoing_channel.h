// The sending end of one channel of a reliable stream: keeps messages until they are acknowledged and says which chunk
// goes next. Pure: no clock, no thread, no I/O.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/transport/stream/stream_frame.h"

namespace geopipe {

// Bytes to send, referenced and not copied: `owner` keeps them alive and unchanged.
struct SendPayload {
  std::shared_ptr<const void> owner;
  std::span<const std::byte> bytes;
};

class OutgoingChannel {
 public:
  // Messages are cut into chunks of `chunk_bytes`; at most `max_messages` wait for their acknowledgement.
  OutgoingChannel(ChannelId id, uint32_t chunk_bytes, size_t max_messages)
      : id_(id), chunk_bytes_(chunk_bytes), max_messages_(max_messages) {}

  // `order` rises with every message of the stream, over all its channels. ResourceExhausted beyond max_messages.
  // The payload is ready to be sent since `ready_ns`.
  absl::Status Enqueue(uint64_t order, const MessageTag& tag, const PayloadLayout& layout, SendPayload payload,
                       int64_t ready_ns);

  // The order of the oldest message that has a chunk to send and a slot at the receiver.
  std::optional<uint64_t> NextOrder() const;

  struct Chunk {
    DataHeader header;
    SendPayload payload;
    int64_t ready_ns = 0;
    bool resent = false;
  };
  // The next chunk of that message. REQUIRES: NextOrder().
  Chunk TakeChunk(int64_t now_ns);

  // Takes the receiver's report. A chunk that it lacks and that was sent before `lost_before_ns` (sender's clock) is
  // lost and goes again. True when a message is newly acknowledged or a slot newly granted. Old reports do no harm. The
  // report was there at `ready_ns`.
  bool OnState(const ChannelState& state, int64_t lost_before_ns, int64_t ready_ns);

  // Takes the receiver's word that the chunk came damaged: it is lost, and goes again. Does nothing where the chunk has
  // arrived or was sent again since.
  void OnNack(const NackedChunk& nacked);

  // Number of messages acknowledged, cumulatively: those below this sequence number.
  uint64_t acknowledged() const { return first_sequence_; }
  // Time at which the acknowledgement of the last of them was there.
  int64_t acknowledged_ns() const { return acknowledged_ns_; }
  bool outstanding() const { return !messages_.empty(); }
  size_t messages() const { return messages_.size(); }
  const ChannelId& id() const { return id_; }

 private:
  enum class ChunkState : uint8_t { kUnsent, kInFlight, kLost, kArrived };
  struct ChunkRecord {
    int64_t sent_ns = 0;
    ChunkState state = ChunkState::kUnsent;
  };
  struct Message {
    uint64_t order = 0;
    MessageTag tag;
    PayloadLayout layout;
    uint64_t total_bytes = 0;
    int64_t ready_ns = 0;
    SendPayload payload;  // released as soon as every chunk has arrived
    std::vector<ChunkRecord> chunks = {};
    size_t sendable = 0;  // unsent or lost
    size_t arrived = 0;
    size_t scan_from = 0;  // no sendable chunk below
    bool begun = false;    // some chunk was sent
  };

  bool MarkArrived(Message& message, size_t chunk);
  bool ApplyMessageState(Message& message, const MessageState& state);
  static void Lose(Message& message, size_t chunk);
  static void MarkLost(Message& message, size_t covered_chunks, int64_t lost_before_ns);

  const ChannelId id_;
  const uint32_t chunk_bytes_;
  const size_t max_messages_;
  std::deque<Message> messages_;  // messages_[i] has sequence first_sequence_ + i
  uint64_t first_sequence_ = 0;
  uint64_t credit_limit_ = 0;
  int64_t acknowledged_ns_ = 0;
};

}  // namespace geopipe
