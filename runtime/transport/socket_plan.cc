#include "runtime/transport/socket_plan.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace geopipe {
namespace {

constexpr int64_t kDefaultMaxBytes = 212'992;
constexpr int64_t kDefaultSendAutoMaxBytes = int64_t{4} << 20;
constexpr int64_t kDefaultReceiveAutoMaxBytes = int64_t{6} << 20;
// Over the product, so that acknowledgements may come late.
constexpr double kSlack = 1.25;

struct Buffer {
  int64_t ask_bytes = 0;
  int64_t window_bytes = 0;
};

// Half of what the kernel counts is its own bookkeeping; it doubles what is asked for to allow for that.
Buffer PlanBuffer(int64_t need_bytes, int64_t max_bytes, int64_t auto_max_bytes) {
  const int64_t auto_window_bytes = auto_max_bytes / 2;
  if (auto_window_bytes >= std::min(need_bytes, max_bytes)) {
    return {.ask_bytes = 0, .window_bytes = auto_window_bytes};
  }
  const int64_t ask_bytes = std::min(need_bytes, max_bytes);
  return {.ask_bytes = ask_bytes, .window_bytes = ask_bytes};
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

SocketPlan PlanSockets(int64_t latency_ns, double bandwidth_bytes_per_s, const SocketLimits& limits) {
  const double product_bytes = 2e-9 * static_cast<double>(latency_ns) * bandwidth_bytes_per_s;
  const auto need_bytes = static_cast<int64_t>(kSlack * std::min(product_bytes, 1e15));
  const Buffer send = PlanBuffer(need_bytes, limits.send_max_bytes, limits.send_auto_max_bytes);
  const Buffer receive = PlanBuffer(need_bytes, limits.receive_max_bytes, limits.receive_auto_max_bytes);
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
