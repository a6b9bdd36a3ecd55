#include "runtime/transport/stream/stream_frame.h"

#include <catch2/catch.hpp>

namespace geopipe {
namespace {

constexpr ChannelId kChannel{.kind = MessageKind::kGradient, .boundary = 4, .from_rank = 5, .to_rank = 4};
constexpr FrameEnvelope kEnvelope{.job_hash = 11, .epoch = 12, .from_session = 13, .to_session = 14};

std::vector<std::byte> SomePayload() { return std::vector<std::byte>(100, std::byte{0x5A}); }

DataHeader SomeData() {
  DataHeader data;
  data.sent_ns = 123456789;
  data.channel = kChannel;
  data.tag = {.iteration = 9, .micro_batch = 3};
  data.sequence = 77;
  data.total_bytes = 300;
  data.offset = 100;
  data.chunk_bytes = 100;
  data.layout = {.dtype = DType::kBf16, .dimension_count = 3, .dimensions = {2, 3, 25}};
  return data;
}

TEST_CASE("a data frame reads back as written") {
  const std::vector<std::byte> payload = SomePayload();
  const std::vector<std::byte> header = EncodeData(kEnvelope, SomeData(), payload);
  CHECK(header.size() <= kMaxDataHeaderBytes);
  const auto frame = DecodeFrame(header, payload);
  REQUIRE(frame.ok());
  CHECK(frame->type == FrameType::kData);
  CHECK_FALSE(frame->payload_damaged);
  CHECK(frame->envelope.job_hash == 11);
  CHECK(frame->envelope.epoch == 12);
  CHECK(frame->envelope.from_session == 13);
  CHECK(frame->envelope.to_session == 14);
  const DataHeader& data = frame->data;
  CHECK(data.sent_ns == 123456789);
  CHECK(data.channel == kChannel);
  CHECK(data.tag == MessageTag{.iteration = 9, .micro_batch = 3});
  CHECK(data.sequence == 77);
  CHECK(data.total_bytes == 300);
  CHECK(data.offset == 100);
  CHECK(data.chunk_bytes == 100);
  CHECK(data.layout == SomeData().layout);
}

TEST_CASE("a control frame reads back as written") {
  ControlHeader control;
  control.sent_ns = 1;
  control.echo_ns = 2;
  control.echo_delay_ns = 3;
  control.min_crossing_ns = -4;
  control.probe = true;
  ChannelState state;
  state.channel = kChannel;
  state.next_sequence = 6;
  state.credit_limit = 9;
  state.truncated = true;
  state.messages.push_back({.sequence = 7, .first_missing = 2, .words = {0x10, 0x8000000000000001}});
  state.messages.push_back({.sequence = 8, .first_missing = 4, .words = {}});
  control.channels = {state, {.channel = kChannel}};
  const std::vector<std::byte> header = EncodeControl(kEnvelope, control);
  CHECK(header.size() == EncodedControlSize() + EncodedSize(state) + EncodedSize({}));
  const auto frame = DecodeFrame(header, {});
  REQUIRE(frame.ok());
  CHECK(frame->type == FrameType::kControl);
  CHECK(frame->control.echo_ns == 2);
  CHECK(frame->control.echo_delay_ns == 3);
  CHECK(frame->control.min_crossing_ns == -4);
  CHECK(frame->control.probe);
  CHECK_FALSE(frame->control.fresh_path);
  REQUIRE(frame->control.channels.size() == 2);
  const ChannelState& read = frame->control.channels[0];
  CHECK(read.channel == kChannel);
  CHECK(read.next_sequence == 6);
  CHECK(read.credit_limit == 9);
  CHECK(read.truncated);
  REQUIRE(read.messages.size() == 2);
  CHECK(read.messages[0].words == state.messages[0].words);
  CHECK(read.messages[1].first_missing == 4);
}

TEST_CASE("a flipped bit anywhere is noticed") {
  std::vector<std::byte> payload = SomePayload();
  std::vector<std::byte> header = EncodeData(kEnvelope, SomeData(), payload);
  for (std::vector<std::byte>* part : {&header, &payload}) {
    for (size_t bit = 0; bit < 8 * part->size(); ++bit) {
      (*part)[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
      // A damaged payload still has the header that names it.
      const auto frame = DecodeFrame(header, payload);
      CHECK(frame.ok() == (part == &payload));
      CHECK((!frame.ok() || (frame->payload_damaged && frame->data.sequence == 77)));
      (*part)[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    }
  }
  CHECK_FALSE(DecodeFrame(header, payload)->payload_damaged);
}

TEST_CASE("a nack reads back as written") {
  NackHeader nack{.sent_ns = 5, .unnamed = true};
  for (size_t i = 0; i < kMaxNackedChunks; ++i) {
    nack.chunks.push_back({.channel = kChannel, .sequence = 7 + i, .offset = 100 * i, .sent_ns = -3});
  }
  const std::vector<std::byte> header = EncodeNack(kEnvelope, nack);
  CHECK(header.size() < 400);
  const auto frame = DecodeFrame(header, {});
  REQUIRE(frame.ok());
  CHECK(frame->type == FrameType::kNack);
  CHECK(frame->sent_ns() == 5);
  CHECK(frame->nack.unnamed);
  CHECK(frame->nack.chunks == nack.chunks);
  const auto empty = DecodeFrame(EncodeNack(kEnvelope, {.sent_ns = 1}), {});
  REQUIRE(empty.ok());
  CHECK_FALSE(empty->nack.unnamed);
  CHECK(empty->nack.chunks.empty());
}

TEST_CASE("a payload that is not checksummed is taken as it is, and its header is not") {
  DataHeader data = SomeData();
  data.checksummed = false;
  std::vector<std::byte> payload = SomePayload();
  std::vector<std::byte> header = EncodeData(kEnvelope, data, payload);
  payload[3] ^= std::byte{1};
  const auto frame = DecodeFrame(header, payload);
  REQUIRE(frame.ok());
  CHECK_FALSE(frame->data.checksummed);
  CHECK_FALSE(frame->payload_damaged);
  for (size_t bit = 0; bit < 8 * header.size(); ++bit) {
    header[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    CHECK_FALSE(DecodeFrame(header, payload).ok());
    header[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
  }
}

TEST_CASE("a cut frame is refused at every length") {
  const std::vector<std::byte> payload = SomePayload();
  const std::vector<std::byte> header = EncodeData(kEnvelope, SomeData(), payload);
  for (size_t size = 0; size < header.size(); ++size) {
    CHECK_FALSE(DecodeFrame(std::span(header).first(size), payload).ok());
  }
  CHECK(DecodeFrame(header, std::span(payload).first(99))->payload_damaged);
}

}  // namespace
}  // namespace geopipe
