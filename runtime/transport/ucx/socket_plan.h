// Plans the sockets of a link. A TCP connection carries at most its window per round trip, so socket buffers follow the
// bandwidth-delay product; where the kernel's limits stop them, several connections share the path.
#pragma once

#include <cstdint>

namespace geopipe {

// Limits of this host, in bytes.
struct SocketLimits {
  int64_t send_max_bytes = 0;          // net.core.wmem_max: most that a socket may ask for
  int64_t receive_max_bytes = 0;       // net.core.rmem_max
  int64_t send_auto_max_bytes = 0;     // net.ipv4.tcp_wmem, third: most to which the kernel grows it by itself
  int64_t receive_auto_max_bytes = 0;  // net.ipv4.tcp_rmem, third
};

struct SocketPlan {
  int64_t send_buffer_bytes = 0;     // to ask for; 0: the kernel does as well by itself
  int64_t receive_buffer_bytes = 0;  // as above
  int32_t connections = 1;
  int64_t window_bytes = 0;  // that one connection can have on its way; 0: not known
};

constexpr int32_t kMaxConnectionsOfPath = 8;

// `max_in_flight_bytes`: most bytes that the channels let be on their way in one direction. `bandwidth_bytes_per_s` 0
// (not known) or no latency: one connection, left to the kernel.
SocketPlan PlanSockets(int64_t latency_ns, double bandwidth_bytes_per_s, int64_t max_in_flight_bytes,
                       const SocketLimits& limits);

// Reads /proc/sys/net; Linux's defaults stand for what cannot be read.
SocketLimits ReadSocketLimits();

}  // namespace geopipe
