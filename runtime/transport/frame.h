// The lower layer of the transport: carries frames between workers, unreliably. A frame may be lost, doubled, late or
// out of order; it is never altered without the checksum of the layer above noticing. UCX, loopback and the link shaper
// are carriers. Exactly-once delivery is made above, in reliable_stream.
#pragma once

#include <absl/status/status.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace geopipe {

// A peer is a worker of the pipeline, named by its stage.
using PeerId = int32_t;

// What a carrier tells its user. Called on the carrier's progress thread (loopback: the thread that pumps it); must not
// block and must not call back into the carrier except to Send.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // `header` and `payload` are valid during the call only.
  virtual void OnFrame(PeerId from, std::span<const std::byte> header, std::span<const std::byte> payload) = 0;
  // The path to the peer works (again): what was not acknowledged must be sent again.
  virtual void OnPeerUp(PeerId peer) = 0;
  // The path to the peer broke; the carrier re-establishes it by itself, with backoff.
  virtual void OnPeerDown(PeerId peer, const absl::Status& why) = 0;
};

class FrameCarrier {
 public:
  virtual ~FrameCarrier() = default;

  // Largest payload of one frame.
  virtual int64_t max_payload_bytes() const = 0;
  // True when the carrier would accept a frame now without queueing beyond its bound.
  virtual bool Writable(PeerId peer) const = 0;
  // Takes a copy of `header`; `payload` must stay valid and unchanged until `done` was called (on the progress thread),
  // which happens exactly once, also when the frame is lost. Never blocks.
  virtual void Send(PeerId peer, std::span<const std::byte> header, std::span<const std::byte> payload,
                    std::function<void()> done) = 0;
};

}  // namespace geopipe
