#include "runtime/transport/ucx/device_ip.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

namespace geopipe {
namespace {

std::string DevicesVariable() {
  const char* value = std::getenv("UCX_NET_DEVICES");
  return value == nullptr ? "" : value;
}

// The network interface of an RDMA device, or the name itself.
std::string InterfaceOf(const std::string& device) {
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator("/sys/class/infiniband/" + device + "/device/net", error)) {
    return entry.path().filename().string();
  }
  return device;
}

struct Interface {
  std::string name;
  std::string address;
  bool loopback = false;
};

std::vector<Interface> Interfaces() {
  std::vector<Interface> interfaces;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    return interfaces;
  }
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET || (entry->ifa_flags & IFF_UP) == 0) {
      continue;
    }
    std::array<char, INET_ADDRSTRLEN> text{};
    const auto* address = reinterpret_cast<const sockaddr_in*>(entry->ifa_addr);
    inet_ntop(AF_INET, &address->sin_addr, text.data(), text.size());
    interfaces.push_back(
        {.name = entry->ifa_name, .address = text.data(), .loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0});
  }
  freeifaddrs(list);
  return interfaces;
}

}  // namespace

absl::StatusOr<std::string> DeviceIp(const std::optional<Ipv4Network>& private_network) {
  const std::string devices = DevicesVariable();
  const std::string device = devices.substr(0, devices.find_first_of(":,"));
  const bool any = device.empty() || device == "all";
  const std::string wanted = any ? "" : InterfaceOf(device);
  for (const Interface& interface : Interfaces()) {
    const bool permitted =
        interface.loopback || (!any && private_network.has_value() && private_network->Contains(interface.address));
    if ((any || interface.name == wanted) && permitted) {
      return interface.address;
    }
    if (interface.name == wanted) {
      // Peers are authenticated, but data travels in clear.
      return absl::FailedPreconditionError(fmt::format(
          "the network device '{}' ({}) is neither loopback nor in the network declared private, and what workers send "
          "is not encrypted: set UCX_NET_DEVICES to lo, or name its network as ucx.private_network of the agent",
          device, interface.address));
    }
  }
  return absl::UnavailableError(fmt::format(
      "the network device '{}' has no IPv4 address that is up; set UCX_NET_DEVICES to one that has", device));
}

}  // namespace geopipe
