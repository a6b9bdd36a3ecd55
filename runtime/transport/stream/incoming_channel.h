// The receiving end of one channel of a reliable stream: slots, assembly of messages, exactly once and in order. Pure:
// no clock, no thread, no I/O; it writes into the slots it was given.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "runtime/transport/stream/stream_frame.h"

namespace geopipe {

// Memory for one message. It belongs to the user, who names it by `id` and gets it back by a Delivery.
struct Slot {
  uint64_t id = 0;
  std::span<std::byte> memory;
};

// A whole message in its slot.
struct Delivery {
  ChannelId channel;
  MessageTag tag;
  uint64_t sequence = 0;
  PayloadLayout layout;
  int64_t bytes = 0;
  uint64_t slot_id = 0;
  int64_t ready_ns = 0;  // the last of its chunks was there
};

enum class Arrival : uint8_t {
  kInOrder,    // the next missing chunk of its message
  kGap,        // a chunk with an earlier one missing
  kWhole,      // the message's last missing chunk
  kDuplicate,  // we have it: acknowledge again
  kRefused,    // no slot, too large, or at odds with the message's other chunks
};

class IncomingChannel {
 public:
  IncomingChannel(ChannelId id, int64_t slot_bytes) : id_(id), slot_bytes_(slot_bytes) {}

  // Adds the slot, so that one more message may be sent. REQUIRES: slot.memory is of slot_bytes at least.
  void Post(Slot slot);

  // Puts a chunk, there since `ready_ns`, in its place.
  Arrival OnData(const DataHeader& data, std::span<const std::byte> payload, int64_t ready_ns);

  // The next message, if it has arrived whole. Its slot is the user's again.
  std::optional<Delivery> TakeNext();

  // The acknowledgement and the credit to send.
  ChannelState State() const;
  // True when the grant of posted slots can wait for the acknowledgement of the next message, which is arriving: the
  // sender, told of a credit limit of `granted`, knows of more than half of the slots that it may still fill.
  bool GrantCanWait(uint64_t granted) const;

  const ChannelId& id() const { return id_; }

 private:
  struct Message {
    bool begun = false;
    DataHeader first;  // of the chunk that arrived first
    Slot slot;
    std::vector<uint64_t> arrived_bits;
    size_t chunks = 0;
    size_t arrived = 0;
    size_t first_missing = 0;
    int64_t ready_ns = 0;  // the latest of its chunks

    bool whole() const { return begun && arrived == chunks; }
    bool Has(size_t chunk) const { return (arrived_bits[chunk / 64] >> (chunk % 64) & 1) != 0; }
  };

  bool Acceptable(const DataHeader& data, size_t payload_bytes) const;
  static MessageState StateOf(uint64_t sequence, const Message& message);

  const ChannelId id_;
  const int64_t slot_bytes_;
  std::vector<Slot> free_;
  std::deque<Message> window_;  // window_[i] has sequence taken_ + i
  uint64_t taken_ = 0;
  uint64_t credit_limit_ = 0;  // slots ever posted
};

}  // namespace geopipe
