// A TCP proxy on this machine that can swallow what it carries: both ends keep an open connection and hear nothing, as
// behind a router that lost its table or a host that lost power. One thread that sleeps in poll.
#pragma once

#include <absl/status/statusor.h>

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "runtime/base/unique_fd.h"

namespace geopipe {

class HalfOpenProxy {
 public:
  // Listens on a free port and carries every connection to `target_port`. Both on the loopback address.
  static absl::StatusOr<std::unique_ptr<HalfOpenProxy>> Start(uint16_t target_port);
  ~HalfOpenProxy();

  // "127.0.0.1:PORT".
  const std::string& endpoint() const { return endpoint_; }

  // Lets nothing pass until Restore. Connections that exist meanwhile never carry anything again, since nobody resends
  // what they lost; those made after Restore do.
  void Swallow() { swallow_ = true; }
  void Restore() { swallow_ = false; }

 private:
  // One end of a connection: its bytes go to the other end.
  struct Pipe {
    UniqueFd fd;
    std::string waiting;  // for this end
    bool ended = false;   // it says nothing any more
  };
  struct Connection {
    Pipe ends[2];
    bool dead = false;  // swallowed
  };

  HalfOpenProxy(UniqueFd listener, UniqueFd wake, uint16_t target_port, std::string endpoint);
  void Run();
  void Accept();
  // Passes bytes on. False: the connection is over.
  bool Carry(Connection& connection, const short* revents);

  const UniqueFd listener_;
  const UniqueFd wake_;
  const uint16_t target_port_;
  const std::string endpoint_;
  std::list<Connection> connections_;
  std::atomic<bool> swallow_{false};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace geopipe
