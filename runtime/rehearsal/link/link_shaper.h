// The link shaper: a layer over a carrier that gives every frame to chosen peers, acknowledgements and probes too, the
// latency and bandwidth of a rehearsed link. A frame of n bytes that finds the link idle arrives n / bandwidth +
// latency after it was ready; one that does not waits its turn, behind this worker's frames and those of all others
// that share the pacer. The timer of the carrier below drives it, on its progress thread. A log line warns that it is
// on.
//
// The time of a frame through the carrier below, and the lateness of the thread that wakes up to hand it over, are part
// of the latency: the shaper measures both (crossing_meter.h) and hands frames over that much earlier. Without that a
// link of one millisecond would be noticeably longer than declared.
//
// Inside one host both ends have one clock. There a frame carries the time at which it is due at the other end, counted
// from when it was ready, and the shaper of that end reports it as ready then: the lateness of this host's threads is
// no part of the rehearsed link.
// later is no part of the rehearsed link.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/rehearsal/link/crossing_meter.h"
#include "runtime/rehearsal/link/link_pacer.h"
#include "runtime/rehearsal/link/peer_shape.h"
#include "runtime/transport/stream/frame.h"

namespace geopipe {

struct LinkShaperOptions {
  std::vector<PeerShape> shapes;
  // The devices' time is kept (kept_time.h): frames to other peers of this host are due when they were ready, too.
  bool keeps_time = false;
};

class LinkShaper final : public FrameLayer {
 public:
  // Shapes frames to the peers of `shapes`; others pass unchanged. Errors are LinkPacer::Open's; InvalidArgument for a
  // negative latency or bandwidth or a peer listed twice. `below` and `clock` outlive it.
  static absl::StatusOr<std::unique_ptr<LinkShaper>> Create(FrameCarrier& below, const LinkShaperOptions& options,
                                                            const Clock& clock = Clock::Real());
  ~LinkShaper() override;

  void Attach(FrameSink* above) override { above_ = above; }

  // FrameCarrier, for the user above.
  int64_t max_payload_bytes(PeerId peer) const override { return below_.max_payload_bytes(peer); }
  int64_t max_header_bytes() const override;
  bool Writable(PeerId peer) const override;
  void Send(PeerId peer, const Frame& frame, std::function<void()> done) override;
  // A shaped peer counts as being on another host.
  bool SameHost(PeerId peer) const override;
  void Wake() override { below_.Wake(); }

  // FrameSink, for the carrier below.
  void OnFrame(PeerId from, const Frame& frame) override;
  void OnPeerUp(PeerId peer) override;
  void OnPeerDown(PeerId peer, const absl::Status& why) override;
  int64_t OnProgress(int64_t now_ns) override;

 private:
  struct Waiting {
    int64_t departs_ns = 0;  // the transmitter has sent its last byte
    int64_t arrives_ns = 0;
    std::vector<std::byte> header;
    std::span<const std::byte> payload;
    std::function<void()> done;
    int64_t bytes = 0;
  };
  struct Link {
    PeerShape shape;
    std::unique_ptr<LinkPacer> pacer;  // null: not shaped
    std::deque<Waiting> frames;  // in order of arrival: those waiting for the transmitter, behind those on their way
    size_t departed = 0;         // of `frames`
    // The last time at which the transmitter carried no payload, counted from when frames were ready.
    int64_t idle_since_ns = 0;
    int64_t busy_since_ns = 0;
    int64_t waiting_bytes = 0;      // for the transmitter
    int64_t max_waiting_bytes = 0;  // beyond it the link is not writable
    mutable bool full = false;      // the user above has had more than the link took
    bool up = false;
    bool same_host = false;
    bool speaks = false;   // the peer has a shaper, too
    bool held_up = false;  // the carrier below takes no more at the moment
    CrossingMeter crossing;
  };

  LinkShaper(FrameCarrier& below, bool keeps_time, const Clock& clock)
      : below_(below), keeps_time_(keeps_time), clock_(clock) {}

  static int64_t Depart(Link& link, int64_t bytes, int64_t ready_ns);
  // Departure of a frame without payload: behind the payload that was ready before it. It takes no turn of its own,
  // because a late thread may bring it behind frames that were ready after it, or before earlier ones.
  static int64_t DepartBeside(const Link& link, int64_t bytes, int64_t ready_ns);
  static void NoteDepartures(Link& link, int64_t now_ns);
  void Deliver(PeerId peer, Link& link, int64_t now_ns);
  void Echo(PeerId peer, Link& link, int64_t now_ns);
  static int64_t CrossingNs(const Link& link);
  int64_t WakeNs(const Link& link, int64_t now_ns);
  int64_t NextTimeNs(const Link& link, int64_t now_ns);

  FrameCarrier& below_;
  const bool keeps_time_;
  const Clock& clock_;
  RecentLow lateness_ns_;       // of wake-ups to hand frames over
  int64_t wake_ns_ = kNeverNs;  // when the next of them was asked for
  FrameSink* above_ = nullptr;
  std::map<PeerId, Link> links_;  // of the shapes, and of every other peer that has come up
};

}  // namespace geopipe
