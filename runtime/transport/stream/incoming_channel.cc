#include "runtime/transport/stream/incoming_channel.h"

#include <algorithm>
#include <cstring>

#include "optimizer/base/check.h"

namespace geopipe {
void IncomingChannel::Post(Slot slot) {
  GP_CHECK(std::cmp_greater_equal(slot.memory.size(), slot_bytes_));
  free_.push_back(slot);
  ++credit_limit_;
}

bool IncomingChannel::Acceptable(const DataHeader& data, size_t payload_bytes) const {
  if (data.sequence >= credit_limit_ || std::cmp_greater(data.total_bytes, slot_bytes_) || data.chunk_bytes == 0) {
    return false;
  }
  const bool offset_fits = data.offset % data.chunk_bytes == 0 && data.offset <= data.total_bytes &&
                           (data.offset < data.total_bytes || data.total_bytes == 0);
  return offset_fits && payload_bytes == std::min<uint64_t>(data.chunk_bytes, data.total_bytes - data.offset);
}

Arrival IncomingChannel::OnData(const DataHeader& data, std::span<const std::byte> payload, int64_t ready_ns) {
  if (data.sequence < taken_) {
    return Arrival::kDuplicate;
  }
  if (!Acceptable(data, payload.size())) {
    return Arrival::kRefused;
  }
  const size_t index = data.sequence - taken_;
  while (window_.size() <= index) {
    window_.emplace_back();
  }
  Message& message = window_[index];
  if (!message.begun) {
    GP_CHECK(!free_.empty(), "a message within its credit found no slot");
    message.begun = true;
    message.first = data;
    message.slot = free_.back();
    free_.pop_back();
    message.chunks = std::max<uint64_t>(1, (data.total_bytes + data.chunk_bytes - 1) / data.chunk_bytes);
    message.arrived_bits.resize((message.chunks + 63) / 64);
  } else if (data.total_bytes != message.first.total_bytes || data.chunk_bytes != message.first.chunk_bytes ||
             data.tag != message.first.tag || data.layout != message.first.layout) {
    return Arrival::kRefused;
  }
  const size_t chunk = data.offset / data.chunk_bytes;
  if (message.Has(chunk)) {
    return Arrival::kDuplicate;
  }
  if (!payload.empty()) {
    std::memcpy(message.slot.memory.data() + data.offset, payload.data(), payload.size());
  }
  message.ready_ns = std::max(message.ready_ns, ready_ns);
  message.arrived_bits[chunk / 64] |= uint64_t{1} << (chunk % 64);
  ++message.arrived;
  const bool gap = chunk != message.first_missing;
  while (message.first_missing < message.chunks && message.Has(message.first_missing)) {
    ++message.first_missing;
  }
  if (message.whole()) {
    return Arrival::kWhole;
  }
  return gap ? Arrival::kGap : Arrival::kInOrder;
}

std::optional<Delivery> IncomingChannel::TakeNext() {
  if (window_.empty() || !window_.front().whole()) {
    return std::nullopt;
  }
  const Message& message = window_.front();
  Delivery delivery{.channel = id_,
                    .tag = message.first.tag,
                    .sequence = taken_,
                    .layout = message.first.layout,
                    .bytes = static_cast<int64_t>(message.first.total_bytes),
                    .slot_id = message.slot.id,
                    .ready_ns = message.ready_ns};
  window_.pop_front();
  ++taken_;
  return delivery;
}

bool IncomingChannel::GrantCanWait(uint64_t granted) const {
  if (window_.empty() || window_.back().whole()) {
    return false;
  }
  const uint64_t begun = taken_ + window_.size();
  return granted > begun && 2 * (granted - begun) > credit_limit_ - begun;
}

MessageState IncomingChannel::StateOf(uint64_t sequence, const Message& message) {
  MessageState state{.sequence = sequence, .first_missing = static_cast<uint32_t>(message.first_missing), .words = {}};
  for (size_t chunk = message.first_missing; chunk < message.chunks; ++chunk) {
    const size_t bit = chunk - message.first_missing;
    if (bit / 64 >= kMaxStateWords) {
      break;
    }
    if (message.Has(chunk)) {
      state.words.resize(bit / 64 + 1);
      state.words[bit / 64] |= uint64_t{1} << (bit % 64);
    }
  }
  // A full set of words tells the sender that more may follow them.
  if (message.chunks - message.first_missing > 64 * kMaxStateWords) {
    state.words.resize(kMaxStateWords);
  }
  return state;
}

ChannelState IncomingChannel::State() const {
  ChannelState state{.channel = id_, .next_sequence = taken_, .credit_limit = credit_limit_, .messages = {}};
  size_t index = 0;
  while (index < window_.size() && window_[index].whole()) {
    ++index;
    ++state.next_sequence;
  }
  for (; index < window_.size(); ++index) {
    if (!window_[index].begun) {
      continue;
    }
    if (state.messages.size() == kMaxStateMessages) {
      state.truncated = true;
      break;
    }
    state.messages.push_back(StateOf(taken_ + index, window_[index]));
  }
  return state;
}

}  // namespace geopipe
