// The frames of a reliable stream as bytes. All numbers little-endian.
//
//   envelope   magic u16, version u8, type u8 (1 data, 2 control, 3 nack), crc u32 (CRC-32C over the header with this
//              field zero), job u64, epoch u64, from_session u64, to_session u64 (0: not known)
//   data       sent_ns i64, channel, iteration i64, micro_batch i32, sequence u64, total_bytes u64,
//              offset u64, chunk_bytes u32, flags u8 (1 checksummed), payload_crc u32 (CRC-32C; 0 if not checksummed),
//              dtype u8, dimension_count u8, dimensions i64[dimension_count]; the payload is the message's bytes
//              [offset, offset + payload size), at most chunk_bytes of them
//   control    sent_ns i64, echo_ns i64, echo_delay_ns i64, min_crossing_ns i64, flags u8 (1 probe,
//              2 fresh path), channels u16, then per channel: channel, next_sequence u64, credit_limit u64,
//              flags u8 (1 truncated), messages u8, then per message: sequence u64, first_missing u32, words u8, and
//              so many u64
//   nack       sent_ns i64, flags u8 (1 unnamed), chunks u8, then per chunk: channel, sequence u64, offset u64,
//              sent_ns i64
//   channel    kind u8, boundary i32, from_rank i32, to_rank i32
//
// A program of before there were nacks drops them as frames of an unknown type; chunks that came damaged then count as
// lost a little later. So the version has not risen with them.
//
// A payload that does not leave its host is not checksummed: it is as safe there as in the memory it comes from and
// goes to, and the sum at both ends would cost more than the crossing.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/tensor/tensor.h"
#include "runtime/transport/stream/frame.h"
#include "runtime/transport/stream/message_transport.h"

namespace geopipe {

// Sender and receiver of a frame. A session is one life of a stream's end: a broken and repaired connection keeps it, a
// restarted worker has another.
struct FrameEnvelope {
  uint64_t job_hash = 0;
  uint64_t epoch = 0;
  uint64_t from_session = 0;
  uint64_t to_session = 0;
};

// One chunk of a message.
struct DataHeader {
  int64_t sent_ns = 0;  // sender's clock; comes back as an echo
  ChannelId channel;
  MessageTag tag;
  uint64_t sequence = 0;  // of the message within its channel, from 0
  uint64_t total_bytes = 0;
  uint64_t offset = 0;
  uint32_t chunk_bytes = 0;
  bool checksummed = true;
  uint32_t payload_crc = 0;  // filled in by EncodeData
  PayloadLayout layout;
};

// Chunks that have arrived of one message that is incomplete (or whole, but not yet next): all below `first_missing`,
// and first_missing + i where bit i of `words` is set. Chunks past the words are unknown.
struct MessageState {
  uint64_t sequence = 0;
  uint32_t first_missing = 0;
  std::vector<uint64_t> words = {};
};

// The receiver's acknowledgement and credit for one channel.
struct ChannelState {
  ChannelId channel;
  uint64_t next_sequence = 0;  // every message below has arrived whole
  uint64_t credit_limit = 0;   // messages below have a slot
  bool truncated = false;      // `messages` is not complete
  std::vector<MessageState> messages = {};
};

// A chunk that came with other bytes than it was sent with. `sent_ns` is the frame's own: one that was sent again since
// has another.
struct NackedChunk {
  ChannelId channel;
  uint64_t sequence = 0;
  uint64_t offset = 0;
  int64_t sent_ns = 0;

  friend bool operator==(const NackedChunk&, const NackedChunk&) = default;
};

// A negative acknowledgement: the receiver asks for chunks again whose bytes have not survived the crossing.
struct NackHeader {
  int64_t sent_ns = 0;
  bool unnamed = false;  // a frame whose header was damaged is among them; nobody can tell which
  std::vector<NackedChunk> chunks = {};
};

struct ControlHeader {
  int64_t sent_ns = 0;
  int64_t echo_ns = 0;  // the latest sent_ns seen from the peer; 0: none yet
  int64_t echo_delay_ns = 0;
  int64_t min_crossing_ns = kNeverNs;  // of the peer's frames since the last control frame: ClockMeter's; never: none
  bool probe = false;                  // asks for a control frame with all channels
  bool fresh_path = false;             // first one after the path to the peer came up
  std::vector<ChannelState> channels = {};
};

inline constexpr size_t kMaxStateWords = 32;     // 2048 chunks past first_missing
inline constexpr size_t kMaxStateMessages = 64;  // per channel and control frame
inline constexpr size_t kMaxDataHeaderBytes = 160;
inline constexpr size_t kMaxNackedChunks = 8;  // of one nack: a frame of less than 400 bytes

std::vector<std::byte> EncodeData(const FrameEnvelope& envelope, const DataHeader& data,
                                  std::span<const std::byte> payload);
// Bytes that EncodeControl needs for `state`, and for a frame with no channel.
size_t EncodedSize(const ChannelState& state);
size_t EncodedControlSize();
std::vector<std::byte> EncodeControl(const FrameEnvelope& envelope, const ControlHeader& control);

// REQUIRES: at most kMaxNackedChunks.
std::vector<std::byte> EncodeNack(const FrameEnvelope& envelope, const NackHeader& nack);

enum class FrameType : uint8_t { kData = 1, kControl = 2, kNack = 3 };

struct DecodedFrame {
  FrameEnvelope envelope;
  FrameType type = FrameType::kData;
  DataHeader data;               // if kData
  bool payload_damaged = false;  // if kData: its checksum is that of other bytes
  ControlHeader control;         // if kControl
  NackHeader nack;               // if kNack

  int64_t sent_ns() const;
};

// DataLoss if the header is not whole: wrong magic, version, type, length or checksum.
absl::StatusOr<DecodedFrame> DecodeFrame(std::span<const std::byte> header, std::span<const std::byte> payload);

}  // namespace geopipe
