#include "runtime/rehearsal/link_shaper.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/kept_time.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/log.h"
#include "runtime/transport/stream/stream_frame.h"

namespace geopipe {
namespace {

// What a link holds for its transmitter: enough to keep it busy until the progress thread comes again, and little
// enough that an acknowledgement does not wait long behind payload.
constexpr int64_t kMinWaitingBytes = int64_t{256} * 1024;
constexpr double kMaxWaitingS = 0.005;
constexpr size_t kMaxFrames = 16'384;
// A progress thread that comes late has kept the transmitter idle that the layer above would have kept busy. What it
// then hands over is sent as if it had come in time, as far back as this.
constexpr int64_t kMaxLatenessNs = 100'000'000;
// Frames are handed over earlier by no more than this, whatever was measured.
constexpr int64_t kMaxLeadNs = 300'000;
// Who is woken sooner than this has hardly slept, and is not late.
constexpr int64_t kLeastSleepNs = 400'000;

int64_t TransmissionNs(const PeerShape& shape, int64_t bytes) {
  const double bandwidth = shape.bandwidth_bytes_per_s;
  return bandwidth > 0 ? std::llround(static_cast<double>(bytes) / bandwidth * 1e9) : 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LinkShaper>> LinkShaper::Create(FrameCarrier& below,
                                                               const std::vector<PeerShape>& shapes, Carrier carrier,
                                                               const Clock& clock) {
  std::unique_ptr<LinkShaper> shaped(new LinkShaper(below, carrier, clock));
  shaped->start_ns_ = clock.NowNs();
  for (const PeerShape& shape : shapes) {
    const bool sane = shape.latency_ns >= 0 && shape.jitter_ns >= 0 && shape.bandwidth_bytes_per_s >= 0;
    if (!sane || shaped->links_.contains(shape.peer_rank)) {
      return absl::InvalidArgumentError(
          fmt::format("the link to rank {} cannot be shaped to {} ns latency, {} ns jitter and {} bytes/s; give each "
                      "peer once, and nothing negative",
                      shape.peer_rank, shape.latency_ns, shape.jitter_ns, shape.bandwidth_bytes_per_s));
    }
    Link& link = shaped->links_[shape.peer_rank];
    link.shape = shape;
    link.jitter = SplitMix64(shape.jitter_seed);
    link.max_waiting_bytes =
        std::max(kMinWaitingBytes, static_cast<int64_t>(shape.bandwidth_bytes_per_s * kMaxWaitingS));
    GP_ASSIGN_OR_RETURN(link.pacer, LinkPacer::Open(shape.pacer_path));
    LogWarning("LINK SHAPER ON: to rank {} every frame takes {:.3f} ms at {} (jitter {:.3f} ms, {} outages)",
               shape.peer_rank, static_cast<double>(shape.latency_ns) * 1e-6,
               shape.bandwidth_bytes_per_s > 0 ? fmt::format("{:.1f} Mbit/s", shape.bandwidth_bytes_per_s * 8e-6)
                                               : "unlimited bandwidth",
               static_cast<double>(shape.jitter_ns) * 1e-6, shape.outages.size());
  }
  return shaped;
}

LinkShaper::~LinkShaper() {
  for (auto& [peer, link] : links_) {
    for (const Frame& frame : link.frames) {
      frame.done();
    }
  }
}

bool LinkShaper::Writable(PeerId peer) const {
  const auto found = links_.find(peer);
  if (found == links_.end()) {
    return below_.Writable(peer);
  }
  const Link& link = found->second;
  const bool full = link.waiting_bytes >= link.max_waiting_bytes || link.frames.size() >= kMaxFrames;
  link.full |= full;
  return !full;
}

// Time since the start at which the link works, at `since_start_ns` or after the outages that cover it.
int64_t LinkShaper::AfterOutages(const Link& link, int64_t since_start_ns) {
  bool moved = true;
  while (moved) {
    moved = false;
    for (const LinkOutage& outage : link.shape.outages) {
      if (since_start_ns >= outage.begin_ns && since_start_ns < outage.end_ns) {
        since_start_ns = outage.end_ns;
        moved = true;
      }
    }
  }
  return since_start_ns;
}

int64_t LinkShaper::Depart(Link& link, int64_t bytes, int64_t now_ns, int64_t ready_ns) const {
  const int64_t duration_ns = TransmissionNs(link.shape, bytes);
  int64_t since_ns = now_ns;
  if (link.shape.outages.empty() && ready_ns != 0) {
    since_ns = std::clamp(ready_ns, now_ns - kMostMadeGoodNs, now_ns + kMostMadeGoodNs);
  } else if (link.shape.outages.empty() && link.late && link.shape.bandwidth_bytes_per_s > 0) {
    since_ns = now_ns - kMaxLatenessNs;
  }
  const int64_t free_ns = link.pacer->free_ns();
  const int64_t departs_ns = link.pacer->Occupy(since_ns, duration_ns);
  if (departs_ns - duration_ns == since_ns) {
    link.idle_since_ns = free_ns;
    link.busy_since_ns = since_ns;
  }
  const int64_t after_ns = start_ns_ + AfterOutages(link, departs_ns - start_ns_);
  return after_ns == departs_ns ? departs_ns : link.pacer->Occupy(after_ns, duration_ns);
}

int64_t LinkShaper::DepartBeside(const Link& link, int64_t bytes, int64_t now_ns, int64_t ready_ns) {
  const int64_t duration_ns = TransmissionNs(link.shape, bytes);
  const int64_t since_ns = std::clamp(ready_ns, now_ns - kMostMadeGoodNs, now_ns + kMostMadeGoodNs);
  const int64_t before_ns = std::max(since_ns, link.idle_since_ns) + duration_ns;
  return before_ns <= link.busy_since_ns ? before_ns : std::max(since_ns, link.pacer->free_ns()) + duration_ns;
}

void LinkShaper::Send(PeerId peer, std::span<const std::byte> header, std::span<const std::byte> payload,
                      std::function<void()> done) {
  const auto found = links_.find(peer);
  if (found == links_.end()) {
    below_.Send(peer, header, payload, std::move(done));
    return;
  }
  Link& link = found->second;
  Frame frame{.header = {header.begin(), header.end()}, .payload = payload, .done = std::move(done)};
  frame.bytes = static_cast<int64_t>(header.size() + payload.size());
  const int64_t now_ns = clock_.NowNs();
  const int64_t ready_ns = DueOf(header);
  const bool beside = ready_ns != 0 && payload.empty() && link.shape.outages.empty();
  frame.departs_ns =
      beside ? DepartBeside(link, frame.bytes, now_ns, ready_ns) : Depart(link, frame.bytes, now_ns, ready_ns);
  const int64_t latency_ns =
      link.shape.latency_ns + static_cast<int64_t>(static_cast<double>(link.shape.jitter_ns) * link.jitter.Uniform());
  // Also what is taken to have come earlier needs the latency from now on: clocks and latencies are read from it.
  frame.arrives_ns = std::max(frame.departs_ns, now_ns) + latency_ns;
  if (beside) {
    SetDue(frame.header, frame.departs_ns + latency_ns);
  } else if (ready_ns != 0) {
    link.last_due_ns = std::max(link.last_due_ns, frame.departs_ns + latency_ns);
    SetDue(frame.header, link.last_due_ns);
  }
  // A link does not let frames overtake each other.
  if (!link.frames.empty()) {
    frame.departs_ns = std::max(frame.departs_ns, link.frames.back().departs_ns);
    frame.arrives_ns = std::max(frame.arrives_ns, link.frames.back().arrives_ns);
  }
  link.waiting_bytes += frame.bytes;
  link.frames.push_back(std::move(frame));
}

void LinkShaper::NoteDepartures(Link& link, int64_t now_ns) {
  while (link.departed < link.frames.size() && link.frames[link.departed].departs_ns <= now_ns) {
    link.waiting_bytes -= link.frames[link.departed].bytes;
    ++link.departed;
  }
}

// No frame is handed over before it has left the transmitter.
int64_t LinkShaper::CrossingNs(const Link& link) const {
  return std::min({link.crossing.crossing_ns(), kMaxLeadNs, link.shape.latency_ns});
}

// When to be woken to hand the next frame over: earlier by what wake-ups are late, when there is time enough for that.
int64_t LinkShaper::WakeNs(const Link& link, int64_t now_ns) {
  const int64_t due_ns = link.frames.front().arrives_ns - CrossingNs(link);
  if (carrier_ == Carrier::kInstant) {
    return due_ns;
  }
  if (due_ns - now_ns >= kLeastSleepNs) {
    wake_ns_ = std::min(wake_ns_, due_ns - std::min(lateness_ns_.low(), kMaxLeadNs));
    return wake_ns_;
  }
  return due_ns;
}

void LinkShaper::Echo(PeerId peer, Link& link, int64_t now_ns) {
  while (link.up && below_.Writable(peer)) {
    const std::optional<CrossingMeter::Header> header = link.crossing.Next(now_ns);
    if (!header.has_value()) {
      return;
    }
    below_.Send(peer, *header, {}, [] {});
  }
}

void LinkShaper::Deliver(PeerId peer, Link& link, int64_t now_ns) {
  link.held_up = false;
  const int64_t slack_ns = carrier_ == Carrier::kInstant ? 0 : std::min(lateness_ns_.low(), kMaxLeadNs) / 4;
  const int64_t due_ns = now_ns + CrossingNs(link) + slack_ns;
  while (!link.frames.empty() && link.frames.front().arrives_ns <= due_ns) {
    // A path that is down takes the frames and loses them, as it would those on their way.
    if (link.up && !below_.Writable(peer)) {
      link.held_up = true;
      return;
    }
    Frame frame = std::move(link.frames.front());
    link.frames.pop_front();
    if (link.departed > 0) {
      --link.departed;
    } else {
      link.waiting_bytes -= frame.bytes;
    }
    below_.Send(peer, frame.header, frame.payload, std::move(frame.done));
  }
}

// A link held up waits for the carrier's completions instead.
int64_t LinkShaper::NextTimeNs(const Link& link, int64_t now_ns) {
  int64_t next_ns = kNeverNs;
  if (!link.frames.empty() && !link.held_up) {
    next_ns = WakeNs(link, now_ns);
  }
  if (link.full && link.departed < link.frames.size()) {
    // The layer above may bring more when half of what waits has gone.
    const size_t half = link.departed + (link.frames.size() - link.departed) / 2;
    next_ns = std::min(next_ns, link.frames[half].departs_ns);
  }
  return next_ns;
}

void LinkShaper::OnFrame(PeerId from, std::span<const std::byte> header, std::span<const std::byte> payload) {
  const auto found = links_.find(from);
  if (found == links_.end() || !found->second.crossing.OnFrame(clock_.NowNs(), header)) {
    above_->OnFrame(from, header, payload);
  }
}

void LinkShaper::OnPeerUp(PeerId peer) {
  if (const auto found = links_.find(peer); found != links_.end()) {
    found->second.up = true;
    if (carrier_ == Carrier::kMeasured) {
      found->second.crossing.Start();
    }
  }
  above_->OnPeerUp(peer);
}

void LinkShaper::OnPeerDown(PeerId peer, const absl::Status& why) {
  if (const auto found = links_.find(peer); found != links_.end()) {
    found->second.up = false;
  }
  above_->OnPeerDown(peer, why);
}

int64_t LinkShaper::OnProgress(int64_t now_ns) {
  if (now_ns >= wake_ns_) {
    lateness_ns_.Add(now_ns - wake_ns_);
  }
  wake_ns_ = kNeverNs;  // asked for anew below
  for (auto& [peer, link] : links_) {
    Echo(peer, link, now_ns);
    NoteDepartures(link, now_ns);
    Deliver(peer, link, now_ns);
    link.late = std::exchange(link.full, false);
  }
  int64_t next_ns = above_->OnProgress(now_ns);
  for (auto& [peer, link] : links_) {
    link.late = false;
    next_ns = std::min(next_ns, NextTimeNs(link, now_ns));
  }
  return next_ns;
}

}  // namespace geopipe
