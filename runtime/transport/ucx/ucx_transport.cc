#include "runtime/transport/ucx/ucx_transport.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/ids.h"
#include "runtime/base/log.h"
#include "runtime/transport/stream/reliable_transport.h"
#include "runtime/transport/ucx/socket_plan.h"
#include "runtime/transport/ucx/ucx_frame.h"

namespace geopipe {
namespace {

// Time by which connections of one path may overtake each other: each may have full buffers. They lose nothing without
// breaking, which is noticed by itself.
constexpr int64_t kReorderingNs = 2'000'000'000;

// Bytes that the slots of the channels to or from the peer hold, in the direction that holds more.
int64_t MaxInFlight(const UcxTransportOptions& options, PeerId peer) {
  int64_t out_bytes = 0;
  int64_t in_bytes = 0;
  for (const ChannelSpec& spec : options.channels) {
    out_bytes += spec.id.to_rank == peer ? spec.slots * spec.slot_bytes : 0;
    in_bytes += spec.id.from_rank == peer ? spec.slots * spec.slot_bytes : 0;
  }
  return std::max(out_bytes, in_bytes);
}

// Sizes the socket buffers for the link with the largest product: one setting serves all connections.
void SizeSockets(const UcxTransportOptions& options, UcxFrameOptions& frame, UcxSessionOptions& session) {
  const SocketLimits limits = ReadSocketLimits();
  for (const PeerLink& link : options.links) {
    const SocketPlan plan =
        PlanSockets(link.latency_ns, link.bandwidth_bytes_per_s, MaxInFlight(options, link.peer_rank), limits);
    frame.send_buffer_bytes = std::max(frame.send_buffer_bytes, plan.send_buffer_bytes);
    frame.receive_buffer_bytes = std::max(frame.receive_buffer_bytes, plan.receive_buffer_bytes);
    session.connections[link.peer_rank] = plan.connections;
    LogDebug("link to rank {}: {} and {} one way: {} connections with windows of {}", link.peer_rank,
             FormatBandwidth(link.bandwidth_bytes_per_s), FormatDuration(link.latency_ns), plan.connections,
             FormatBytes(plan.window_bytes));
  }
}

class UcxTransportImpl final : public UcxTransport {
 public:
  // `own`: the frame if it belongs to this transport alone; else null.
  UcxTransportImpl(UcxTransportOptions options, UcxFrame& frame, std::unique_ptr<UcxFrame> own)
      : options_(std::move(options)), own_(std::move(own)), frame_(&frame), refused_before_(frame.refused()) {}

  // The progress thread calls members of this, so the session ends first.
  ~UcxTransportImpl() override {
    if (own_ != nullptr) {
      own_->Stop();
    } else {
      frame_->EndSession();
    }
  }

  absl::Status Open(UcxSessionOptions session) {
    GP_RETURN_IF_ERROR(frame_->OpenSession(std::move(session)));
    ReliableTransportOptions options;
    options.rank = options_.rank;
    options.allocator = options_.allocator;
    options.channels = options_.channels;
    options.sites = options_.sites;
    options.stream.job_hash = options_.job_hash;
    options.stream.epoch = options_.epoch;
    options.stream.session = RandomId();
    options.stream.seed = RandomId();
    options.stream.reordering_ns = options_.links.empty() ? 0 : kReorderingNs;
    GP_ASSIGN_OR_RETURN(reliable_, ReliableTransport::Create(std::move(options), frame_->carrier()));
    frame_->Start(reliable_.get());
    return absl::OkStatus();
  }

  const std::string& address() const override { return frame_->address(); }

  absl::Status Connect(const std::vector<UcxPeer>& peers, const std::string& secret, int64_t deadline_ns) override {
    const std::vector<PeerId> wanted = reliable_->peers();
    std::map<PeerId, std::string> addresses;
    for (const UcxPeer& peer : peers) {
      if (std::find(wanted.begin(), wanted.end(), peer.rank) != wanted.end()) {
        addresses[peer.rank] = peer.address;
      }
    }
    for (const PeerId rank : wanted) {
      if (!addresses.contains(rank)) {
        return absl::InvalidArgumentError(
            fmt::format("rank {} shares a channel with rank {}, whose address was not given", options_.rank, rank));
      }
    }
    GP_RETURN_IF_ERROR(frame_->Connect(addresses, secret));
    absl::Status status = reliable_->WaitConnected(deadline_ns);
    if (!absl::IsDeadlineExceeded(status)) {
      return status;
    }
    std::string message(status.message());
    for (const PeerId rank : wanted) {
      if (const std::string trouble = frame_->LastTrouble(rank); !trouble.empty()) {
        message += fmt::format("; rank {}: {}", rank, trouble);
      }
    }
    return absl::DeadlineExceededError(message);
  }

  TransportStats stats() const override {
    const ReliableTransport::Stats stats = reliable_->stats();
    return {.frames_sent = stats.streams.frames_sent,
            .frames_resent = stats.streams.frames_resent,
            .frames_received = stats.streams.frames_received,
            .duplicate_frames = stats.streams.duplicate_frames,
            .refused_frames = stats.streams.refused_frames + frame_->refused() - refused_before_,
            .corrupt_frames = stats.streams.corrupt_frames,
            .bytes_sent = stats.streams.bytes_sent,
            .bytes_received = stats.streams.bytes_received,
            .reconnects = stats.reconnects,
            .peers = stats.peers};
  }

  std::map<PeerId, PeerClock> peer_clocks() const override {
    std::map<PeerId, PeerClock> clocks = reliable_->stats().clocks;
    std::erase_if(clocks, [](const auto& entry) { return entry.second.round_trip_ns == 0; });
    return clocks;
  }

  int64_t progress_cpu_ns() const override { return frame_->thread_cpu_ns(); }
  void BreakConnection(PeerId rank) override { frame_->Break(rank); }

  absl::Status Send(const ChannelId& channel, const MessageTag& tag, Timed<Tensor> payload) override {
    return reliable_->Send(channel, tag, std::move(payload));
  }
  absl::StatusOr<Timed<Tensor>> Receive(const ChannelId& channel, const MessageTag& tag, int64_t deadline_ns) override {
    return reliable_->Receive(channel, tag, deadline_ns);
  }
  absl::StatusOr<int64_t> WaitAcknowledged(const ChannelId& channel, const MessageTag& tag,
                                           int64_t deadline_ns) override {
    return reliable_->WaitAcknowledged(channel, tag, deadline_ns);
  }
  void Fail(absl::Status status) override { reliable_->Fail(std::move(status)); }

 private:
  const UcxTransportOptions options_;
  // Destroyed from the bottom up: a carrier, stopped, outlives what refers to it.
  std::unique_ptr<UcxFrame> own_;  // may be null
  UcxFrame* const frame_;
  const int64_t refused_before_;
  std::unique_ptr<ReliableTransport> reliable_;
};

UcxSessionOptions SessionOf(const UcxTransportOptions& options) {
  UcxSessionOptions session;
  session.rank = options.rank;
  session.job_hash = options.job_hash;
  session.epoch = options.epoch;
  session.near = options.near;
  session.layer = options.layer;
  return session;
}

}  // namespace

UcxEndpoint::UcxEndpoint(NetworkLimits limits, std::function<void()> on_thread)
    : limits_(std::move(limits)), on_thread_(std::move(on_thread)) {}

UcxEndpoint::~UcxEndpoint() = default;

absl::StatusOr<std::unique_ptr<UcxTransport>> UcxEndpoint::Open(UcxTransportOptions options) {
  UcxFrameOptions frame{.limits = limits_, .seed = RandomId(), .on_thread = on_thread_};
  UcxSessionOptions session = SessionOf(options);
  SizeSockets(options, frame, session);
  if (frame_ == nullptr) {
    GP_ASSIGN_OR_RETURN(frame_, UcxFrame::Create(frame));
  }
  auto transport = std::make_unique<UcxTransportImpl>(std::move(options), *frame_, nullptr);
  GP_RETURN_IF_ERROR(transport->Open(std::move(session)));
  return transport;
}

absl::StatusOr<std::unique_ptr<UcxTransport>> UcxTransport::Create(UcxTransportOptions options) {
  UcxFrameOptions frame{.limits = options.limits, .seed = RandomId(), .on_thread = options.on_thread};
  UcxSessionOptions session = SessionOf(options);
  SizeSockets(options, frame, session);
  GP_ASSIGN_OR_RETURN(std::unique_ptr<UcxFrame> own, UcxFrame::Create(frame));
  UcxFrame& carrier = *own;
  auto transport = std::make_unique<UcxTransportImpl>(std::move(options), carrier, std::move(own));
  GP_RETURN_IF_ERROR(transport->Open(std::move(session)));
  return transport;
}

}  // namespace geopipe
