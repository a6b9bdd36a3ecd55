// Two workers' transports in two processes, optionally in two sites with a slow link between them (TunSites), for
// benches and tests that time real packets.
#pragma once

#include <absl/status/status.h>

#include <functional>
#include <string>
#include <vector>

#include "runtime/transport/ucx/ucx_transport.h"
#include "tests/support/tun_relay.h"

namespace geopipe {

// One end. Runs in a process of its own.
struct PairEnd {
  UcxTransport& transport;
  Allocator& allocator;
};
// Action of an end once both are connected. Returns a text for the parent.
using PairRole = std::function<absl::StatusOr<std::string>(PairEnd&)>;

struct PairOptions {
  int64_t slot_bytes = 0;
  int32_t slots = 4;
  bool relay = false;  // else loopback
  RelayLinkOptions link;
  TunHostSettings hosts;
  bool is_private = true;                        // with `relay`: the network is declared private
  bool tell_link = true;                         // the transports are told the link's latency and bandwidth
  std::function<void(TunRelay&)> while_running;  // in the parent; with `relay`
};

inline const ChannelId kPairForward = {.kind = MessageKind::kActivation, .boundary = 0, .from_rank = 0, .to_rank = 1};
inline const ChannelId kPairBackward = {.kind = MessageKind::kGradient, .boundary = 0, .from_rank = 1, .to_rank = 0};

// Runs rank 0 and rank 1 to their ends and returns what they returned. Unavailable where sites cannot be made; the
// first error of an end. REQUIRES: this process has one thread.
absl::StatusOr<std::vector<std::string>> RunPair(const PairOptions& options, const PairRole& role0,
                                                 const PairRole& role1);

// A message of `bytes` (a multiple of 4, at least 16) that carries the time and `value`, and what it has to hold.
absl::StatusOr<Tensor> StampedMessage(Allocator& allocator, int64_t bytes, int32_t value);
void Stamp(Tensor& message, int64_t now_ns);
int64_t StampOf(const Tensor& message);
bool Holds(const Tensor& message, int32_t value);

}  // namespace geopipe
