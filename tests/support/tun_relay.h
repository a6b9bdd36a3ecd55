// Carries the packets between two TunSites with latency, bandwidth and outages: what the kernel's netem would do, for
// kernels that have none. It works on real packets below TCP, so windows, retransmissions and slow start are real.
// One thread that sleeps in epoll.
#pragma once

#include <absl/status/statusor.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/base/unique_fd.h"
#include "tests/support/relay_link.h"
#include "tests/support/tun_sites.h"

namespace geopipe {

class TunRelay {
 public:
  // Both directions alike. `sites` outlives the relay.
  static absl::StatusOr<std::unique_ptr<TunRelay>> Start(const TunSites& sites, const RelayLinkOptions& options);
  ~TunRelay();

  // Lets nothing pass, in either direction, for the duration; packets on their way are lost.
  void Cut(int64_t duration_ns);
  void SetOptions(const RelayLinkOptions& options);
  // Counters of the direction from site `from`.
  RelayLinkCounters counters(size_t from) const;
  // Processor time of the relay's thread.
  int64_t cpu_ns() const;

 private:
  TunRelay(const TunSites& sites, const RelayLinkOptions& options)
      : sites_(sites), links_{RelayLink(options), RelayLink(options)} {}

  absl::Status Open();
  void Run();
  void ReadPackets(size_t from);
  void Deliver();
  void Wake() const;

  const TunSites& sites_;
  UniqueFd epoll_;
  UniqueFd timer_;
  UniqueFd wake_;
  std::thread thread_;
  std::atomic<bool> stop_{false};
  mutable std::mutex mutex_;  // links_
  std::array<RelayLink, 2> links_;
  std::vector<std::byte> scratch_;
};

}  // namespace geopipe
