#include "tests/support/tun_sites.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <thread>
#include <utility>

#include "optimizer/base/status_macros.h"

namespace geopipe {
namespace {

absl::Status Failed(const std::string& what) {
  return absl::UnavailableError(fmt::format("{}: {}", what, std::strerror(errno)));
}

sockaddr Ipv4(const std::string& text) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  inet_pton(AF_INET, text.c_str(), &address.sin_addr);
  sockaddr plain{};
  std::memcpy(&plain, &address, sizeof plain);
  return plain;
}

ifreq Request(const char* device) {
  ifreq request{};
  std::snprintf(request.ifr_name, sizeof request.ifr_name, "%s", device);
  return request;
}

absl::Status SetUp(int socket, const char* device) {
  ifreq request = Request(device);
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  return ioctl(socket, SIOCSIFFLAGS, &request) == 0 ? absl::OkStatus() : Failed(fmt::format("setting {} up", device));
}

// Address, peer and MTU of the tun device in the calling thread's namespace; loopback up.
absl::Status Configure(const std::string& address, const std::string& peer) {
  const UniqueFd socket_fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket_fd.valid()) {
    return Failed("opening a socket");
  }
  ifreq request = Request(TunSites::kDevice);
  request.ifr_mtu = TunSites::kMtu;
  if (ioctl(socket_fd.get(), SIOCSIFMTU, &request) != 0) {
    return Failed("setting the MTU of a tun device");
  }
  request.ifr_addr = Ipv4(address);
  if (ioctl(socket_fd.get(), SIOCSIFADDR, &request) != 0) {
    return Failed("setting the address of a tun device");
  }
  request.ifr_dstaddr = Ipv4(peer);
  if (ioctl(socket_fd.get(), SIOCSIFDSTADDR, &request) != 0) {
    return Failed("setting the peer of a tun device");
  }
  GP_RETURN_IF_ERROR(SetUp(socket_fd.get(), TunSites::kDevice));
  return SetUp(socket_fd.get(), "lo");
}

absl::Status SetSysctl(const std::string& name, const std::string& value) {
  std::ofstream file("/proc/sys/net/ipv4/" + name);
  file << value << std::flush;
  return file ? absl::OkStatus() : Failed(fmt::format("setting net.ipv4.{} to {}", name, value));
}

absl::Status SetHost(const TunHostSettings& settings) {
  if (!settings.congestion_control.empty()) {
    GP_RETURN_IF_ERROR(SetSysctl("tcp_congestion_control", settings.congestion_control));
  }
  return SetSysctl("tcp_slow_start_after_idle", settings.slow_start_after_idle ? "1" : "0");
}

// Runs on a thread of its own, which ends with the namespace it has moved to.
absl::Status MakeSite(const std::string& peer, const TunHostSettings& settings, TunSite& site) {
  if (unshare(CLONE_NEWNET) != 0) {
    return Failed("a network namespace cannot be made (root is needed)");
  }
  site.network.Reset(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  site.tun.Reset(open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!site.network.valid() || !site.tun.valid()) {
    return Failed("/dev/net/tun cannot be opened");
  }
  ifreq request = Request(TunSites::kDevice);
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  if (ioctl(site.tun.get(), TUNSETIFF, &request) != 0) {
    return Failed("a tun device cannot be made");
  }
  GP_RETURN_IF_ERROR(SetHost(settings));
  return Configure(site.address, peer);
}

}  // namespace

absl::StatusOr<TunSites> TunSites::Create(const TunHostSettings& settings) {
  TunSites sites;
  const std::array<std::string, 2> addresses = {"10.213.0.1", "10.213.0.2"};
  for (size_t i = 0; i < 2; ++i) {
    sites.sites_[i].address = addresses[i];
    absl::Status status;
    std::thread([&] { status = MakeSite(addresses[1 - i], settings, sites.sites_[i]); }).join();
    GP_RETURN_IF_ERROR(status);
  }
  return sites;
}

std::string TunSites::NetworkPath(size_t index) const {
  return fmt::format("/proc/{}/fd/{}", getpid(), sites_[index].network.get());
}

absl::Status EnterNetwork(const std::string& path) {
  const UniqueFd network(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!network.valid() || setns(network.get(), CLONE_NEWNET) != 0) {
    return Failed(fmt::format("entering the network namespace {}", path));
  }
  if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0 ||
      mount("sysfs", "/sys", "sysfs", 0, nullptr) != 0) {
    return Failed("mounting a /sys of the namespace");
  }
  return absl::OkStatus();
}

}  // namespace geopipe
