#include "runtime/rehearsal/link/link_shaper.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "runtime/base/log.h"
#include "runtime/rehearsal/host/kept_time.h"

namespace geopipe {
namespace {

// Bytes that wait for a link's transmitter: enough to keep it busy until the progress thread comes again, and little
// enough that an acknowledgement does not wait long behind payload.
constexpr int64_t kMinWaitingBytes = int64_t{256} * 1024;
constexpr double kMaxWaitingS = 0.005;
constexpr size_t kMaxFrames = 16'384;
// Most time by which frames are handed over early, whatever was measured.
constexpr int64_t kMaxLeadNs = 300'000;
// Shortest sleep whose end is measured: a thread woken sooner has hardly slept and is not late.
constexpr int64_t kMinSleepNs = 400'000;

int64_t TransmissionNs(const PeerShape& shape, int64_t bytes) {
  const double bandwidth = shape.bandwidth_bytes_per_s;
  return bandwidth > 0 ? std::llround(static_cast<double>(bytes) / bandwidth * 1e9) : 0;
}

// Bounds the lateness of a thread: a time far from now is not due to it.
int64_t AboutNow(int64_t ns, int64_t now_ns) {
  return std::clamp(ns, now_ns - kMaxCompensatedNs, now_ns + kMaxCompensatedNs);
}

std::vector<std::byte> WithDue(std::span<const std::byte> header, int64_t due_ns) {
  const auto ahead = TimedHeader{TimedHeader::Kind::kFrame, due_ns}.Encode();
  std::vector<std::byte> bytes(ahead.size() + header.size());
  std::ranges::copy(header, std::ranges::copy(ahead, bytes.begin()).out);
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LinkShaper>> LinkShaper::Create(FrameCarrier& below, const LinkShaperOptions& options,
                                                               const Clock& clock) {
  std::unique_ptr<LinkShaper> shaper(new LinkShaper(below, options.keeps_time, clock));
  for (const PeerShape& shape : options.shapes) {
    const bool sane = shape.latency_ns >= 0 && shape.bandwidth_bytes_per_s >= 0;
    if (!sane || shaper->links_.contains(shape.peer_rank)) {
      return absl::InvalidArgumentError(
          fmt::format("the link to rank {} cannot be shaped to {} ns latency and {} bytes/s; give each peer once, and "
                      "nothing negative",
                      shape.peer_rank, shape.latency_ns, shape.bandwidth_bytes_per_s));
    }
    Link& link = shaper->links_[shape.peer_rank];
    link.shape = shape;
    link.max_waiting_bytes =
        std::max(kMinWaitingBytes, static_cast<int64_t>(shape.bandwidth_bytes_per_s * kMaxWaitingS));
    GP_ASSIGN_OR_RETURN(link.pacer, LinkPacer::Open(shape.pacer_path));
    LogWarning("LINK SHAPER ON: to rank {} every frame takes {:.3f} ms at {}", shape.peer_rank,
               static_cast<double>(shape.latency_ns) * 1e-6,
               shape.bandwidth_bytes_per_s > 0 ? fmt::format("{:.1f} Mbit/s", shape.bandwidth_bytes_per_s * 8e-6)
                                               : "unlimited bandwidth");
  }
  return shaper;
}

LinkShaper::~LinkShaper() {
  for (auto& [peer, link] : links_) {
    for (const Waiting& frame : link.frames) {
      frame.done();
    }
  }
}

int64_t LinkShaper::max_header_bytes() const {
  return below_.max_header_bytes() - static_cast<int64_t>(TimedHeader::kBytes);
}

bool LinkShaper::SameHost(PeerId peer) const {
  const auto found = links_.find(peer);
  return (found == links_.end() || found->second.pacer == nullptr) && below_.SameHost(peer);
}

bool LinkShaper::Writable(PeerId peer) const {
  const auto found = links_.find(peer);
  if (found == links_.end() || found->second.pacer == nullptr) {
    return below_.Writable(peer);
  }
  const Link& link = found->second;
  const bool full = link.waiting_bytes >= link.max_waiting_bytes || link.frames.size() >= kMaxFrames;
  link.full |= full;
  return !full;
}

int64_t LinkShaper::Depart(Link& link, int64_t bytes, int64_t ready_ns) {
  const int64_t duration_ns = TransmissionNs(link.shape, bytes);
  const int64_t free_ns = link.pacer->free_ns();
  const int64_t departs_ns = link.pacer->Occupy(ready_ns, duration_ns);
  if (departs_ns - duration_ns == ready_ns) {
    link.idle_since_ns = free_ns;
    link.busy_since_ns = ready_ns;
  }
  return departs_ns;
}

int64_t LinkShaper::DepartBeside(const Link& link, int64_t bytes, int64_t ready_ns) {
  const int64_t duration_ns = TransmissionNs(link.shape, bytes);
  const int64_t before_ns = std::max(ready_ns, link.idle_since_ns) + duration_ns;
  return before_ns <= link.busy_since_ns ? before_ns : std::max(ready_ns, link.pacer->free_ns()) + duration_ns;
}

void LinkShaper::Send(PeerId peer, const Frame& frame, std::function<void()> done) {
  const auto found = links_.find(peer);
  if (found == links_.end() || (found->second.pacer == nullptr && !(keeps_time_ && found->second.speaks))) {
    below_.Send(peer, frame, std::move(done));
    return;
  }
  Link& link = found->second;
  const int64_t now_ns = clock_.NowNs();
  const int64_t ready_ns = AboutNow(frame.ready_ns, now_ns);
  if (link.pacer == nullptr) {
    below_.Send(peer, {WithDue(frame.header, ready_ns), frame.payload, ready_ns}, std::move(done));
    return;
  }
  Waiting waiting{.header = {}, .payload = frame.payload, .done = std::move(done)};
  waiting.bytes = static_cast<int64_t>(frame.header.size() + frame.payload.size());
  waiting.departs_ns =
      frame.payload.empty() ? DepartBeside(link, waiting.bytes, ready_ns) : Depart(link, waiting.bytes, ready_ns);
  const int64_t due_ns = waiting.departs_ns + link.shape.latency_ns;
  waiting.header =
      link.speaks ? WithDue(frame.header, due_ns) : std::vector<std::byte>(frame.header.begin(), frame.header.end());
  // A frame that was ready earlier still arrives at least the latency from now: peers derive clocks and latencies from
  // it.
  waiting.arrives_ns = std::max(due_ns, now_ns + link.shape.latency_ns);
  // A link does not let frames overtake each other.
  if (!link.frames.empty()) {
    waiting.departs_ns = std::max(waiting.departs_ns, link.frames.back().departs_ns);
    waiting.arrives_ns = std::max(waiting.arrives_ns, link.frames.back().arrives_ns);
  }
  link.waiting_bytes += waiting.bytes;
  link.frames.push_back(std::move(waiting));
}

void LinkShaper::NoteDepartures(Link& link, int64_t now_ns) {
  while (link.departed < link.frames.size() && link.frames[link.departed].departs_ns <= now_ns) {
    link.waiting_bytes -= link.frames[link.departed].bytes;
    ++link.departed;
  }
}

// Lead of a frame, bounded so that it is not handed over before it has left the transmitter.
int64_t LinkShaper::CrossingNs(const Link& link) {
  return std::min({link.crossing.crossing_ns(), kMaxLeadNs, link.shape.latency_ns});
}

// Time to wake up at to hand the next frame over: earlier by the usual lateness of wake-ups, if there is time for that.
int64_t LinkShaper::WakeNs(const Link& link, int64_t now_ns) {
  const int64_t due_ns = link.frames.front().arrives_ns - CrossingNs(link);
  if (due_ns - now_ns < kMinSleepNs) {
    return due_ns;
  }
  wake_ns_ = std::min(wake_ns_, due_ns - std::min(lateness_ns_.low(), kMaxLeadNs));
  return wake_ns_;
}

void LinkShaper::Echo(PeerId peer, Link& link, int64_t now_ns) {
  while (link.up && below_.Writable(peer)) {
    const std::optional<TimedHeader> header = link.crossing.Next(now_ns);
    if (!header.has_value()) {
      return;
    }
    below_.Send(peer, {.header = header->Encode(), .payload = {}, .ready_ns = now_ns}, [] {});
  }
}

void LinkShaper::Deliver(PeerId peer, Link& link, int64_t now_ns) {
  link.held_up = false;
  const int64_t due_ns = now_ns + CrossingNs(link) + std::min(lateness_ns_.low(), kMaxLeadNs) / 4;
  while (!link.frames.empty() && link.frames.front().arrives_ns <= due_ns) {
    // A path that is down takes the frames and loses them, like those already on their way.
    if (link.up && !below_.Writable(peer)) {
      link.held_up = true;
      return;
    }
    Waiting frame = std::move(link.frames.front());
    link.frames.pop_front();
    if (link.departed > 0) {
      --link.departed;
    } else {
      link.waiting_bytes -= frame.bytes;
    }
    below_.Send(peer, {frame.header, frame.payload, frame.arrives_ns}, std::move(frame.done));
  }
}

// Time of the next turn. A link held up waits for the carrier's completions instead.
int64_t LinkShaper::NextTimeNs(const Link& link, int64_t now_ns) {
  int64_t next_ns = kNeverNs;
  if (!link.frames.empty() && !link.held_up) {
    next_ns = WakeNs(link, now_ns);
  }
  if (link.full && link.departed < link.frames.size()) {
    // The user above may send again when half of the waiting frames have departed.
    const size_t half = link.departed + (link.frames.size() - link.departed) / 2;
    next_ns = std::min(next_ns, link.frames[half].departs_ns);
  }
  return next_ns;
}

void LinkShaper::OnFrame(PeerId from, const Frame& frame) {
  const std::optional<TimedHeader> header = TimedHeader::Decode(frame.header);
  if (!header.has_value()) {
    above_->OnFrame(from, frame);
    return;
  }
  Link& link = links_[from];
  link.speaks = true;
  if (header->kind != TimedHeader::Kind::kFrame) {
    link.crossing.OnHeader(frame.ready_ns, *header);
    return;
  }
  const int64_t ready_ns = link.same_host ? AboutNow(header->ns, frame.ready_ns) : frame.ready_ns;
  above_->OnFrame(from, {frame.header.subspan(TimedHeader::kBytes), frame.payload, ready_ns});
}

void LinkShaper::OnPeerUp(PeerId peer) {
  Link& link = links_[peer];
  link.up = true;
  link.same_host = below_.SameHost(peer);
  link.speaks = false;
  if (link.pacer != nullptr || keeps_time_) {
    link.crossing.Start();
  }
  above_->OnPeerUp(peer);
}

void LinkShaper::OnPeerDown(PeerId peer, const absl::Status& why) {
  links_[peer].up = false;
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
    link.full = false;
  }
  int64_t next_ns = above_->OnProgress(now_ns);
  for (auto& [peer, link] : links_) {
    next_ns = std::min(next_ns, NextTimeNs(link, now_ns));
  }
  return next_ns;
}

}  // namespace geopipe
