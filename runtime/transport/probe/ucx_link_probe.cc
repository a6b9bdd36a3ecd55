#include "runtime/transport/probe/ucx_link_probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <span>
#include <vector>

#include "optimizer/base/splitmix64.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/clock.h"
#include "runtime/base/ids.h"
#include "runtime/transport/probe/bandwidth_ladder.h"
#include "runtime/transport/ucx/socket_plan.h"
#include "runtime/transport/ucx/ucx_frame.h"

namespace geopipe {
namespace {

constexpr int64_t kLingerNs = 300'000'000;  // and a round trip

// Keeps the numbers of probes apart from those of jobs.
constexpr uint64_t kProbeHash = 0x50524F4245;

PeerId RankOf(LinkProbe::Role role) {
  return role == LinkProbe::Role::kInitiator ? UcxLinkProbe::kInitiatorRank : UcxLinkProbe::kResponderRank;
}

PeerId PeerOf(LinkProbe::Role role) {
  return UcxLinkProbe::kInitiatorRank + UcxLinkProbe::kResponderRank - RankOf(role);
}

// Bytes that a link which compresses cannot make fewer.
std::vector<std::byte> Noise(int64_t count) {
  SplitMix64 random(RandomId());
  std::vector<std::byte> bytes(static_cast<size_t>(count));
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(random.Next() & 0xFF);
  }
  return bytes;
}

// Joins the carrier and the state machine. Everything runs on the progress thread, but Wait and Cancel.
class ProbeSink final : public FrameSink {
 public:
  ProbeSink(const UcxLinkProbeOptions& options, FrameCarrier& carrier)
      : peer_(PeerOf(options.role)),
        carrier_(carrier),
        probe_(options.role, carrier.max_payload_bytes(peer_), options.measurement),
        payload_(Noise(carrier.max_payload_bytes(peer_))) {}

  void OnFrame(PeerId /*from*/, const Frame& frame) override {
    probe_.OnFrame(frame.ready_ns, frame.header, static_cast<int64_t>(frame.payload.size()));
  }

  void OnPeerUp(PeerId /*peer*/) override {
    {
      std::lock_guard lock(mutex_);
      was_up_ = true;
    }
    probe_.OnUp(Clock::Real().NowNs());
  }

  void OnPeerDown(PeerId /*peer*/, const absl::Status& why) override {
    probe_.OnDown(why);
    Tell();
  }

  int64_t OnProgress(int64_t /*now_ns*/) override {
    // Pings bear the time at which they leave, so the clock is read for every frame.
    while (carrier_.Writable(peer_)) {
      const int64_t now_ns = Clock::Real().NowNs();
      const std::optional<LinkProbeFrame> frame = probe_.Next(now_ns);
      if (!frame.has_value()) {
        break;
      }
      const std::span<const std::byte> payload = std::span(payload_).first(static_cast<size_t>(frame->payload_bytes));
      carrier_.Send(peer_, {.header = frame->header, .payload = payload, .ready_ns = now_ns}, [] {});
    }
    Tell();
    return probe_.NextTimeNs();
  }

  // The result; nullopt when the deadline passed first.
  std::optional<absl::StatusOr<LinkProbeResult>> Wait(int64_t deadline_ns) {
    const auto wait = std::chrono::nanoseconds(std::max<int64_t>(0, deadline_ns - Clock::Real().NowNs()));
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, wait, [&] { return result_.has_value(); });
    return result_;
  }

  void Cancel(const absl::Status& why) { Tell(why); }

  bool was_up() {
    std::lock_guard lock(mutex_);
    return was_up_;
  }

 private:
  void Tell() {
    if (probe_.done() && !told_) {
      told_ = true;
      Tell(probe_.result());
    }
  }

  void Tell(absl::StatusOr<LinkProbeResult> result) {
    std::lock_guard lock(mutex_);
    if (!result_.has_value()) {
      result_ = std::move(result);
      changed_.notify_all();
    }
  }

  const PeerId peer_;
  FrameCarrier& carrier_;
  LinkProbe probe_;
  const std::vector<std::byte> payload_;  // of all trains' frames
  bool told_ = false;

  std::mutex mutex_;  // the members below
  std::condition_variable changed_;
  std::optional<absl::StatusOr<LinkProbeResult>> result_;
  bool was_up_ = false;
};

class UcxLinkProbeImpl final : public UcxLinkProbe {
 public:
  explicit UcxLinkProbeImpl(const UcxLinkProbeOptions& options) : options_(options) {}
  // UCX 1.13 crashes when a listener goes between a connection's acceptance by the kernel and its first bytes: its
  // thread hands these to freed memory. So the end that is dialed stays for as long as a connection that was begun when
  // both ends were told to stop may still come.
  ~UcxLinkProbeImpl() override {
    if (frame_ == nullptr) {
      return;
    }
    if (options_.role == LinkProbe::Role::kResponder) {
      Clock::Real().SleepUntilNs(Clock::Real().NowNs() + kLingerNs + 2 * options_.latency_ns);
    }
    frame_->Stop();
  }

  absl::Status OpenAll() {
    const PeerId peer = PeerOf(options_.role);
    UcxSessionOptions session;
    session.rank = RankOf(options_.role);
    session.job_hash = kProbeHash;
    session.epoch = options_.probe;
    session.layer = options_.layer;
    if (options_.near) {
      session.near = {peer};
    }
    UcxFrameOptions frame;
    frame.seed = RandomId();
    frame.limits = options_.limits;
    frame.on_thread = options_.on_thread;
    if (!options_.layer) {
      const SocketPlan plan = PlanSockets(options_.latency_ns, options_.bandwidth_bytes_per_s,
                                          BandwidthLadder::kMaxBytes, ReadSocketLimits());
      frame.send_buffer_bytes = plan.send_buffer_bytes;
      frame.receive_buffer_bytes = plan.receive_buffer_bytes;
      session.connections[peer] = plan.connections;
    }
    GP_ASSIGN_OR_RETURN(frame_, UcxFrame::Create(frame));
    GP_RETURN_IF_ERROR(frame_->OpenSession(std::move(session)));
    sink_ = std::make_unique<ProbeSink>(options_, frame_->carrier());
    return absl::OkStatus();
  }

  const std::string& address() const override { return frame_->address(); }

  absl::StatusOr<LinkProbeResult> Run(const std::string& address, const std::string& secret,
                                      int64_t deadline_ns) override {
    const PeerId peer = PeerOf(options_.role);
    frame_->Start(sink_.get());
    GP_RETURN_IF_ERROR(frame_->Connect({{peer, address}}, secret));
    std::optional<absl::StatusOr<LinkProbeResult>> result = sink_->Wait(deadline_ns);
    if (result.has_value()) {
      return *std::move(result);
    }
    const std::string trouble = frame_->LastTrouble(peer);
    return absl::DeadlineExceededError(fmt::format(
        "{}{}{}", sink_->was_up() ? "the probe was not complete in time" : "the other end was not reached in time",
        trouble.empty() ? "" : ": ", trouble));
  }

  void Cancel(const absl::Status& why) override { sink_->Cancel(why); }

 private:
  const UcxLinkProbeOptions options_;
  // Destroyed from the bottom up: a carrier, stopped, outlives what refers to it.
  std::unique_ptr<UcxFrame> frame_;
  std::unique_ptr<ProbeSink> sink_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<UcxLinkProbe>> UcxLinkProbe::Open(const UcxLinkProbeOptions& options) {
  auto probe = std::make_unique<UcxLinkProbeImpl>(options);
  GP_RETURN_IF_ERROR(probe->OpenAll());
  return probe;
}

}  // namespace geopipe
