// Rounds among ranks anywhere, through messages: each rank sends each other the data it shows to it.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "runtime/collective/exchange.h"
#include "runtime/collective/host_communicator.h"
#include "runtime/tensor/allocator.h"
#include "runtime/transport/stream/message_transport.h"

namespace geopipe {

// A message of a round is the part, then the common bytes; its tag is the number of the round and the fingerprint. At
// most as many are on their way to a rank as it has slots.
class MessageExchange final : public Exchange {
 public:
  // All references outlive the exchange.
  MessageExchange(const ExchangePlace& place, const MessageGroup& group, MessageTransport& transport,
                  Allocator& allocator);

  int64_t Capacity(bool parts, bool common) const override;
  // Bytes that cross a network of 10 Gbit/s in the 50 us that a message takes.
  int64_t BytesInsteadOfRound() const override { return int64_t{64} << 10; }
  absl::Status Begin(const Round& round) override;
  std::byte* PartFor(int32_t to) override;
  std::byte* Common() override;
  absl::Status Show() override;
  absl::StatusOr<View> Look(int32_t from) override;
  void Abort(const absl::Status& why) override;
  absl::Status aborted() const override;

 private:
  // Messages to and from one other rank.
  struct Peer {
    Tensor outgoing;              // while it is written
    std::deque<MessageTag> sent;  // not known to be acknowledged
    Timed<Tensor> incoming;       // for as long as views of it are valid
    bool heard_abort = false;
  };

  MessageTag Tag() const;
  // Runs `wait` with deadlines, often enough to notice an abort, until it ends otherwise or has lasted too long.
  template <class Wait>
  absl::Status WaitFor(int32_t rank, const Wait& wait);
  // Takes up the aborts of other ranks and their reasons.
  void HearAborts();
  ChannelId Channel(MessageKind kind, int32_t from, int32_t to) const;

  const MessageGroup group_;
  MessageTransport& transport_;
  Allocator& allocator_;
  std::vector<Peer> peers_;
  int32_t first_ = -1;  // of those that this rank shows something to
  Round round_;
  int64_t number_ = -1;

  mutable std::mutex mutex_;
  absl::Status aborted_;
};

}  // namespace geopipe
