#include "tests/support/relay_link.h"

#include <algorithm>
#include <utility>

namespace geopipe {
namespace {

// A sender with full windows of both directions' products, and as much again.
int64_t QueueBytes(const RelayLinkOptions& options) {
  if (options.queue_bytes > 0) {
    return options.queue_bytes;
  }
  const double product = options.bandwidth_bytes_per_s * 2e-9 * static_cast<double>(options.latency_ns);
  return std::max<int64_t>(int64_t{4} << 20, static_cast<int64_t>(4 * product));
}

}  // namespace

void RelayLink::Cut(int64_t end_ns) {
  counters_.dropped_cut += std::ssize(packets_);
  packets_.clear();
  cut_end_ns_ = std::max(cut_end_ns_, end_ns);
}

void RelayLink::Push(int64_t now_ns, std::vector<std::byte> packet) {
  if (now_ns < cut_end_ns_) {
    ++counters_.dropped_cut;
    return;
  }
  const auto bytes = std::ssize(packet);
  const int64_t begin_ns = std::max(now_ns, wire_free_ns_);
  int64_t end_ns = begin_ns;
  if (options_.bandwidth_bytes_per_s > 0) {
    const double waiting = static_cast<double>(begin_ns - now_ns) * 1e-9 * options_.bandwidth_bytes_per_s;
    const int64_t queue = static_cast<int64_t>(waiting) + bytes;
    if (queue > QueueBytes(options_)) {
      ++counters_.dropped_full;
      return;
    }
    counters_.longest_queue_bytes = std::max(counters_.longest_queue_bytes, queue);
    end_ns += static_cast<int64_t>(static_cast<double>(bytes) / options_.bandwidth_bytes_per_s * 1e9);
  }
  wire_free_ns_ = end_ns;
  ++counters_.packets;
  counters_.bytes += bytes;
  // A latency that was lowered does not let packets overtake each other.
  const int64_t last_ns = packets_.empty() ? 0 : packets_.back().due_ns;
  packets_.push_back({.due_ns = std::max(last_ns, end_ns + options_.latency_ns), .bytes = std::move(packet)});
}

std::optional<std::vector<std::byte>> RelayLink::PopDue(int64_t now_ns) {
  if (packets_.empty() || packets_.front().due_ns > now_ns) {
    return std::nullopt;
  }
  std::vector<std::byte> bytes = std::move(packets_.front().bytes);
  packets_.pop_front();
  return bytes;
}

}  // namespace geopipe
