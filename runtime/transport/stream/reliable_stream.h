// Exactly-once delivery over an unreliable carrier, between one pair of ranks, for all their channels: retain,
// acknowledge, resend, credits. A state machine without thread, clock or I/O: its user reports events with the time
// they happened, then takes the effects (frames to send, messages that arrived, the time of the next timer).
//
// The receiver grants slots ahead of need: a message travels only when it has one. Messages are cut into chunks, one
// per frame, which go straight to their place in the slot in whatever order they come.
//
// Nothing is sent twice on a guess. Every frame carries its sender's time, which comes back as an echo in the
// receiver's control frames, with what has arrived; a chunk sent before the echoed frame (less a window for
// reordering) that has not arrived is lost, and only that one goes again (the idea of RACK, RFC 8985). When nothing
// comes back for a round trip's timeout (RFC 6298), a probe of some hundred bytes asks for the receiver's state, with
// exponential backoff and jitter. So a lost tail and a lost acknowledgement recover by timer, and a slow link costs
// probes, never payload. When the path comes up again both ends tell their state at once.
//
// A chunk whose payload came with other bytes is asked for at once, by a nack that names it. Where the header was
// damaged nobody can tell what it was: the peer then asks for the state, and takes what it sent before the nack, and is
// missing after it, as lost. A budget at both ends bounds that (nack_budget.h).
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "optimizer/base/splitmix64.h"
#include "runtime/transport/stream/clock_meter.h"
#include "runtime/transport/stream/frame.h"
#include "runtime/transport/stream/incoming_channel.h"
#include "runtime/transport/stream/nack_budget.h"
#include "runtime/transport/stream/outgoing_channel.h"
#include "runtime/transport/stream/stream_frame.h"

namespace geopipe {

struct StreamOptions {
  int32_t local_rank = 0;
  int32_t peer_rank = 0;
  uint64_t job_hash = 0;
  uint64_t epoch = 0;
  uint64_t session = 1;  // random, not zero: this life of this end
  uint32_t chunk_bytes = 64 * 1024;
  size_t max_control_bytes = 4096;
  size_t max_messages = 1024;  // per channel, sent and not acknowledged
  int32_t ack_every_chunks = 16;
  int64_t reordering_ns = 0;  // frames may overtake each other by this much (and by a quarter of a round trip)
  int64_t initial_timeout_ns = 1'000'000'000;
  int64_t min_timeout_ns = 200'000'000;
  int64_t max_timeout_ns = 4'000'000'000;
  int64_t silence_limit_ns = 60'000'000'000;  // fails after this time without a sign of the peer while messages wait
  uint64_t seed = 1;                          // of the jitter
};

struct StreamCounters {
  int64_t frames_sent = 0;
  int64_t frames_resent = 0;
  int64_t frames_received = 0;
  int64_t duplicate_frames = 0;
  int64_t refused_frames = 0;  // another job, epoch or session, or no such channel or slot
  int64_t corrupt_frames = 0;  // with other bytes than they were sent with
  int64_t probes_sent = 0;
  int64_t bytes_sent = 0;  // headers and payloads
  int64_t bytes_received = 0;
};

struct OutgoingFrame {
  std::vector<std::byte> header;
  SendPayload payload;
  int64_t ready_ns = 0;

  Frame frame() const { return {.header = header, .payload = payload.bytes, .ready_ns = ready_ns}; }
};

class ReliableStream {
 public:
  // Channels that do not join the two ranks are a bug.
  ReliableStream(const StreamOptions& options, const std::vector<ChannelSpec>& channels);

  // --- Events. `now_ns` never falls.
  // ResourceExhausted as OutgoingChannel::Enqueue. REQUIRES: an outgoing channel of this stream.
  // The payload is ready to be sent since `ready_ns`.
  absl::Status Send(int64_t now_ns, const ChannelId& channel, const MessageTag& tag, const PayloadLayout& layout,
                    SendPayload payload, int64_t ready_ns);
  // Gives a slot for one more message of an incoming channel.
  void Post(const ChannelId& channel, Slot slot);
  void OnFrame(int64_t now_ns, const Frame& frame);
  // Reports a path. `same_host`: frames from here on stay in the host's memory and are not checksummed.
  void OnPeerUp(int64_t now_ns, bool same_host = false);
  void OnPeerDown(int64_t now_ns);
  // Called at NextTimerNs() (later does no harm).
  void OnTimer(int64_t now_ns);

  // --- Effects.
  // The next frame to hand to the carrier; nullopt when there is none or no path.
  std::optional<OutgoingFrame> NextFrame(int64_t now_ns);
  // The next message that has arrived: once each, in order per channel.
  std::optional<Delivery> NextDelivery();
  // Number of messages of the outgoing channel that the receiver has whole, counted from the first.
  uint64_t Acknowledged(const ChannelId& channel) const { return Outgoing(channel).acknowledged(); }
  // Time at which the acknowledgement of the last of them was there.
  int64_t AcknowledgedNs(const ChannelId& channel) const { return Outgoing(channel).acknowledged_ns(); }
  int64_t NextTimerNs() const;
  // Not OK when the stream is over: the peer was silent too long, or is not the one it was.
  const absl::Status& failure() const { return failure_; }

  const StreamCounters& counters() const { return counters_; }
  PeerClock peer_clock(int64_t now_ns) const { return clock_meter_.At(now_ns); }
  // Time from a frame to its acknowledgement, smoothed; 0 before the first sample.
  int64_t round_trip_ns() const { return smoothed_rtt_ns_; }
  bool outstanding() const;
  bool peer_up() const { return peer_up_; }
  // True when the receiver has sent its state since the path last came up.
  bool peer_heard() const { return peer_session_ != 0; }
  int32_t peer_rank() const { return options_.peer_rank; }

 private:
  struct Incoming {
    explicit Incoming(IncomingChannel c) : channel(std::move(c)) {}
    IncomingChannel channel;
    bool state_due = false;
    uint64_t granted = 0;  // credit limit of the last state received
    int32_t chunks_since_state = 0;
    bool has_delivery = false;
  };

  const OutgoingChannel& Outgoing(const ChannelId& channel) const;
  FrameEnvelope Envelope() const;
  bool Admit(const DecodedFrame& frame);
  // Checks a frame; nullopt unless it is whole, of this stream's peer, and not late.
  std::optional<DecodedFrame> Hear(int64_t now_ns, absl::StatusOr<DecodedFrame> frame);
  void Note(Incoming& incoming, Arrival arrival);
  void OnControl(int64_t now_ns, const ControlHeader& control, int64_t ready_ns);
  // Counts a damaged frame, and asks for its chunk again; nullptr: it does not tell which it is.
  void OnDamage(int64_t now_ns, const DataHeader* data);
  void OnNack(int64_t now_ns, const NackHeader& nack);
  void MeasureRoundTrip(int64_t now_ns, const ControlHeader& control);
  void RequestStates();
  bool ControlDue() const;
  OutgoingFrame MakeControl(int64_t now_ns);
  OutgoingFrame MakeData(int64_t now_ns, OutgoingChannel& channel);
  OutgoingFrame MakeNack(int64_t now_ns);
  void ArmProbe(int64_t now_ns);
  int64_t TimeoutNs() const;

  const StreamOptions options_;
  std::map<ChannelId, OutgoingChannel> outgoing_;
  std::map<ChannelId, Incoming> incoming_;
  SplitMix64 jitter_;
  StreamCounters counters_;
  absl::Status failure_;

  bool peer_up_ = false;
  bool same_host_ = false;
  int64_t up_since_ns_ = 0;
  uint64_t peer_session_ = 0;  // 0: not known yet
  uint64_t next_order_ = 0;

  // Echo owed to the peer.
  int64_t peer_sent_ns_ = 0;
  int64_t peer_sent_arrived_ns_ = 0;
  // Due in the next control frames. data_ready_ns_: when the latest data they report was there; 0: they report none.
  int64_t data_ready_ns_ = 0;
  bool control_due_ = false;
  bool probe_due_ = false;
  bool fresh_path_due_ = false;

  // Damage: what is to be asked for, and what the peer was told to have missed.
  std::vector<NackedChunk> nacked_;
  bool unnamed_nack_due_ = false;
  int64_t damaged_before_ns_ = 0;  // of the frames sent before one came with a damaged header; 0: none has
  NackBudget asks_;
  NackBudget answers_;

  // Round trip, RFC 6298; zero before the first sample.
  int64_t last_echo_ns_ = 0;
  int64_t smoothed_rtt_ns_ = 0;
  int64_t rtt_variation_ns_ = 0;
  int32_t backoff_ = 0;
  ClockMeter clock_meter_;
  int64_t probe_at_ns_ = kNeverNs;
  int64_t waiting_since_ns_ = kNeverNs;  // last word of the peer, or the first message that waited; never: none waits
};

}  // namespace geopipe
