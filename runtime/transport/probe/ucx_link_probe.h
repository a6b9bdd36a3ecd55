// One probe of a link over UCX: opens a carrier, runs a LinkProbe on its progress thread, and closes it. UCX is open
// exactly as long as this object lives.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "runtime/base/network_limits.h"
#include "runtime/transport/probe/link_probe.h"
#include "runtime/transport/stream/frame.h"

namespace geopipe {

struct UcxLinkProbeOptions {
  LinkProbe::Role role = LinkProbe::Role::kInitiator;
  uint64_t probe = 0;  // both ends name the same
  // Known figures of the link: socket buffers and connections are sized by them, as workers' are. 0: not known.
  int64_t latency_ns = 0;
  double bandwidth_bytes_per_s = 0;
  bool near = false;               // the other end is in this site: frames are as large as they are there
  MakeFrameLayer layer = nullptr;  // between UCX and the probe; sockets are then left to the kernel. Empty: none
  std::function<void()> on_thread = nullptr;  // called on the progress thread when it begins; may be empty
  NetworkLimits limits = {};                  // as UcxTransportOptions'
  LinkProbeOptions measurement = {};
};

class UcxLinkProbe {
 public:
  // The ranks by which a layer knows the two ends.
  static constexpr PeerId kInitiatorRank = 0;  // dials
  static constexpr PeerId kResponderRank = 1;

  // Opens UCX (configured by its own environment: UCX_TLS, UCX_NET_DEVICES) and listens. Unavailable if no device can
  // be opened; else the layer's errors.
  static absl::StatusOr<std::unique_ptr<UcxLinkProbe>> Open(const UcxLinkProbeOptions& options);
  virtual ~UcxLinkProbe() = default;

  // Address that the initiator dials; opaque.
  virtual const std::string& address() const = 0;

  // The initiator dials `address`, the responder (`address` empty) is dialed; both know the secret. Waits until the
  // measurement is complete (initiator) or the initiator has gone (responder, whose result is empty). DeadlineExceeded
  // says why the peer was not reached; Cancel's status after Cancel; else LinkProbe's errors. Once.
  virtual absl::StatusOr<LinkProbeResult> Run(const std::string& address, const std::string& secret,
                                              int64_t deadline_ns) = 0;

  // Run returns `why` soon. Any thread.
  virtual void Cancel(const absl::Status& why) = 0;

 protected:
  UcxLinkProbe() = default;
};

}  // namespace geopipe
