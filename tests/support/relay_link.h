// One direction of a rehearsed wide-area link: packets leave after waiting for the wire (first in first out, a bounded
// queue with tail drop), their own bytes at the bandwidth, and the latency. Without clock or I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <vector>

namespace geopipe {

struct RelayLinkOptions {
  int64_t latency_ns = 0;            // one way
  double bandwidth_bytes_per_s = 0;  // 0: unlimited
  int64_t queue_bytes = 0;           // waiting for the wire; 0: four bandwidth-delay products, at least 4 MiB
};

struct RelayLinkCounters {
  int64_t packets = 0;  // taken
  int64_t bytes = 0;
  int64_t dropped_full = 0;  // packets for which the queue had no room
  int64_t dropped_cut = 0;   // packets lost to cuts
  int64_t longest_queue_bytes = 0;
};

class RelayLink {
 public:
  static constexpr int64_t kNeverNs = std::numeric_limits<int64_t>::max();

  explicit RelayLink(const RelayLinkOptions& options) : options_(options) {}

  // Applies from now on; packets on their way keep the time they have.
  void SetOptions(const RelayLinkOptions& options) { options_ = options; }
  const RelayLinkOptions& options() const { return options_; }

  // Loses the packets on their way and those that come before `end_ns`.
  void Cut(int64_t end_ns);
  // Takes or drops a packet. `now_ns` never falls.
  void Push(int64_t now_ns, std::vector<std::byte> packet);
  // The next packet whose time has come.
  std::optional<std::vector<std::byte>> PopDue(int64_t now_ns);
  int64_t NextDueNs() const { return packets_.empty() ? kNeverNs : packets_.front().due_ns; }

  const RelayLinkCounters& counters() const { return counters_; }

 private:
  struct Packet {
    int64_t due_ns = 0;
    std::vector<std::byte> bytes;
  };

  RelayLinkOptions options_;
  RelayLinkCounters counters_;
  std::deque<Packet> packets_;
  int64_t wire_free_ns_ = 0;
  int64_t cut_end_ns_ = 0;
};

}  // namespace geopipe
