#include "runtime/transport/stream/outgoing_channel.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "optimizer/base/check.h"

namespace geopipe {

absl::Status OutgoingChannel::Enqueue(uint64_t order, const MessageTag& tag, const PayloadLayout& layout,
                                      SendPayload payload, int64_t ready_ns) {
  if (messages_.size() >= max_messages_) {
    return absl::ResourceExhaustedError(
        fmt::format("{} messages of boundary {} ({}, rank {} to {}) wait for their acknowledgement, which is the "
                    "limit; the receiver does not take them",
                    messages_.size(), id_.boundary, MessageKindName(id_.kind), id_.from_rank, id_.to_rank));
  }
  Message message{.order = order, .tag = tag, .layout = layout, .payload = std::move(payload)};
  message.total_bytes = message.payload.bytes.size();
  message.ready_ns = ready_ns;
  // An empty message is one empty chunk.
  message.chunks.resize(std::max<uint64_t>(1, (message.total_bytes + chunk_bytes_ - 1) / chunk_bytes_));
  message.sendable = message.chunks.size();
  messages_.push_back(std::move(message));
  return absl::OkStatus();
}

std::optional<uint64_t> OutgoingChannel::NextOrder() const {
  for (size_t i = 0; i < messages_.size() && first_sequence_ + i < credit_limit_; ++i) {
    if (messages_[i].sendable > 0) {
      return messages_[i].order;
    }
  }
  return std::nullopt;
}

OutgoingChannel::Chunk OutgoingChannel::TakeChunk(int64_t now_ns) {
  size_t index = 0;
  while (messages_[index].sendable == 0) {
    ++index;
    GP_CHECK(index < messages_.size());
  }
  GP_CHECK(first_sequence_ + index < credit_limit_);
  Message& message = messages_[index];
  size_t chunk = message.scan_from;
  while (message.chunks[chunk].state != ChunkState::kUnsent && message.chunks[chunk].state != ChunkState::kLost) {
    ++chunk;
  }
  ChunkRecord& record = message.chunks[chunk];
  const uint64_t offset = uint64_t{chunk} * chunk_bytes_;
  Chunk result;
  result.resent = record.state == ChunkState::kLost;
  result.ready_ns = result.resent ? now_ns : message.ready_ns;
  result.header = {.sent_ns = now_ns,
                   .channel = id_,
                   .tag = message.tag,
                   .sequence = first_sequence_ + index,
                   .total_bytes = message.total_bytes,
                   .offset = offset,
                   .chunk_bytes = chunk_bytes_,
                   .layout = message.layout};
  result.payload.owner = message.payload.owner;
  result.payload.bytes =
      message.payload.bytes.subspan(offset, std::min<uint64_t>(chunk_bytes_, message.total_bytes - offset));
  record = {.sent_ns = now_ns, .state = ChunkState::kInFlight};
  message.begun = true;
  --message.sendable;
  message.scan_from = chunk + 1;
  return result;
}

bool OutgoingChannel::MarkArrived(Message& message, size_t chunk) {
  if (chunk >= message.chunks.size() || message.chunks[chunk].state == ChunkState::kArrived ||
      message.chunks[chunk].state == ChunkState::kUnsent) {
    return false;
  }
  if (message.chunks[chunk].state == ChunkState::kLost) {
    --message.sendable;
  }
  message.chunks[chunk].state = ChunkState::kArrived;
  ++message.arrived;
  if (message.arrived == message.chunks.size()) {
    message.payload = {};
  }
  return true;
}

bool OutgoingChannel::ApplyMessageState(Message& message, const MessageState& state) {
  bool news = false;
  for (size_t chunk = 0; chunk < std::min<size_t>(state.first_missing, message.chunks.size()); ++chunk) {
    news |= MarkArrived(message, chunk);
  }
  for (size_t w = 0; w < state.words.size(); ++w) {
    for (uint64_t word = state.words[w]; word != 0; word &= word - 1) {
      news |= MarkArrived(message, state.first_missing + 64 * w + static_cast<size_t>(std::countr_zero(word)));
    }
  }
  return news;
}

void OutgoingChannel::Lose(Message& message, size_t chunk) {
  message.chunks[chunk].state = ChunkState::kLost;
  ++message.sendable;
  message.scan_from = std::min(message.scan_from, chunk);
}

void OutgoingChannel::MarkLost(Message& message, size_t covered_chunks, int64_t lost_before_ns) {
  for (size_t chunk = 0; chunk < std::min(covered_chunks, message.chunks.size()); ++chunk) {
    const ChunkRecord& record = message.chunks[chunk];
    if (record.state == ChunkState::kInFlight && record.sent_ns < lost_before_ns) {
      Lose(message, chunk);
    }
  }
}

void OutgoingChannel::OnNack(const NackedChunk& nacked) {
  if (nacked.sequence < first_sequence_ || nacked.sequence - first_sequence_ >= messages_.size()) {
    return;
  }
  Message& message = messages_[nacked.sequence - first_sequence_];
  const uint64_t chunk = nacked.offset / chunk_bytes_;
  if (chunk < message.chunks.size() && message.chunks[chunk].state == ChunkState::kInFlight &&
      message.chunks[chunk].sent_ns == nacked.sent_ns) {
    Lose(message, chunk);
  }
}

bool OutgoingChannel::OnState(const ChannelState& state, int64_t lost_before_ns, int64_t ready_ns) {
  if (state.next_sequence > first_sequence_ + messages_.size()) {
    return false;  // acknowledges more than was sent: not from our receiver
  }
  bool news = state.credit_limit > credit_limit_;
  credit_limit_ = std::max(credit_limit_, state.credit_limit);
  while (first_sequence_ < state.next_sequence) {
    messages_.pop_front();
    ++first_sequence_;
    acknowledged_ns_ = ready_ns;
    news = true;
  }
  auto word = state.messages.begin();
  for (size_t i = 0; i < messages_.size() && messages_[i].begun; ++i) {
    const uint64_t sequence = first_sequence_ + i;
    word = std::find_if(word, state.messages.end(), [&](const MessageState& m) { return m.sequence >= sequence; });
    if (word != state.messages.end() && word->sequence == sequence) {
      news |= ApplyMessageState(messages_[i], *word);
      const bool ends_early = word->words.size() == kMaxStateWords;
      MarkLost(messages_[i], ends_early ? word->first_missing + 64 * kMaxStateWords : messages_[i].chunks.size(),
               lost_before_ns);
    } else if (!state.truncated && sequence >= state.next_sequence) {
      MarkLost(messages_[i], messages_[i].chunks.size(), lost_before_ns);
    }
  }
  return news;
}

}  // namespace geopipe
