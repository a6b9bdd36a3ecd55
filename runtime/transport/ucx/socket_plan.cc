#include "runtime/transport/ucx/socket_plan.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace geopipe {
namespace {

constexpr int64_t kDefaultMaxBytes = 212'992;
constexpr int64_t kDefaultSendAutoMaxBytes = int64_t{4} << 20;
constexpr int64_t kDefaultReceiveAutoMaxBytes = int64_t{6} << 20;
constexpr int64_t kMinReceiveBytes = int64_t{1} << 20;
// Margin over the bandwidth-delay product, so that acknowledgements may come late.
constexpr double kSlack = 1.25;

struct SocketBuffer {
  int64_t ask_bytes = 0;
  int64_t window_bytes = 0;
};

// The window of a buffer that grows by itself: half of it, because the kernel counts its bookkeeping as the other half.
// It doubles a size that is asked for to allow for that.
int64_t AutoWindow(int64_t auto_max_bytes) { return auto_max_bytes / 2; }

SocketBuffer PlanSend(int64_t need_bytes, const SocketLimits& limits) {
  const int64_t ask_bytes = std::min(need_bytes, limits.send_max_bytes);
  const int64_t auto_bytes = AutoWindow(limits.send_auto_max_bytes);
  return auto_bytes >= ask_bytes ? SocketBuffer{.ask_bytes = 0, .window_bytes = auto_bytes}
                                 : SocketBuffer{.ask_bytes = ask_bytes, .window_bytes = ask_bytes};
}

// A buffer that is asked for is a window from the first packet on; the kernel's own begins with 64 KiB and takes a
// round trip for every doubling, on every new connection. So it is asked for unless that makes it smaller than needed.
SocketBuffer PlanReceive(int64_t need_bytes, int64_t send_window_bytes, const SocketLimits& limits) {
  const int64_t ask_bytes = std::min(std::max(need_bytes, kMinReceiveBytes), limits.receive_max_bytes);
  const int64_t auto_bytes = AutoWindow(limits.receive_auto_max_bytes);
  return ask_bytes >= std::min({need_bytes, send_window_bytes, auto_bytes})
             ? SocketBuffer{.ask_bytes = ask_bytes, .window_bytes = ask_bytes}
             : SocketBuffer{.ask_bytes = 0, .window_bytes = auto_bytes};
}

// The last number of the file's line.
int64_t LastNumber(const char* path, int64_t otherwise) {
  std::ifstream file(path);
  int64_t number = otherwise;
  while (file >> number) {
  }
  return number > 0 ? number : otherwise;
}

}  // namespace

SocketPlan PlanSockets(int64_t latency_ns, double bandwidth_bytes_per_s, int64_t max_in_flight_bytes,
                       const SocketLimits& limits) {
  const double product_bytes = 2e-9 * static_cast<double>(latency_ns) * bandwidth_bytes_per_s;
  const auto need_bytes = std::min(max_in_flight_bytes, static_cast<int64_t>(kSlack * std::min(product_bytes, 1e15)));
  if (need_bytes == 0) {
    return {};
  }
  const SocketBuffer send = PlanSend(need_bytes, limits);
  const SocketBuffer receive = PlanReceive(need_bytes, send.window_bytes, limits);
  SocketPlan plan{.send_buffer_bytes = send.ask_bytes,
                  .receive_buffer_bytes = receive.ask_bytes,
                  .window_bytes = std::max<int64_t>(1, std::min(send.window_bytes, receive.window_bytes))};
  const int64_t connections = (need_bytes + plan.window_bytes - 1) / plan.window_bytes;
  plan.connections = static_cast<int32_t>(std::clamp<int64_t>(connections, 1, kMaxConnectionsOfPath));
  return plan;
}

SocketLimits ReadSocketLimits() {
  return {.send_max_bytes = LastNumber("/proc/sys/net/core/wmem_max", kDefaultMaxBytes),
          .receive_max_bytes = LastNumber("/proc/sys/net/core/rmem_max", kDefaultMaxBytes),
          .send_auto_max_bytes = LastNumber("/proc/sys/net/ipv4/tcp_wmem", kDefaultSendAutoMaxBytes),
          .receive_auto_max_bytes = LastNumber("/proc/sys/net/ipv4/tcp_rmem", kDefaultReceiveAutoMaxBytes)};
}

}  // namespace geopipe
