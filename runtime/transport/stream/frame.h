// The lower layer of the transport: carries frames between workers, unreliably. A frame may be lost, duplicated,
// delayed or out of order; it is never altered without the checksum of the layer above noticing. Exactly-once delivery
// is made above, in reliable_stream.
//
// Everything here happens on one thread, the carrier's progress thread (in tests: the thread that pumps it), except
// Wake. All times are of the monotonic clock of the end that is told.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>

namespace geopipe {

// A peer is a worker of the job, named by its rank: the index of its place in the process grid.
using PeerId = int32_t;

// "No wake-up needed": the latest time of the monotonic clock.
inline constexpr int64_t kNeverNs = std::numeric_limits<int64_t>::max();

struct Frame {
  std::span<const std::byte> header;
  std::span<const std::byte> payload;
  int64_t ready_ns = 0;  // at its sender: could be sent since then; at its receiver: was there
};

// Takes what a carrier reports to its user, on the progress thread. No call may block.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // `frame` is valid during the call only. The sink answers from OnProgress, not from here.
  virtual void OnFrame(PeerId from, const Frame& frame) = 0;
  // The path to the peer works (again): frames not acknowledged must be sent again.
  virtual void OnPeerUp(PeerId peer) = 0;
  // The path to the peer broke; the carrier re-establishes it by itself, with backoff.
  virtual void OnPeerDown(PeerId peer, const absl::Status& why) = 0;
  // The sink's turn to send. Called after every batch of the events above and of completions, after Wake, and at the
  // time it returned last. Returns the time by which it wants to be called next (kNeverNs: only on events).
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
  // Copies the header; the payload must stay valid and unchanged until `done` was called (on the progress thread),
  // which happens exactly once, also when the frame is lost. Never blocks. Progress thread.
  virtual void Send(PeerId peer, const Frame& frame, std::function<void()> done) = 0;
  // True when the peer is on this host and frames to it stay in the host's memory. REQUIRES: the peer is up.
  virtual bool SameHost(PeerId /*peer*/) const { return false; }
  // Makes the progress thread call OnProgress soon. Any thread.
  virtual void Wake() = 0;
};

// A layer between a carrier and its user: a sink to the one, a carrier to the other.
class FrameLayer : public FrameCarrier, public FrameSink {
 public:
  // Sets the user. REQUIRES: the carrier below has not started.
  virtual void Attach(FrameSink* above) = 0;
};

// Makes the layer over `below`, which outlives it; null where no layer is wanted.
using MakeFrameLayer = std::function<absl::StatusOr<std::unique_ptr<FrameLayer>>(FrameCarrier& below)>;

}  // namespace geopipe
