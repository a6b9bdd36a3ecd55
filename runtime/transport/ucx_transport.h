// The message transport between worker processes: reliable streams over UCX active messages, optionally through the
// link shaper. One progress thread that sleeps in epoll.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/tensor/allocator.h"
#include "runtime/transport/message_transport.h"

namespace geopipe {

// Delay and pace what this worker sends to one peer (rehearsal). All workers of this host that send over the same link
// in the same direction name the same pacer file (a small shared mapping), so that they share its bandwidth.
struct PeerShape {
  int32_t peer_stage = 0;
  int64_t latency_ns = 0;            // one way
  double bandwidth_bytes_per_s = 0;  // 0: unlimited
  std::string pacer_path;            // empty: not shared with other workers
};

struct UcxTransportOptions {
  int32_t stage = 0;      // this worker
  uint64_t job_hash = 0;  // job, epoch and incarnation travel with every frame
  uint64_t epoch = 0;
  Allocator* allocator = nullptr;     // receive slots and retained copies; category transport. Outlives the transport
  std::vector<ChannelSpec> channels;  // every channel that begins or ends at this stage
  std::vector<PeerShape> shapes;      // peers not listed are not shaped
};

struct UcxPeer {
  int32_t stage = 0;
  std::string address;  // its UcxTransport::address()
};

// Counters since creation, for reports and metrics.
struct TransportStats {
  int64_t frames_sent = 0;
  int64_t frames_resent = 0;
  int64_t frames_received = 0;
  int64_t duplicate_frames = 0;
  int64_t refused_frames = 0;  // wrong secret, epoch or job
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  int64_t reconnects = 0;
};

class UcxTransport : public MessageTransport {
 public:
  // Opens UCX (configured by its own environment: UCX_TLS, UCX_NET_DEVICES) and is ready to be reached. Unavailable if
  // no device can be opened: the message names UCX_TLS and UCX_NET_DEVICES.
  static absl::StatusOr<std::unique_ptr<UcxTransport>> Create(UcxTransportOptions options);

  // Opaque bytes for the peers' Connect.
  virtual const std::string& address() const = 0;

  // Connects all peers that share a channel with this stage and exchanges the epoch's secret; a peer without it is
  // refused and counted. Returns when every peer has answered. DeadlineExceeded names the peers that have not.
  virtual absl::Status Connect(const std::vector<UcxPeer>& peers, const std::string& secret, int64_t deadline_ns) = 0;

  virtual TransportStats stats() const = 0;
};

}  // namespace geopipe
