// The message transport between worker processes: reliable streams over UCX active messages. Its one progress thread
// sleeps in epoll.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/network_limits.h"
#include "runtime/tensor/allocator.h"
#include "runtime/transport/stream/message_transport.h"
#include "runtime/transport/stream/reliable_stream.h"

namespace geopipe {

// Known figures of the path to a peer of another site: socket buffers and connections are sized by them.
struct PeerLink {
  PeerId peer_rank = 0;
  int64_t latency_ns = 0;            // one way
  double bandwidth_bytes_per_s = 0;  // 0: not known
};

struct UcxTransportOptions {
  PeerId rank = 0;        // this worker
  uint64_t job_hash = 0;  // job, epoch and incarnation travel with every frame
  uint64_t epoch = 0;
  Allocator* allocator = nullptr;     // receive slots and retained copies; category transport. Outlives the transport
  std::vector<ChannelSpec> channels;  // every channel that begins or ends at this rank
  std::vector<PeerLink> links;
  std::set<PeerId> near;            // peers of this site: frames to them are larger
  std::vector<std::string> sites;   // of all ranks, for warnings; empty: not known
  MakeFrameLayer layer;             // between UCX and the streams; empty: none
  std::function<void()> on_thread;  // called on the progress thread when it begins; may be empty
  // A device that is not the loopback is refused (FailedPrecondition) unless its network is declared private: peers are
  // authenticated, but all data leaves this host in clear.
  NetworkLimits limits = {};
};

struct UcxPeer {
  PeerId rank = 0;
  std::string address;  // its UcxTransport::address()
};

// Counters since the transport was opened, for reports and metrics.
struct TransportStats {
  int64_t frames_sent = 0;
  int64_t frames_resent = 0;
  int64_t frames_received = 0;
  int64_t duplicate_frames = 0;
  int64_t refused_frames = 0;  // wrong secret, epoch or job
  int64_t corrupt_frames = 0;  // with other bytes than were sent, from all peers
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  int64_t reconnects = 0;
  std::vector<PeerTraffic> peers = {};
};

class UcxFrame;
class UcxTransport;

// A process's end of the data plane: its listener, UCX worker and progress thread live as long as it. It carries one
// transport after the other, each a session of one rank in one epoch.
class UcxEndpoint {
 public:
  // `limits` and `on_thread` as UcxTransportOptions'. Opens nothing yet.
  UcxEndpoint(NetworkLimits limits, std::function<void()> on_thread);
  UcxEndpoint(const UcxEndpoint&) = delete;
  UcxEndpoint& operator=(const UcxEndpoint&) = delete;
  ~UcxEndpoint();

  // The next transport; ignores `limits` and `on_thread` of the options. The first one opens UCX and sizes the socket
  // buffers by its links; later ones use these buffers. Errors: UcxTransport::Create's. REQUIRES: the transport before
  // is gone. One thread. The endpoint outlives its transports.
  absl::StatusOr<std::unique_ptr<UcxTransport>> Open(UcxTransportOptions options);

 private:
  const NetworkLimits limits_;
  const std::function<void()> on_thread_;
  std::unique_ptr<UcxFrame> frame_;
};

class UcxTransport : public MessageTransport {
 public:
  // A transport with an endpoint of its own. Opens UCX (configured by its own environment: UCX_TLS, UCX_NET_DEVICES)
  // and is ready to be reached. Unavailable if no device can be opened: the message names UCX_TLS and UCX_NET_DEVICES.
  static absl::StatusOr<std::unique_ptr<UcxTransport>> Create(UcxTransportOptions options);

  // Opaque bytes for the peers' Connect.
  virtual const std::string& address() const = 0;

  // Connects all peers that share a channel with this rank and exchanges the epoch's secret; a peer without it is
  // refused and counted. Returns when every peer has answered. DeadlineExceeded names the peers that have not.
  virtual absl::Status Connect(const std::vector<UcxPeer>& peers, const std::string& secret, int64_t deadline_ns) = 0;

  virtual TransportStats stats() const = 0;

  // The clocks of the peers, by rank; those not measured yet are left out.
  virtual std::map<PeerId, PeerClock> peer_clocks() const = 0;

  // Processor time of the endpoint's progress thread since it began: idle, it does not grow.
  virtual int64_t progress_cpu_ns() const = 0;

  // Breaks the connection to a peer, which is re-established like after any failure. For tests.
  virtual void BreakConnection(PeerId rank) = 0;
};

}  // namespace geopipe
