#include "runtime/transport/stream/reliable_transport.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/log.h"

namespace geopipe {
namespace {

// CLOCK_MONOTONIC is the steady clock here.
std::chrono::steady_clock::time_point TimePoint(int64_t monotonic_ns) {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(monotonic_ns));
}

std::string Describe(const ChannelId& channel) {
  return fmt::format("{} of boundary {} from rank {} to {}", MessageKindName(channel.kind), channel.boundary,
                     channel.from_rank, channel.to_rank);
}

std::string Describe(const MessageTag& tag) {
  return fmt::format("iteration {}, micro-batch {}", tag.iteration, tag.micro_batch);
}

int64_t MaxUnacknowledged(const ChannelSpec& spec) { return kUnacknowledgedPerSlot * spec.slots; }

// The layout of a slot's memory: that of its messages, or plain words where these differ.
PayloadLayout SlotLayout(const ChannelSpec& spec) {
  return spec.layout.value_or(PayloadLayout::Of(DType::kInt32, {(spec.slot_bytes + 3) / 4}));
}

std::string OtherLayout(const ChannelSpec& spec, const PayloadLayout& layout) {
  return fmt::format("{}: a message is {}, but the channel's are {}", Describe(spec.id), ToString(layout),
                     ToString(*spec.layout));
}

void Add(StreamCounters& sum, const StreamCounters& counters) {
  sum.frames_sent += counters.frames_sent;
  sum.frames_resent += counters.frames_resent;
  sum.frames_received += counters.frames_received;
  sum.duplicate_frames += counters.duplicate_frames;
  sum.refused_frames += counters.refused_frames;
  sum.corrupt_frames += counters.corrupt_frames;
  sum.probes_sent += counters.probes_sent;
  sum.bytes_sent += counters.bytes_sent;
  sum.bytes_received += counters.bytes_received;
}

}  // namespace

ReliableTransport::ReliableTransport(ReliableTransportOptions options, FrameCarrier& carrier)
    : options_(std::move(options)), carrier_(carrier) {}

absl::StatusOr<std::unique_ptr<ReliableTransport>> ReliableTransport::Create(ReliableTransportOptions options,
                                                                             FrameCarrier& carrier) {
  for (const ChannelSpec& spec : options.channels) {
    options.stream.max_messages = std::max<size_t>(options.stream.max_messages, MaxUnacknowledged(spec));
  }
  if (!options.warn) {
    options.warn = [](const std::string& warning) { LogWarning("{}", warning); };
  }
  std::unique_ptr<ReliableTransport> transport(new ReliableTransport(std::move(options), carrier));
  GP_RETURN_IF_ERROR(transport->AddChannels());
  GP_RETURN_IF_ERROR(transport->ReserveStaging());
  return transport;
}

absl::Status ReliableTransport::AddChannels() {
  std::map<PeerId, std::vector<ChannelSpec>> by_peer;
  for (const ChannelSpec& spec : options_.channels) {
    const bool outgoing = spec.id.from_rank == options_.rank;
    const bool known = outgoing ? !outbound_.try_emplace(spec.id).second : !inbound_.try_emplace(spec.id).second;
    (outgoing ? outbound_.at(spec.id).spec : inbound_.at(spec.id).spec) = spec;
    const bool fits = !spec.layout.has_value() || spec.layout->bytes() == spec.slot_bytes;
    if (outgoing == (spec.id.to_rank == options_.rank) || known || spec.slots < 1 || spec.slot_bytes < 1 || !fits) {
      return absl::InvalidArgumentError(
          fmt::format("rank {} cannot have the channel {} with {} slots of {} bytes: it must begin or end there, "
                      "once, and have a slot that its messages fill",
                      options_.rank, Describe(spec.id), spec.slots, spec.slot_bytes));
    }
    by_peer[outgoing ? spec.id.to_rank : spec.id.from_rank].push_back(spec);
  }
  for (const auto& [peer, channels] : by_peer) {
    StreamOptions stream = options_.stream;
    stream.local_rank = options_.rank;
    stream.peer_rank = peer;
    stream.chunk_bytes = static_cast<uint32_t>(carrier_.max_payload_bytes(peer));
    stream.max_control_bytes = static_cast<size_t>(std::min<int64_t>(4096, carrier_.max_header_bytes()));
    stream.seed ^= static_cast<uint64_t>(peer) << 32;
    peers_.try_emplace(peer, ReliableStream(stream, channels));
    unheard_.push_back(peer);
  }
  for (const auto& [id, inbound] : inbound_) {
    for (int32_t i = 0; i < inbound.spec.slots; ++i) {
      GP_ASSIGN_OR_RETURN(Tensor slot, NewSlot(inbound.spec));
      posts_.push_back({.channel = id, .slot_id = next_slot_id_++, .slot = std::move(slot)});
    }
  }
  return absl::OkStatus();
}

// Receivers copy as many messages to the device as may be on their way, while slots wait for others. Senders keep
// those that the receiver's slots hold and as many again that await acknowledgement.
absl::Status ReliableTransport::ReserveStaging() {
  if (options_.allocator->device().space() == MemorySpace::kHost) {
    return absl::OkStatus();
  }
  for (const ChannelSpec& spec : options_.channels) {
    const bool outgoing = spec.id.from_rank == options_.rank;
    GP_ASSIGN_OR_RETURN(ReadyBlocks ready,
                        options_.allocator->KeepReady(SlotLayout(spec).bytes(),
                                                      outgoing ? MaxUnacknowledged(spec) : int64_t{spec.slots}));
    reserve_.push_back(std::move(ready));
  }
  return absl::OkStatus();
}

std::vector<PeerId> ReliableTransport::peers() const {
  std::vector<PeerId> ranks;
  for (const auto& [rank, peer] : peers_) {
    ranks.push_back(rank);
  }
  return ranks;
}

// --- The users' threads -----------------------------------------------------------------------------------------

absl::StatusOr<Tensor> ReliableTransport::NewSlot(const ChannelSpec& spec) {
  const PayloadLayout layout = SlotLayout(spec);
  return Tensor::Create(*options_.allocator, MemoryCategory::kTransport, layout.dtype, layout.shape());
}

absl::StatusOr<Tensor> ReliableTransport::Unpack(const ChannelSpec& spec, Arrived arrived) {
  const PayloadLayout& layout = arrived.delivery.layout;
  const int64_t bytes = arrived.delivery.bytes;
  if (spec.layout.has_value() && layout != *spec.layout) {
    return absl::InternalError(OtherLayout(spec, layout) + "; do all agents run the same version?");
  }
  if (bytes == 0) {
    return Tensor();
  }
  if (layout.bytes(bytes) != bytes) {
    return absl::InternalError(
        fmt::format("a message of {} bytes is not of the shape it says ({})", bytes, ToString(layout)));
  }
  return std::move(arrived.slot).Into(layout.dtype, layout.shape());
}

absl::Status ReliableTransport::Send(const ChannelId& channel, const MessageTag& tag, Timed<Tensor> timed) {
  const Tensor& payload = timed.value;
  if (payload.shape().size() > PayloadLayout::kMaxDimensions) {
    return absl::InvalidArgumentError(fmt::format("a message of {} dimensions cannot be sent ({}); at most {} can",
                                                  payload.shape().size(), Describe(channel),
                                                  PayloadLayout::kMaxDimensions));
  }
  const PayloadLayout layout = PayloadLayout::Of(payload.dtype(), payload.shape());
  {
    std::lock_guard lock(mutex_);
    GP_RETURN_IF_ERROR(failure_);
    const auto found = outbound_.find(channel);
    if (found == outbound_.end()) {
      return absl::InvalidArgumentError(fmt::format("rank {} does not send {}", options_.rank, Describe(channel)));
    }
    Outbound& outbound = found->second;
    if (outbound.spec.layout.has_value() && layout != *outbound.spec.layout) {
      return absl::InvalidArgumentError(OtherLayout(outbound.spec, layout));
    }
    if (payload.bytes() > outbound.spec.slot_bytes) {
      return absl::InvalidArgumentError(fmt::format("a message of {} bytes does not fit the slot of {} bytes of {}",
                                                    payload.bytes(), outbound.spec.slot_bytes, Describe(channel)));
    }
    if (outbound.waiting.size() >= options_.stream.max_messages) {
      return absl::ResourceExhaustedError(
          fmt::format("{} messages ({}) wait for their acknowledgement, which is the limit; rank {} does not take them",
                      outbound.waiting.size(), Describe(channel), channel.to_rank));
    }
    outbound.waiting.push_back(tag);
    ++outbound.sent_messages;
    outbound.sent_bytes += payload.bytes();
  }
  // The departure's tensor is shared because std::function copies its captures.
  timed.ready.Then([this, departure = Departure{.channel = channel,
                                                .tag = tag,
                                                .layout = layout,
                                                .tensor = std::make_shared<const Tensor>(std::move(timed.value)),
                                                .ready = timed.ready}] {
    if (const absl::Status made = departure.ready.status(); !made.ok()) {
      Fail(made);
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      departures_.push_back(departure);
    }
    carrier_.Wake();
  });
  return absl::OkStatus();
}

absl::StatusOr<Timed<Tensor>> ReliableTransport::Receive(const ChannelId& channel, const MessageTag& tag,
                                                         int64_t deadline_ns) {
  Arrived arrived;
  ChannelSpec spec;
  {
    std::unique_lock lock(mutex_);
    const auto found = inbound_.find(channel);
    if (found == inbound_.end()) {
      return absl::InvalidArgumentError(fmt::format("rank {} does not receive {}", options_.rank, Describe(channel)));
    }
    Inbound& inbound = found->second;
    GP_CHECK(!inbound.awaited, "two threads wait for the next message of {}", Describe(channel));
    inbound.awaited = true;
    const bool ready = inbound.changed.wait_until(lock, TimePoint(deadline_ns),
                                                  [&] { return !failure_.ok() || !inbound.arrived.empty(); });
    inbound.awaited = false;
    GP_RETURN_IF_ERROR(failure_);
    if (!ready) {
      return absl::DeadlineExceededError(
          fmt::format("{} did not arrive in time ({})", Describe(channel), Describe(tag)));
    }
    arrived = std::move(inbound.arrived.front());
    inbound.arrived.pop_front();
    spec = inbound.spec;
  }
  if (arrived.delivery.tag != tag) {
    return absl::InternalError(fmt::format("the next message of {} is of {}, not of {}", Describe(channel),
                                           Describe(arrived.delivery.tag), Describe(tag)));
  }
  const int64_t ready_ns = arrived.delivery.ready_ns;
  GP_ASSIGN_OR_RETURN(Tensor tensor, Unpack(spec, std::move(arrived)));
  GP_ASSIGN_OR_RETURN(Tensor slot, NewSlot(spec));
  {
    std::lock_guard lock(mutex_);
    posts_.push_back({.channel = channel, .slot_id = next_slot_id_++, .slot = std::move(slot)});
  }
  carrier_.Wake();
  return Timed<Tensor>{.value = std::move(tensor), .ready = Completion::At(ready_ns)};
}

absl::StatusOr<int64_t> ReliableTransport::WaitAcknowledged(const ChannelId& channel, const MessageTag& tag,
                                                            int64_t deadline_ns) {
  std::unique_lock lock(mutex_);
  const auto found = outbound_.find(channel);
  if (found == outbound_.end()) {
    return absl::InvalidArgumentError(fmt::format("rank {} does not send {}", options_.rank, Describe(channel)));
  }
  Outbound& outbound = found->second;
  const auto last = std::find(outbound.waiting.rbegin(), outbound.waiting.rend(), tag);
  GP_CHECK(outbound.awaited == kNobodyWaits, "two threads wait for acknowledgements of {}", Describe(channel));
  outbound.awaited = outbound.acknowledged + static_cast<uint64_t>(outbound.waiting.rend() - last);
  const bool acknowledged = outbound.changed.wait_until(
      lock, TimePoint(deadline_ns), [&] { return !failure_.ok() || outbound.acknowledged >= outbound.awaited; });
  outbound.awaited = kNobodyWaits;
  GP_RETURN_IF_ERROR(failure_);
  if (!acknowledged) {
    return absl::DeadlineExceededError(
        fmt::format("{} was not acknowledged in time ({})", Describe(channel), Describe(tag)));
  }
  return outbound.acknowledged_ns;
}

absl::Status ReliableTransport::WaitConnected(int64_t deadline_ns) {
  std::unique_lock lock(mutex_);
  const bool heard =
      heard_.wait_until(lock, TimePoint(deadline_ns), [&] { return !failure_.ok() || unheard_.empty(); });
  GP_RETURN_IF_ERROR(failure_);
  if (!heard) {
    return absl::DeadlineExceededError(
        fmt::format("rank {} was not answered in time by rank {}", options_.rank, fmt::join(unheard_, ", ")));
  }
  return absl::OkStatus();
}

void ReliableTransport::Fail(absl::Status status) {
  GP_CHECK(!status.ok());
  std::lock_guard lock(mutex_);
  if (failure_.ok()) {
    failure_ = std::move(status);
  }
  WakeAllLocked();
}

void ReliableTransport::WakeAllLocked() {
  heard_.notify_all();
  for (auto& [id, inbound] : inbound_) {
    inbound.changed.notify_all();
  }
  for (auto& [id, outbound] : outbound_) {
    outbound.changed.notify_all();
  }
}

ReliableTransport::Stats ReliableTransport::stats() const {
  std::lock_guard lock(mutex_);
  Stats stats = stats_;
  for (PeerTraffic& peer : stats.peers) {
    for (const MessageKind kind : {MessageKind::kActivation, MessageKind::kGradient}) {
      MessageTraffic traffic{.kind = kind};
      bool has_channel = false;
      for (const auto& [id, outbound] : outbound_) {
        if (id.kind == kind && id.to_rank == peer.rank) {
          has_channel = true;
          traffic.messages += outbound.sent_messages;
          traffic.bytes += outbound.sent_bytes;
        }
      }
      if (has_channel) {
        peer.between_stages.push_back(traffic);
      }
    }
  }
  return stats;
}

// --- The progress thread ----------------------------------------------------------------------------------------

void ReliableTransport::OnFrame(PeerId from, const Frame& frame) {
  if (const auto peer = peers_.find(from); peer != peers_.end()) {
    peer->second.stream.OnFrame(options_.clock->NowNs(), frame);
  }
}

void ReliableTransport::OnPeerUp(PeerId peer) {
  if (const auto found = peers_.find(peer); found != peers_.end()) {
    reconnects_ += std::exchange(found->second.was_up, true) ? 1 : 0;
    found->second.stream.OnPeerUp(options_.clock->NowNs(), carrier_.SameHost(peer));
  }
}

void ReliableTransport::OnPeerDown(PeerId peer, const absl::Status& /*why*/) {
  if (const auto found = peers_.find(peer); found != peers_.end()) {
    found->second.stream.OnPeerDown(options_.clock->NowNs());
  }
}

void ReliableTransport::TakeOrders(int64_t now_ns) {
  std::vector<Departure> departures;
  std::vector<Post> posts;
  {
    std::lock_guard lock(mutex_);
    departures.swap(departures_);
    posts.swap(posts_);
  }
  for (Post& post : posts) {
    const Tensor& slot = slots_.try_emplace(post.slot_id, std::move(post.slot)).first->second;
    peers_.at(post.channel.from_rank)
        .stream.Post(post.channel, {.id = post.slot_id, .memory = {slot.data(), static_cast<size_t>(slot.bytes())}});
  }
  for (Departure& departure : departures) {
    const Tensor& tensor = *departure.tensor;
    const std::span<const std::byte> bytes(tensor.data(), static_cast<size_t>(tensor.bytes()));
    const absl::Status taken =
        peers_.at(departure.channel.to_rank)
            .stream.Send(now_ns, departure.channel, departure.tag, departure.layout,
                         {.owner = std::move(departure.tensor), .bytes = bytes}, departure.ready.ready_ns());
    GP_CHECK(taken.ok(), "{}", std::string(taken.message()));  // the bound was kept by Send
  }
}

void ReliableTransport::SendFrames(int64_t now_ns) {
  for (auto& [rank, peer] : peers_) {
    while (carrier_.Writable(rank)) {
      std::optional<OutgoingFrame> frame = peer.stream.NextFrame(now_ns);
      if (!frame.has_value()) {
        break;
      }
      carrier_.Send(rank, frame->frame(), [owner = frame->payload.owner] {});
    }
  }
}

void ReliableTransport::Publish(int64_t now_ns) {
  news_.clear();
  {
    std::lock_guard lock(mutex_);
    PublishLocked(now_ns);
  }
  // Notified outside the lock, which the woken threads take.
  for (std::condition_variable* changed : news_) {
    changed->notify_all();
  }
}

void ReliableTransport::PublishLocked(int64_t now_ns) {
  stats_.streams = {};
  stats_.reconnects = reconnects_;
  stats_.peers.resize(peers_.size());
  auto traffic = stats_.peers.begin();
  for (auto& [rank, peer] : peers_) {
    while (std::optional<Delivery> delivery = peer.stream.NextDelivery()) {
      auto slot = slots_.extract(delivery->slot_id);
      Inbound& inbound = inbound_.at(delivery->channel);
      inbound.arrived.push_back({.delivery = *delivery, .slot = std::move(slot.mapped())});
      if (inbound.awaited) {
        news_.push_back(&inbound.changed);
      }
    }
    if (peer.stream.peer_up() && peer.stream.peer_heard() && std::erase(unheard_, rank) > 0) {
      news_.push_back(&heard_);
    }
    if (failure_.ok() && !peer.stream.failure().ok()) {
      failure_ = peer.stream.failure();
      WakeAllLocked();
    }
    const StreamCounters& counters = peer.stream.counters();
    Add(stats_.streams, counters);
    *traffic++ = {.rank = rank,
                  .bytes_sent = counters.bytes_sent,
                  .bytes_received = counters.bytes_received,
                  .corrupt_frames = counters.corrupt_frames,
                  .round_trip_ns = peer.stream.round_trip_ns()};
    stats_.clocks[rank] = peer.stream.peer_clock(now_ns);
  }
  for (auto& [id, outbound] : outbound_) {
    const ReliableStream& stream = peers_.at(id.to_rank).stream;
    const uint64_t acknowledged = stream.Acknowledged(id);
    for (; outbound.acknowledged < acknowledged; ++outbound.acknowledged) {
      outbound.waiting.pop_front();
      outbound.acknowledged_ns = stream.AcknowledgedNs(id);
    }
    if (outbound.acknowledged >= outbound.awaited) {
      news_.push_back(&outbound.changed);
    }
  }
}

std::string ReliableTransport::NameOf(PeerId rank) const {
  return std::cmp_less(rank, options_.sites.size()) ? fmt::format("rank {} (site {})", rank, options_.sites[rank])
                                                    : fmt::format("rank {}", rank);
}

int64_t ReliableTransport::TellOfDamage(int64_t now_ns) {
  int64_t next_ns = kNeverNs;
  for (auto& [rank, peer] : peers_) {
    const int64_t corrupt = peer.stream.counters().corrupt_frames;
    if (corrupt == peer.corrupt_told) {
      continue;
    }
    if (now_ns < peer.tell_again_ns) {
      next_ns = std::min(next_ns, peer.tell_again_ns);
      continue;
    }
    options_.warn(fmt::format(
        "{} of {} frames from {} came to {} with other bytes than were sent, {} of them since the last such warning; "
        "they are sent again, but something between the two changes data in a way that TCP does not notice: look for "
        "bad memory, a bad network card, or a middlebox that rewrites packets",
        corrupt, peer.stream.counters().frames_received, NameOf(rank), NameOf(options_.rank),
        corrupt - peer.corrupt_told));
    peer.corrupt_told = corrupt;
    peer.tell_again_ns = now_ns + kTellOfDamageEveryNs;
  }
  return next_ns;
}

int64_t ReliableTransport::OnProgress(int64_t now_ns) {
  TakeOrders(now_ns);
  for (auto& [rank, peer] : peers_) {
    peer.stream.OnTimer(now_ns);
  }
  Publish(now_ns);
  SendFrames(now_ns);
  int64_t next_ns = TellOfDamage(now_ns);
  for (const auto& [rank, peer] : peers_) {
    next_ns = std::min(next_ns, peer.stream.NextTimerNs());
  }
  return next_ns;
}

}  // namespace geopipe
