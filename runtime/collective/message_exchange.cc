#include "runtime/collective/message_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/collective_memory.h"

namespace geopipe {
namespace {

// Interval at which a waiting rank checks for the aborts of others.
constexpr int64_t kAbortCheckNs = 200'000'000;
constexpr MessageTag kAbortTag{};

// Element of a message's tensor: a word, because transports know slots by the layout of the messages.
constexpr int64_t kWordBytes = 4;

ChannelId ChannelOf(const MessageGroup& group, MessageKind kind, int32_t from, int32_t to) {
  return {.kind = kind,
          .boundary = group.id,
          .from_rank = group.ranks[static_cast<size_t>(from)],
          .to_rank = group.ranks[static_cast<size_t>(to)]};
}

}  // namespace

std::vector<ChannelSpec> CollectiveChannels(const MessageGroup& group, int32_t rank) {
  std::vector<ChannelSpec> channels;
  for (int32_t other = 0; other < static_cast<int32_t>(group.ranks.size()); ++other) {
    if (other == rank) {
      continue;
    }
    for (const auto& [from, to] : {std::pair(rank, other), std::pair(other, rank)}) {
      channels.push_back({.id = ChannelOf(group, MessageKind::kCollective, from, to),
                          .slot_bytes = kCollectiveMessageBytes,
                          .slots = kCollectiveMessageSlots});
      channels.push_back({.id = ChannelOf(group, MessageKind::kCollectiveAbort, from, to),
                          .slot_bytes = kAbortMessageBytes,
                          .slots = 1});
    }
  }
  return channels;
}

MessageExchange::MessageExchange(const ExchangePlace& place, const MessageGroup& group, MessageTransport& transport,
                                 Allocator& allocator)
    : Exchange(place), group_(group), transport_(transport), allocator_(allocator), peers_(group.ranks.size()) {}

ChannelId MessageExchange::Channel(MessageKind kind, int32_t from, int32_t to) const {
  return ChannelOf(group_, kind, from, to);
}

int64_t MessageExchange::Capacity(bool parts, bool common) const {
  return kCollectiveMessageBytes / (parts && common ? 2 : 1) / 64 * 64;
}

MessageTag MessageExchange::Tag() const {
  return {.iteration = number_, .micro_batch = static_cast<int32_t>(round_.fingerprint)};
}

template <class Wait>
absl::Status MessageExchange::WaitFor(int32_t rank, const Wait& wait) {
  absl::Status result = wait(0);
  if (!absl::IsDeadlineExceeded(result)) {
    return result;
  }
  const Waiting waiting(watch());
  const int64_t deadline_ns = WaitDeadlineNs();
  while (true) {
    HearAborts();
    GP_RETURN_IF_ERROR(aborted());
    const int64_t now_ns = clock().NowNs();
    if (now_ns >= deadline_ns) {
      return absl::DeadlineExceededError(
          fmt::format("rank {} (rank {} of its group) has not come in time to the collective operation that rank {} is "
                      "in; it is stuck or has ended",
                      group_.ranks[static_cast<size_t>(rank)], rank, group_.ranks[static_cast<size_t>(this->rank())]));
    }
    result = wait(std::min(deadline_ns, now_ns + kAbortCheckNs));
    if (!absl::IsDeadlineExceeded(result)) {
      return result;
    }
  }
}

absl::Status MessageExchange::Begin(const Round& round) {
  round_ = round;
  ++number_;
  first_ = -1;
  HearAborts();
  GP_RETURN_IF_ERROR(aborted());
  for (Peer& peer : peers_) {
    peer.incoming = {};
  }
  const int64_t words = (round.part_bytes + round.common_bytes + kWordBytes - 1) / kWordBytes;
  for (int32_t to = 0; to < size(); ++to) {
    if (!round.Carries(rank(), to)) {
      continue;
    }
    Peer& peer = peers_[static_cast<size_t>(to)];
    while (peer.sent.size() >= static_cast<size_t>(kCollectiveMessageSlots)) {
      GP_RETURN_IF_ERROR(WaitFor(to, [&](int64_t until_ns) {
        return transport_.WaitAcknowledged(Channel(MessageKind::kCollective, rank(), to), peer.sent.front(), until_ns)
            .status();
      }));
      peer.sent.pop_front();
    }
    GP_ASSIGN_OR_RETURN(peer.outgoing, Tensor::Create(allocator_, MemoryCategory::kTransport, DType::kInt32, {words}));
    first_ = first_ < 0 ? to : first_;
  }
  return absl::OkStatus();
}

std::byte* MessageExchange::PartFor(int32_t to) { return peers_[static_cast<size_t>(to)].outgoing.data(); }

std::byte* MessageExchange::Common() {
  GP_CHECK(first_ >= 0, "a rank that shows nothing");
  return peers_[static_cast<size_t>(first_)].outgoing.data() + round_.part_bytes;
}

absl::Status MessageExchange::Show() {
  for (int32_t to = 0; to < size(); ++to) {
    if (to != first_ && round_.Carries(rank(), to) && round_.common_bytes > 0) {
      std::memcpy(peers_[static_cast<size_t>(to)].outgoing.data() + round_.part_bytes, Common(),
                  static_cast<size_t>(round_.common_bytes));
    }
  }
  for (int32_t i = 1; i < size(); ++i) {  // from the next rank on, so that not all send to the same one at once
    const int32_t to = (rank() + i) % size();
    if (round_.Carries(rank(), to)) {
      Peer& peer = peers_[static_cast<size_t>(to)];
      GP_RETURN_IF_ERROR(
          transport_.Send(Channel(MessageKind::kCollective, rank(), to), Tag(),
                          {.value = std::move(peer.outgoing), .ready = Completion::At(clock().NowNs())}));
      peer.sent.push_back(Tag());
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Exchange::View> MessageExchange::Look(int32_t from) {
  Peer& peer = peers_[static_cast<size_t>(from)];
  GP_RETURN_IF_ERROR(WaitFor(from, [&](int64_t until_ns) -> absl::Status {
    GP_ASSIGN_OR_RETURN(peer.incoming,
                        transport_.Receive(Channel(MessageKind::kCollective, from, rank()), Tag(), until_ns));
    return absl::OkStatus();
  }));
  if (peer.incoming.value.bytes() < round_.part_bytes + round_.common_bytes) {
    return absl::InternalError(fmt::format("rank {} sent {} bytes to a collective operation where {} belong",
                                           group_.ranks[static_cast<size_t>(from)], peer.incoming.value.bytes(),
                                           round_.part_bytes + round_.common_bytes));
  }
  const std::byte* data = peer.incoming.value.data();
  return View{.part = data, .common = data + round_.part_bytes};
}

void MessageExchange::HearAborts() {
  for (int32_t other = 0; other < size(); ++other) {
    Peer& peer = peers_[static_cast<size_t>(other)];
    if (other == rank() || peer.heard_abort) {
      continue;
    }
    const absl::StatusOr<Timed<Tensor>> message =
        transport_.Receive(Channel(MessageKind::kCollectiveAbort, other, rank()), kAbortTag, 0);
    if (!message.ok()) {
      continue;  // it has not given up; where the transport has failed, so do the waits
    }
    peer.heard_abort = true;
    const std::span<const int32_t> words = message->value.int32();
    if (words.size() < 2) {
      continue;
    }
    const auto* text = reinterpret_cast<const char*>(words.data() + 1);
    const std::string_view why(text, strnlen(text, (words.size() - 1) * kWordBytes));
    const std::lock_guard lock(mutex_);
    if (aborted_.ok()) {
      aborted_ = absl::Status(static_cast<absl::StatusCode>(words[0]), absl::string_view(why.data(), why.size()));
    }
  }
}

void MessageExchange::Abort(const absl::Status& why) {
  GP_CHECK(!why.ok());
  {
    const std::lock_guard lock(mutex_);
    if (!aborted_.ok()) {
      return;  // the others know
    }
    aborted_ = why;
  }
  for (int32_t to = 0; to < size(); ++to) {
    if (to == rank()) {
      continue;
    }
    absl::StatusOr<Tensor> message =
        Tensor::Zeros(allocator_, MemoryCategory::kTransport, DType::kInt32, {kAbortMessageBytes / kWordBytes});
    if (!message.ok()) {
      return;  // their waits have deadlines
    }
    message->int32()[0] = static_cast<int32_t>(why.code());
    const size_t bytes = std::min(why.message().size(), static_cast<size_t>(kAbortMessageBytes - 2 * kWordBytes));
    std::memcpy(message->data() + kWordBytes, why.message().data(), bytes);
    // An error here is ignored: the transport has failed, for the other ranks as well.
    static_cast<void>(transport_.Send(Channel(MessageKind::kCollectiveAbort, rank(), to), kAbortTag,
                                      {.value = *std::move(message), .ready = Completion::At(clock().NowNs())}));
  }
}

absl::Status MessageExchange::aborted() const {
  const std::lock_guard lock(mutex_);
  return aborted_;
}

}  // namespace geopipe
