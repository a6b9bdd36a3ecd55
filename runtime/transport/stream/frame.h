// The lower layer of the transport: carries frames between workers, unreliably. A frame may be lost, doubled, late or
// out of order; it is never altered without the checksum of the layer above noticing. UCX, loopback and the link shaper
// are carriers. Exactly-once delivery is made above, in reliable_stream.
//
// Everything here happens on one thread, the carrier's progress thread (loopback: the thread that pumps it), except
// Wake. Carriers stack: the link shaper is a sink to the carrier below it and a carrier to the sink above it.
#pragma once

#include <absl/status/status.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>

namespace geopipe {

// A peer is a worker of the job, named by its rank: the index of its place in the process grid.
using PeerId = int32_t;

// "No wake-up needed": the latest time of the monotonic clock.
inline constexpr int64_t kNeverNs = std::numeric_limits<int64_t>::max();

// What a carrier tells its user, on the progress thread. No call may block.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // `header` and `payload` are valid during the call only. The sink answers from OnProgress, not from here.
  virtual void OnFrame(PeerId from, std::span<const std::byte> header, std::span<const std::byte> payload) = 0;
  // The path to the peer works (again): what was not acknowledged must be sent again.
  virtual void OnPeerUp(PeerId peer) = 0;
  // The path to the peer broke; the carrier re-establishes it by itself, with backoff.
  virtual void OnPeerDown(PeerId peer, const absl::Status& why) = 0;
  // The sink's turn to send. Called after every batch of the events above and of completions, after Wake, and at the
  // time it returned last. Returns when it wants to be called next, whatever happens (kNeverNs: only on events).
  virtual int64_t OnProgress(int64_t now_ns) = 0;
};

class FrameCarrier {
 public:
  virtual ~FrameCarrier() = default;

  // Largest payload of one frame to the peer, and largest header.
  virtual int64_t max_payload_bytes(PeerId peer) const = 0;
  virtual int64_t max_header_bytes() const = 0;
  // True when the carrier would accept a frame now without queueing beyond its bound. Progress thread.
  virtual bool Writable(PeerId peer) const = 0;
  // Takes a copy of `header`; `payload` must stay valid and unchanged until `done` was called (on the progress thread),
  // which happens exactly once, also when the frame is lost. Never blocks. Progress thread.
  virtual void Send(PeerId peer, std::span<const std::byte> header, std::span<const std::byte> payload,
                    std::function<void()> done) = 0;
  // The peer is on this host, and what it is sent does not leave the host's memory. Of a peer that is up.
  virtual bool SameHost(PeerId /*peer*/) const { return false; }
  // The frames' due_ns holds at the peer, which has the same clock: what the crossing takes beyond that is the host's
  // own lateness. Of a peer that is up.
  virtual bool KeepsTime(PeerId peer) const { return SameHost(peer); }
  // Makes the progress thread call OnProgress soon. Any thread.
  virtual void Wake() = 0;
};

}  // namespace geopipe
