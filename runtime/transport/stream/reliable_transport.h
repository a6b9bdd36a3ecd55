// The message transport over any frame carrier: where its users' threads (the executor's, those of groups of ranks) and
// the carrier's progress thread meet. The streams belong to the progress thread alone; messages, slots and news of
// acknowledgements change hands under one lock that is held for moving pointers only, so Send never waits for anything.
// Each channel wakes its own thread and no other.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/tensor/allocator.h"
#include "runtime/transport/stream/frame.h"
#include "runtime/transport/stream/message_transport.h"
#include "runtime/transport/stream/reliable_stream.h"

namespace geopipe {

struct ReliableTransportOptions {
  int32_t rank = 0;
  Allocator* allocator = nullptr;     // of the slots, category transport; outlives the transport and received tensors
  std::vector<ChannelSpec> channels;  // that begin or end at `rank`
  StreamOptions stream;               // ranks and chunk size are filled in
  std::vector<std::string> sites;     // of all ranks, for warnings; empty: not known
  // Takes a warning, on the progress thread; empty: the log does.
  std::function<void(const std::string&)> warn;
  Clock* clock = &Clock::Real();
};

class ReliableTransport final : public MessageTransport, public FrameSink {
 public:
  // Allocates every slot. `carrier` must call nothing before this returns and nothing after it was stopped; it must
  // be stopped, its frames `done`, before the transport is destroyed. Errors are the allocator's; InvalidArgument if a
  // channel neither begins nor ends at the rank, or is given twice.
  static absl::StatusOr<std::unique_ptr<ReliableTransport>> Create(ReliableTransportOptions options,
                                                                   FrameCarrier& carrier);

  // Ranks that share a channel with this one.
  std::vector<PeerId> peers() const;
  // Waits until every peer has sent its state, which grants its slots. DeadlineExceeded names those that have
  // not.
  absl::Status WaitConnected(int64_t deadline_ns);

  struct Stats {
    StreamCounters streams;  // summed
    int64_t reconnects = 0;
    std::map<PeerId, PeerClock> clocks = {};
    std::vector<PeerTraffic> peers = {};
  };
  // Figures as of the last progress; messages between stages as of now.
  Stats stats() const;

  // MessageTransport.
  absl::Status Send(const ChannelId& channel, const MessageTag& tag, Timed<Tensor> payload) override;
  absl::StatusOr<Timed<Tensor>> Receive(const ChannelId& channel, const MessageTag& tag, int64_t deadline_ns) override;
  absl::StatusOr<int64_t> WaitAcknowledged(const ChannelId& channel, const MessageTag& tag,
                                           int64_t deadline_ns) override;
  void Fail(absl::Status status) override;

  // FrameSink.
  void OnFrame(PeerId from, const Frame& frame) override;
  void OnPeerUp(PeerId peer) override;
  void OnPeerDown(PeerId peer, const absl::Status& why) override;
  int64_t OnProgress(int64_t now_ns) override;

 private:
  static constexpr int64_t kTellOfDamageEveryNs = 10'000'000'000;
  static constexpr uint64_t kNobodyWaits = std::numeric_limits<uint64_t>::max();

  struct Arrived {
    Delivery delivery;
    Tensor slot;
  };
  struct Inbound {
    ChannelSpec spec;
    std::deque<Arrived> arrived;  // at most `slots`
    bool awaited = false;
    std::condition_variable changed;  // a message while one is awaited, or the failure
  };
  struct Outbound {
    ChannelSpec spec;
    std::deque<MessageTag> waiting;  // sent, not acknowledged; at most max_messages
    int64_t sent_messages = 0;
    int64_t sent_bytes = 0;
    uint64_t acknowledged = 0;
    uint64_t awaited = kNobodyWaits;  // how many acknowledged messages a thread waits for
    int64_t acknowledged_ns = 0;      // when the last of them was
    std::condition_variable changed;  // as many are acknowledged, or the failure
  };
  struct Departure {
    ChannelId channel;
    MessageTag tag;
    PayloadLayout layout;
    std::shared_ptr<const Tensor> tensor;
    Completion ready;
  };
  struct Post {
    ChannelId channel;
    uint64_t slot_id = 0;
    Tensor slot;
  };
  struct Peer {
    explicit Peer(ReliableStream s) : stream(std::move(s)) {}
    ReliableStream stream;
    bool was_up = false;
    int64_t corrupt_told = 0;   // damaged frames that were warned of
    int64_t tell_again_ns = 0;  // not before
  };

  ReliableTransport(ReliableTransportOptions options, FrameCarrier& carrier);

  absl::Status AddChannels();
  // Takes enough staging memory at once for all messages of the run, where slots are such memory.
  absl::Status ReserveStaging();
  // Memory for a message of the channel.
  absl::StatusOr<Tensor> NewSlot(const ChannelSpec& spec);
  // The arrived message as a tensor of the sender's dtype and shape, in its slot's memory.
  static absl::StatusOr<Tensor> Unpack(const ChannelSpec& spec, Arrived arrived);
  void TakeOrders(int64_t now_ns);
  void SendFrames(int64_t now_ns);
  // Warns of frames that came damaged, of each peer's at most every kTellOfDamageEveryNs. Returns when there is more to
  // tell.
  int64_t TellOfDamage(int64_t now_ns);
  // "rank 3 (site west)".
  std::string NameOf(PeerId rank) const;
  void Publish(int64_t now_ns);
  // Fills news_ with the channels whose waits are over.
  void PublishLocked(int64_t now_ns);
  // Ends all waits.
  void WakeAllLocked();

  const ReliableTransportOptions options_;
  FrameCarrier& carrier_;
  std::vector<ReadyBlocks> reserve_;  // of staging memory

  // Progress thread only.
  std::map<PeerId, Peer> peers_;
  std::map<uint64_t, Tensor> slots_;  // posted
  int64_t reconnects_ = 0;
  std::vector<std::condition_variable*> news_;

  mutable std::mutex mutex_;
  std::condition_variable heard_;  // a peer's first word, or the failure
  absl::Status failure_;
  std::map<ChannelId, Inbound> inbound_;
  std::map<ChannelId, Outbound> outbound_;
  std::vector<Departure> departures_;  // ready to leave
  std::vector<Post> posts_;
  uint64_t next_slot_id_ = 1;
  std::vector<PeerId> unheard_;  // peers that have not sent their state yet
  Stats stats_;
};

}  // namespace geopipe
