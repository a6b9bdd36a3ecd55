#include "tests/support/listening_ports.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

namespace geopipe {

namespace fs = std::filesystem;

std::set<uint16_t> ListeningPorts(int64_t pid) {
  const fs::path folder = fs::path("/proc") / std::to_string(pid);
  std::set<std::string> sockets;  // their inodes
  std::error_code error;
  // The process may end at any moment: nothing here throws then.
  for (auto entry = fs::directory_iterator(folder / "fd", error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    std::error_code closed;
    const std::string target = fs::read_symlink(entry->path(), closed).string();
    if (target.starts_with("socket:[")) {
      sockets.insert(target.substr(8, target.size() - 9));
    }
  }
  // "sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode ..."; state 0A listens.
  std::set<uint16_t> ports;
  std::ifstream table(folder / "net/tcp");
  for (std::string line; std::getline(table, line);) {
    std::istringstream fields(line);
    std::string number, local, remote, state, queues, timer, retransmits, user, timeout, inode;
    fields >> number >> local >> remote >> state >> queues >> timer >> retransmits >> user >> timeout >> inode;
    if (state == "0A" && sockets.contains(inode)) {
      ports.insert(static_cast<uint16_t>(std::stoul(local.substr(local.find(':') + 1), nullptr, 16)));
    }
  }
  return ports;
}

}  // namespace geopipe
