// The link shaper: a carrier over another one that gives every frame to chosen peers, acknowledgements and probes too,
// the latency and bandwidth of a rehearsed link. A frame of n bytes that finds the link idle arrives n / bandwidth +
// latency later; one that does not waits its turn, behind this worker's frames and those of all others that share the
// pacer. Driven by the timer of the carrier below, on its progress thread. It says loudly that it is on.
//
// What a frame takes through the carrier below, and how late the thread wakes up to hand it over, are part of the
// latency: the shaper measures both (crossing_meter.h) and hands frames over so much earlier. Without that a link of
// one millisecond would be noticeably longer than it was told to be.
//
// A frame with a due time (stream_frame.h) is transmitted as of then, and is due at the other end as of when the link
// would have brought it; that this host hands it over later changes its arrival alone.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "optimizer/base/splitmix64.h"
#include "runtime/base/clock.h"
#include "runtime/rehearsal/crossing_meter.h"
#include "runtime/rehearsal/link_pacer.h"
#include "runtime/rehearsal/peer_shape.h"
#include "runtime/transport/stream/frame.h"

namespace geopipe {

class LinkShaper final : public FrameCarrier, public FrameSink {
 public:
  enum class Carrier : uint8_t { kInstant, kMeasured };

  // Shapes what goes to the peers of `shapes`; what goes to others passes. Errors are LinkPacer::Open's;
  // InvalidArgument for a negative latency, bandwidth or jitter or a peer listed twice. `below` outlives it. Outages
  // count from now. kMeasured: what the carrier takes is deducted, where the peer has a shaper too, which echoes
  // (another peer refuses one small frame when the path comes up); kInstant: nothing is deducted.
  static absl::StatusOr<std::unique_ptr<LinkShaper>> Create(FrameCarrier& below, const std::vector<PeerShape>& shapes,
                                                            Carrier carrier = Carrier::kInstant,
                                                            const Clock& clock = Clock::Real());
  ~LinkShaper() override;

  // The layer above; before the carrier below starts.
  void Attach(FrameSink* above) { above_ = above; }

  // FrameCarrier, for the layer above.
  int64_t max_payload_bytes(PeerId peer) const override { return below_.max_payload_bytes(peer); }
  int64_t max_header_bytes() const override { return below_.max_header_bytes(); }
  bool Writable(PeerId peer) const override;
  void Send(PeerId peer, std::span<const std::byte> header, std::span<const std::byte> payload,
            std::function<void()> done) override;
  // A shaped peer is as good as on another host.
  bool SameHost(PeerId peer) const override { return !links_.contains(peer) && below_.SameHost(peer); }
  // Not of a peer on another host: what the network between them takes is no lateness.
  bool KeepsTime(PeerId peer) const override { return below_.KeepsTime(peer); }
  void Wake() override { below_.Wake(); }

  // FrameSink, for the carrier below.
  void OnFrame(PeerId from, std::span<const std::byte> header, std::span<const std::byte> payload) override;
  void OnPeerUp(PeerId peer) override;
  void OnPeerDown(PeerId peer, const absl::Status& why) override;
  int64_t OnProgress(int64_t now_ns) override;

 private:
  struct Frame {
    int64_t departs_ns = 0;  // the transmitter has sent its last byte
    int64_t arrives_ns = 0;
    std::vector<std::byte> header;
    std::span<const std::byte> payload;
    std::function<void()> done;
    int64_t bytes = 0;
  };
  struct Link {
    PeerShape shape;
    std::unique_ptr<LinkPacer> pacer;
    SplitMix64 jitter{1};
    std::deque<Frame> frames;  // in order of arrival: those waiting for the transmitter, behind those on their way
    size_t departed = 0;       // of `frames`
    // The transmitter's latest time without payload, as of the frames' due times.
    int64_t idle_since_ns = 0;
    int64_t busy_since_ns = 0;
    int64_t last_due_ns = 0;        // of the frames with a due time
    int64_t waiting_bytes = 0;      // for the transmitter
    int64_t max_waiting_bytes = 0;  // beyond it the link is not writable
    mutable bool full = false;      // the layer above has had more than the link took
    bool late = false;              // and brings it now
    bool up = false;
    bool held_up = false;  // the carrier below takes no more at the moment
    CrossingMeter crossing;
  };

  LinkShaper(FrameCarrier& below, Carrier carrier, const Clock& clock)
      : below_(below), carrier_(carrier), clock_(clock) {}

  static int64_t AfterOutages(const Link& link, int64_t since_start_ns);
  // `ready_ns`: since when the frame waits, where that is kept, else 0.
  int64_t Depart(Link& link, int64_t bytes, int64_t now_ns, int64_t ready_ns) const;
  // Of a frame without payload that has a due time: behind the payload that was ready before it. It takes no turn of
  // its own, and may be brought by a late thread behind what was ready after it, or the other way about.
  static int64_t DepartBeside(const Link& link, int64_t bytes, int64_t now_ns, int64_t ready_ns);
  static void NoteDepartures(Link& link, int64_t now_ns);
  void Deliver(PeerId peer, Link& link, int64_t now_ns);
  void Echo(PeerId peer, Link& link, int64_t now_ns);
  int64_t CrossingNs(const Link& link) const;
  int64_t WakeNs(const Link& link, int64_t now_ns);
  int64_t NextTimeNs(const Link& link, int64_t now_ns);

  FrameCarrier& below_;
  const Carrier carrier_;
  const Clock& clock_;
  RecentLow lateness_ns_;       // of wake-ups to hand frames over
  int64_t wake_ns_ = kNeverNs;  // when the next of them was asked for
  int64_t start_ns_ = 0;
  FrameSink* above_ = nullptr;
  std::map<PeerId, Link> links_;
};

}  // namespace geopipe
