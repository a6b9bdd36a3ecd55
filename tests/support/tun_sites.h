// Two sites on one machine that only see each other through this process: two network namespaces, each with its
// loopback and one tun device whose packets end up here. What goes between them must be carried (TunRelay).
//
// The namespaces have no names: they live as long as this object or a process in them, so nothing is left behind
// however a test ends. Needs root and /dev/net/tun.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <array>
#include <string>

#include "runtime/base/unique_fd.h"

namespace geopipe {

// TCP's settings of the sites' hosts. The defaults behave as what deploy/sysctl.d/geopipe.conf gives a host: on a link
// without losses reno is as cubic, and every kernel lets a namespace have it.
struct TunHostSettings {
  std::string congestion_control = "reno";  // empty: this host's
  bool slow_start_after_idle = false;
};

struct TunSite {
  UniqueFd network;     // the namespace
  UniqueFd tun;         // its packets, one per read and write; does not block
  std::string address;  // IPv4, of the tun device
};

class TunSites {
 public:
  // Device name in both namespaces, which UCX_NET_DEVICES must be.
  static constexpr const char* kDevice = "gptun0";
  static constexpr const char* kNetwork = "10.213.0.0/24";
  static constexpr int kMtu = 65000;

  // Unavailable, with the reason in one sentence, where namespaces and tun devices cannot be made.
  static absl::StatusOr<TunSites> Create(const TunHostSettings& settings = {});

  const TunSite& site(size_t index) const { return sites_[index]; }

  // Path by which other processes reach the namespace while this one lives: /proc/<pid>/fd/<n>.
  std::string NetworkPath(size_t index) const;

 private:
  TunSites() = default;

  std::array<TunSite, 2> sites_;
};

// Moves the calling thread, and with it all threads and processes it starts later, into the namespace at `path` with a
// /sys that shows its devices (UCX reads them there).
absl::Status EnterNetwork(const std::string& path);

}  // namespace geopipe
