#include "runtime/transport/stream/stream_frame.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <type_traits>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/crc32c.h"

namespace geopipe {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint16_t kFrameMagic = 0x5047;  // "GP"
constexpr uint8_t kFrameVersion = 5;
constexpr uint8_t kChecksummed = 1;  // flag of a data frame
constexpr uint8_t kUnnamed = 1;      // flag of a nack
constexpr size_t kCrcOffset = 4;
constexpr size_t kEnvelopeBytes = 40;
constexpr size_t kChannelBytes = 13;

class Writer {
 public:
  explicit Writer(size_t expected) { bytes_.reserve(expected); }

  template <class Number>
  void Put(Number value) {
    static_assert(std::is_integral_v<Number>);
    const size_t at = bytes_.size();
    bytes_.resize(at + sizeof value);
    std::memcpy(bytes_.data() + at, &value, sizeof value);
  }

  void PutEnvelope(const FrameEnvelope& envelope, FrameType type) {
    Put(kFrameMagic);
    Put(kFrameVersion);
    Put(static_cast<uint8_t>(type));
    Put(uint32_t{0});
    Put(envelope.job_hash);
    Put(envelope.epoch);
    Put(envelope.from_session);
    Put(envelope.to_session);
  }

  void PutChannel(const ChannelId& channel) {
    Put(static_cast<uint8_t>(channel.kind));
    Put(channel.boundary);
    Put(channel.from_rank);
    Put(channel.to_rank);
  }

  std::vector<std::byte> Seal() && {
    const uint32_t crc = Crc32c(bytes_);
    std::memcpy(bytes_.data() + kCrcOffset, &crc, sizeof crc);
    return std::move(bytes_);
  }

 private:
  std::vector<std::byte> bytes_;
};

// Reads past the end give zero and make ok() false.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : left_(bytes) {}

  template <class Number>
  Number Get() {
    Number value{};
    if (left_.size() < sizeof value) {
      ok_ = false;
      left_ = {};
      return value;
    }
    std::memcpy(&value, left_.data(), sizeof value);
    left_ = left_.subspan(sizeof value);
    return value;
  }

  ChannelId GetChannel() {
    ChannelId channel;
    channel.kind = static_cast<MessageKind>(Get<uint8_t>());
    channel.boundary = Get<int32_t>();
    channel.from_rank = Get<int32_t>();
    channel.to_rank = Get<int32_t>();
    return channel;
  }

  void Reject() { ok_ = false; }
  bool ok() const { return ok_; }
  bool at_end() const { return ok_ && left_.empty(); }

 private:
  std::span<const std::byte> left_;
  bool ok_ = true;
};

DataHeader ReadData(Reader& reader) {
  DataHeader data;
  data.sent_ns = reader.Get<int64_t>();
  data.channel = reader.GetChannel();
  data.tag.iteration = reader.Get<int64_t>();
  data.tag.micro_batch = reader.Get<int32_t>();
  data.sequence = reader.Get<uint64_t>();
  data.total_bytes = reader.Get<uint64_t>();
  data.offset = reader.Get<uint64_t>();
  data.chunk_bytes = reader.Get<uint32_t>();
  data.checksummed = (reader.Get<uint8_t>() & kChecksummed) != 0;
  data.payload_crc = reader.Get<uint32_t>();
  data.layout.dtype = static_cast<DType>(reader.Get<uint8_t>());
  data.layout.dimension_count = reader.Get<uint8_t>();
  if (data.layout.dimension_count > PayloadLayout::kMaxDimensions || data.layout.dtype > DType::kInt32) {
    reader.Reject();
    return data;
  }
  for (size_t d = 0; d < data.layout.dimension_count; ++d) {
    data.layout.dimensions[d] = reader.Get<int64_t>();
  }
  return data;
}

ChannelState ReadChannelState(Reader& reader) {
  ChannelState state;
  state.channel = reader.GetChannel();
  state.next_sequence = reader.Get<uint64_t>();
  state.credit_limit = reader.Get<uint64_t>();
  state.truncated = (reader.Get<uint8_t>() & 1) != 0;
  const size_t messages = reader.Get<uint8_t>();
  for (size_t i = 0; i < messages && reader.ok(); ++i) {
    MessageState message;
    message.sequence = reader.Get<uint64_t>();
    message.first_missing = reader.Get<uint32_t>();
    const size_t words = reader.Get<uint8_t>();
    for (size_t w = 0; w < words && reader.ok(); ++w) {
      message.words.push_back(reader.Get<uint64_t>());
    }
    state.messages.push_back(std::move(message));
  }
  return state;
}

ControlHeader ReadControl(Reader& reader) {
  ControlHeader control;
  control.sent_ns = reader.Get<int64_t>();
  control.echo_ns = reader.Get<int64_t>();
  control.echo_delay_ns = reader.Get<int64_t>();
  control.min_crossing_ns = reader.Get<int64_t>();
  const auto flags = reader.Get<uint8_t>();
  control.probe = (flags & 1) != 0;
  control.fresh_path = (flags & 2) != 0;
  const size_t channels = reader.Get<uint16_t>();
  for (size_t i = 0; i < channels && reader.ok(); ++i) {
    control.channels.push_back(ReadChannelState(reader));
  }
  return control;
}

NackHeader ReadNack(Reader& reader) {
  NackHeader nack;
  nack.sent_ns = reader.Get<int64_t>();
  nack.unnamed = (reader.Get<uint8_t>() & kUnnamed) != 0;
  const size_t chunks = reader.Get<uint8_t>();
  for (size_t i = 0; i < chunks && reader.ok(); ++i) {
    NackedChunk chunk{.channel = reader.GetChannel()};
    chunk.sequence = reader.Get<uint64_t>();
    chunk.offset = reader.Get<uint64_t>();
    chunk.sent_ns = reader.Get<int64_t>();
    nack.chunks.push_back(chunk);
  }
  return nack;
}

bool IsFrameType(uint8_t type) {
  return type >= static_cast<uint8_t>(FrameType::kData) && type <= static_cast<uint8_t>(FrameType::kNack);
}

absl::StatusOr<DecodedFrame> DecodeHeader(std::span<const std::byte> header) {
  Reader reader(header);
  const auto magic = reader.Get<uint16_t>();
  const auto version = reader.Get<uint8_t>();
  const auto type = reader.Get<uint8_t>();
  const auto crc = reader.Get<uint32_t>();
  if (!reader.ok() || magic != kFrameMagic || version != kFrameVersion || !IsFrameType(type)) {
    return absl::DataLossError(fmt::format("a header of {} bytes does not begin like a frame", header.size()));
  }
  constexpr std::array<std::byte, 4> kZero{};
  const uint32_t prefix = Crc32c(kZero, Crc32c(header.first(kCrcOffset)));
  if (Crc32c(header.subspan(kCrcOffset + kZero.size()), prefix) != crc) {
    return absl::DataLossError("the checksum of a frame's header does not match its bytes");
  }
  DecodedFrame frame;
  frame.envelope.job_hash = reader.Get<uint64_t>();
  frame.envelope.epoch = reader.Get<uint64_t>();
  frame.envelope.from_session = reader.Get<uint64_t>();
  frame.envelope.to_session = reader.Get<uint64_t>();
  frame.type = static_cast<FrameType>(type);
  switch (frame.type) {
    case FrameType::kData:
      frame.data = ReadData(reader);
      break;
    case FrameType::kControl:
      frame.control = ReadControl(reader);
      break;
    case FrameType::kNack:
      frame.nack = ReadNack(reader);
      break;
  }
  if (!reader.at_end()) {
    return absl::DataLossError(
        fmt::format("a frame's header of {} bytes does not have the length it says", header.size()));
  }
  return frame;
}

}  // namespace

std::vector<std::byte> EncodeData(const FrameEnvelope& envelope, const DataHeader& data,
                                  std::span<const std::byte> payload) {
  Writer writer(kMaxDataHeaderBytes);
  writer.PutEnvelope(envelope, FrameType::kData);
  writer.Put(data.sent_ns);
  writer.PutChannel(data.channel);
  writer.Put(data.tag.iteration);
  writer.Put(data.tag.micro_batch);
  writer.Put(data.sequence);
  writer.Put(data.total_bytes);
  writer.Put(data.offset);
  writer.Put(data.chunk_bytes);
  writer.Put(data.checksummed ? kChecksummed : uint8_t{0});
  writer.Put(data.checksummed ? Crc32c(payload) : uint32_t{0});
  writer.Put(static_cast<uint8_t>(data.layout.dtype));
  writer.Put(data.layout.dimension_count);
  GP_CHECK(data.layout.dimension_count <= PayloadLayout::kMaxDimensions);
  for (size_t d = 0; d < data.layout.dimension_count; ++d) {
    writer.Put(data.layout.dimensions[d]);
  }
  return std::move(writer).Seal();
}

size_t EncodedSize(const ChannelState& state) {
  size_t bytes = kChannelBytes + 8 + 8 + 1 + 1;
  for (const MessageState& message : state.messages) {
    bytes += 8 + 4 + 1 + 8 * message.words.size();
  }
  return bytes;
}

size_t EncodedControlSize() { return kEnvelopeBytes + 8 + 8 + 8 + 8 + 1 + 2; }

std::vector<std::byte> EncodeControl(const FrameEnvelope& envelope, const ControlHeader& control) {
  Writer writer(512);
  writer.PutEnvelope(envelope, FrameType::kControl);
  writer.Put(control.sent_ns);
  writer.Put(control.echo_ns);
  writer.Put(control.echo_delay_ns);
  writer.Put(control.min_crossing_ns);
  writer.Put(static_cast<uint8_t>((control.probe ? 1 : 0) | (control.fresh_path ? 2 : 0)));
  writer.Put(static_cast<uint16_t>(control.channels.size()));
  for (const ChannelState& state : control.channels) {
    GP_CHECK(state.messages.size() <= kMaxStateMessages);
    writer.PutChannel(state.channel);
    writer.Put(state.next_sequence);
    writer.Put(state.credit_limit);
    writer.Put(static_cast<uint8_t>(state.truncated ? 1 : 0));
    writer.Put(static_cast<uint8_t>(state.messages.size()));
    for (const MessageState& message : state.messages) {
      GP_CHECK(message.words.size() <= kMaxStateWords);
      writer.Put(message.sequence);
      writer.Put(message.first_missing);
      writer.Put(static_cast<uint8_t>(message.words.size()));
      for (const uint64_t word : message.words) {
        writer.Put(word);
      }
    }
  }
  return std::move(writer).Seal();
}

std::vector<std::byte> EncodeNack(const FrameEnvelope& envelope, const NackHeader& nack) {
  GP_CHECK(nack.chunks.size() <= kMaxNackedChunks);
  Writer writer(512);
  writer.PutEnvelope(envelope, FrameType::kNack);
  writer.Put(nack.sent_ns);
  writer.Put(nack.unnamed ? kUnnamed : uint8_t{0});
  writer.Put(static_cast<uint8_t>(nack.chunks.size()));
  for (const NackedChunk& chunk : nack.chunks) {
    writer.PutChannel(chunk.channel);
    writer.Put(chunk.sequence);
    writer.Put(chunk.offset);
    writer.Put(chunk.sent_ns);
  }
  return std::move(writer).Seal();
}

int64_t DecodedFrame::sent_ns() const {
  switch (type) {
    case FrameType::kData:
      return data.sent_ns;
    case FrameType::kControl:
      return control.sent_ns;
    case FrameType::kNack:
      break;
  }
  return nack.sent_ns;
}

absl::StatusOr<DecodedFrame> DecodeFrame(std::span<const std::byte> header, std::span<const std::byte> payload) {
  GP_ASSIGN_OR_RETURN(DecodedFrame frame, DecodeHeader(header));
  frame.payload_damaged =
      frame.type == FrameType::kData && frame.data.checksummed && Crc32c(payload) != frame.data.payload_crc;
  return frame;
}

}  // namespace geopipe
