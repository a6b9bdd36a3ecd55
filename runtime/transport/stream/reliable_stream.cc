#include "runtime/transport/stream/reliable_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "optimizer/base/check.h"
#include "runtime/base/backoff.h"

namespace geopipe {
ReliableStream::ReliableStream(const StreamOptions& options, const std::vector<ChannelSpec>& channels)
    : options_(options), jitter_(options.seed) {
  GP_CHECK(options.session != 0 && options.chunk_bytes > 0 && options.max_control_bytes >= 512);
  for (const ChannelSpec& spec : channels) {
    if (spec.id.from_rank == options.local_rank && spec.id.to_rank == options.peer_rank) {
      outgoing_.try_emplace(spec.id, spec.id, options.chunk_bytes, options.max_messages);
    } else {
      GP_CHECK(spec.id.from_rank == options.peer_rank && spec.id.to_rank == options.local_rank,
               "a channel from rank {} to {} in the stream between ranks {} and {}", spec.id.from_rank, spec.id.to_rank,
               options.local_rank, options.peer_rank);
      incoming_.try_emplace(spec.id, IncomingChannel(spec.id, spec.slot_bytes));
    }
  }
}

// --- Events -----------------------------------------------------------------------------------------------------

absl::Status ReliableStream::Send(int64_t now_ns, const ChannelId& channel, const MessageTag& tag,
                                  const PayloadLayout& layout, SendPayload payload, int64_t ready_ns) {
  const auto found = outgoing_.find(channel);
  GP_CHECK(found != outgoing_.end(), "rank {} does not send on this channel", options_.local_rank);
  const bool waited = outstanding();
  absl::Status status = found->second.Enqueue(next_order_, tag, layout, std::move(payload), ready_ns);
  if (!status.ok()) {
    return status;
  }
  ++next_order_;
  if (!waited) {
    waiting_since_ns_ = now_ns;
    backoff_ = 0;
    ArmProbe(now_ns);
  }
  return absl::OkStatus();
}

void ReliableStream::Post(const ChannelId& channel, Slot slot) {
  const auto found = incoming_.find(channel);
  GP_CHECK(found != incoming_.end(), "rank {} does not receive on this channel", options_.local_rank);
  Incoming& incoming = found->second;
  incoming.channel.Post(slot);
  // The grant may wait within a host only; to another host it would then come too late.
  incoming.state_due |= !same_host_ || !incoming.channel.GrantCanWait(incoming.granted);
}

void ReliableStream::OnPeerUp(int64_t now_ns, bool same_host) {
  peer_up_ = true;
  same_host_ = same_host;
  data_ready_ns_ = 0;
  up_since_ns_ = now_ns;
  backoff_ = 0;
  clock_meter_.Restart();
  fresh_path_due_ = true;
  probe_due_ = true;
  RequestStates();
  ArmProbe(now_ns);
}

void ReliableStream::OnPeerDown(int64_t now_ns) {
  peer_up_ = false;
  ArmProbe(now_ns);
}

void ReliableStream::OnTimer(int64_t now_ns) {
  if (!failure_.ok()) {
    return;
  }
  if (waiting_since_ns_ != kNeverNs && now_ns - waiting_since_ns_ >= options_.silence_limit_ns) {
    failure_ = absl::UnavailableError(
        fmt::format("rank {} has not answered for {:.1f} s while messages to it wait; check its worker and the link",
                    options_.peer_rank, static_cast<double>(options_.silence_limit_ns) * 1e-9));
    probe_at_ns_ = kNeverNs;
    return;
  }
  if (now_ns >= probe_at_ns_) {
    probe_due_ = true;
    ++backoff_;
    ArmProbe(now_ns);
  }
}

void ReliableStream::MeasureRoundTrip(int64_t now_ns, const ControlHeader& control) {
  if (control.echo_ns <= last_echo_ns_) {
    return;  // no news
  }
  last_echo_ns_ = control.echo_ns;
  const int64_t sample = std::max<int64_t>(0, now_ns - control.echo_ns - control.echo_delay_ns);
  if (smoothed_rtt_ns_ == 0) {
    smoothed_rtt_ns_ = std::max<int64_t>(1, sample);
    rtt_variation_ns_ = sample / 2;
    return;
  }
  rtt_variation_ns_ = (3 * rtt_variation_ns_ + std::abs(smoothed_rtt_ns_ - sample)) / 4;
  smoothed_rtt_ns_ = std::max<int64_t>(1, (7 * smoothed_rtt_ns_ + sample) / 8);
}

void ReliableStream::OnControl(int64_t now_ns, const ControlHeader& control, int64_t ready_ns) {
  clock_meter_.OnTold(now_ns, control.min_crossing_ns);
  MeasureRoundTrip(now_ns, control);
  // Frames may overtake each other by a quarter of the round trip, or by the time given. Frames sent on a path that has
  // since broken cannot be on their way any more when the peer speaks on the new one.
  int64_t lost_before_ns = control.echo_ns - std::max(smoothed_rtt_ns_ / 4, options_.reordering_ns);
  // One of the frames sent before an unnamed nack was damaged: it is no frame that others have overtaken.
  lost_before_ns = std::max(lost_before_ns, std::min(damaged_before_ns_, control.echo_ns - smoothed_rtt_ns_ / 4));
  if (peer_up_ && (control.fresh_path || control.echo_ns >= up_since_ns_)) {
    lost_before_ns = std::max(lost_before_ns, up_since_ns_);
  }
  bool news = false;
  for (const ChannelState& state : control.channels) {
    const auto found = outgoing_.find(state.channel);
    if (found == outgoing_.end()) {
      ++counters_.refused_frames;
      continue;
    }
    news |= found->second.OnState(state, lost_before_ns, ready_ns);
  }
  if (control.probe) {
    RequestStates();
  }
  if (!outstanding()) {
    waiting_since_ns_ = kNeverNs;
    probe_at_ns_ = kNeverNs;
  } else if (news) {
    backoff_ = 0;
    ArmProbe(now_ns);
  }
}

// --- Timers -----------------------------------------------------------------------------------------------------

int64_t ReliableStream::TimeoutNs() const {
  int64_t timeout_ns = options_.initial_timeout_ns;
  if (smoothed_rtt_ns_ > 0) {
    timeout_ns = std::max(options_.min_timeout_ns, smoothed_rtt_ns_ + 4 * rtt_variation_ns_);
  }
  return std::min(options_.max_timeout_ns, timeout_ns << std::min(backoff_, 16));
}

void ReliableStream::ArmProbe(int64_t now_ns) {
  const bool wanting = outstanding() || peer_session_ == 0;
  probe_at_ns_ = peer_up_ && wanting ? now_ns + LengthenedNs(TimeoutNs(), jitter_) : kNeverNs;
}

int64_t ReliableStream::NextTimerNs() const {
  if (!failure_.ok()) {
    return kNeverNs;
  }
  return std::min(probe_at_ns_,
                  waiting_since_ns_ == kNeverNs ? kNeverNs : waiting_since_ns_ + options_.silence_limit_ns);
}

// --- Effects ----------------------------------------------------------------------------------------------------

FrameEnvelope ReliableStream::Envelope() const {
  return {.job_hash = options_.job_hash,
          .epoch = options_.epoch,
          .from_session = options_.session,
          .to_session = peer_session_};
}

void ReliableStream::RequestStates() {
  control_due_ = true;
  for (auto& [id, incoming] : incoming_) {
    incoming.state_due = true;
  }
}

bool ReliableStream::ControlDue() const {
  return control_due_ || probe_due_ ||
         std::any_of(incoming_.begin(), incoming_.end(), [](const auto& entry) { return entry.second.state_due; });
}

OutgoingFrame ReliableStream::MakeControl(int64_t now_ns) {
  ControlHeader control{.sent_ns = now_ns,
                        .echo_ns = peer_sent_ns_,
                        .echo_delay_ns = peer_sent_ns_ == 0 ? 0 : now_ns - peer_sent_arrived_ns_,
                        .min_crossing_ns = clock_meter_.TakeMin(),
                        .probe = probe_due_,
                        .fresh_path = fresh_path_due_,
                        .channels = {}};
  size_t bytes = EncodedControlSize();
  bool all = true;
  for (auto& [id, incoming] : incoming_) {
    if (!incoming.state_due) {
      continue;
    }
    ChannelState state = incoming.channel.State();
    // A state that does not even fit alone is cut; one that does not fit here goes in the next frame.
    while (EncodedControlSize() + EncodedSize(state) > options_.max_control_bytes) {
      state.messages.pop_back();
      state.truncated = true;
    }
    if (bytes + EncodedSize(state) > options_.max_control_bytes) {
      all = false;
      break;
    }
    bytes += EncodedSize(state);
    incoming.granted = state.credit_limit;
    control.channels.push_back(std::move(state));
    incoming.state_due = false;
    incoming.chunks_since_state = 0;
  }
  counters_.probes_sent += probe_due_ ? 1 : 0;
  probe_due_ = false;
  const int64_t ready_ns = data_ready_ns_ == 0 ? now_ns : data_ready_ns_;
  if (all) {
    control_due_ = false;
    fresh_path_due_ = false;
    data_ready_ns_ = 0;
  }
  return {.header = EncodeControl(Envelope(), control), .payload = {}, .ready_ns = ready_ns};
}

OutgoingFrame ReliableStream::MakeData(int64_t now_ns, OutgoingChannel& channel) {
  OutgoingChannel::Chunk chunk = channel.TakeChunk(now_ns);
  chunk.header.checksummed = !same_host_;
  counters_.frames_resent += chunk.resent ? 1 : 0;
  std::vector<std::byte> header = EncodeData(Envelope(), chunk.header, chunk.payload.bytes);
  // A chunk that was ready while there was no path waited for the path.
  return {.header = std::move(header),
          .payload = std::move(chunk.payload),
          .ready_ns = std::max(chunk.ready_ns, up_since_ns_)};
}

OutgoingFrame ReliableStream::MakeNack(int64_t now_ns) {
  NackHeader nack{.sent_ns = now_ns, .unnamed = unnamed_nack_due_};
  const auto end = nacked_.begin() + static_cast<std::ptrdiff_t>(std::min(nacked_.size(), kMaxNackedChunks));
  nack.chunks.assign(nacked_.begin(), end);
  nacked_.erase(nacked_.begin(), end);
  unnamed_nack_due_ = false;
  return {.header = EncodeNack(Envelope(), nack), .payload = {}, .ready_ns = now_ns};
}

std::optional<OutgoingFrame> ReliableStream::NextFrame(int64_t now_ns) {
  if (!peer_up_ || !failure_.ok()) {
    return std::nullopt;
  }
  std::optional<OutgoingFrame> frame;
  if (peer_session_ != 0 && (unnamed_nack_due_ || !nacked_.empty())) {
    frame = MakeNack(now_ns);
  } else if (ControlDue()) {
    frame = MakeControl(now_ns);
  } else if (peer_session_ != 0) {
    OutgoingChannel* next = nullptr;
    uint64_t lowest = 0;
    for (auto& [id, channel] : outgoing_) {
      const std::optional<uint64_t> order = channel.NextOrder();
      if (order.has_value() && (next == nullptr || *order < lowest)) {
        next = &channel;
        lowest = *order;
      }
    }
    if (next == nullptr) {
      return std::nullopt;
    }
    frame = MakeData(now_ns, *next);
  } else {
    return std::nullopt;
  }
  ++counters_.frames_sent;
  counters_.bytes_sent += static_cast<int64_t>(frame->header.size() + frame->payload.bytes.size());
  return frame;
}

std::optional<Delivery> ReliableStream::NextDelivery() {
  for (auto& [id, incoming] : incoming_) {
    if (!incoming.has_delivery) {
      continue;
    }
    if (std::optional<Delivery> delivery = incoming.channel.TakeNext(); delivery.has_value()) {
      return delivery;
    }
    incoming.has_delivery = false;
  }
  return std::nullopt;
}

const OutgoingChannel& ReliableStream::Outgoing(const ChannelId& channel) const {
  const auto found = outgoing_.find(channel);
  GP_CHECK(found != outgoing_.end(), "rank {} does not send on this channel", options_.local_rank);
  return found->second;
}

bool ReliableStream::outstanding() const {
  return std::any_of(outgoing_.begin(), outgoing_.end(), [](const auto& entry) { return entry.second.outstanding(); });
}

}  // namespace geopipe
