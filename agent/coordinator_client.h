// The agent's end of AgentService.Connect over gRPC: carries out Dial, HangUp and SendToCoordinator, and posts what
// comes back. It decides nothing: when to dial again is the core's business.
#pragma once

#include <list>
#include <memory>
#include <string>

#include "agent/events.h"
#include "agent/post_event.h"

namespace geopipe::agent {

class CoordinatorClient {
 public:
  // `address` is host:port. Events are posted from threads of the client's own; a stream is not read while the core's
  // inbox is full.
  CoordinatorClient(std::string address, PostEvent post);
  // Hangs up. Call only once `post` answers false; otherwise the join may wait for ever.
  ~CoordinatorClient();
  CoordinatorClient(const CoordinatorClient&) = delete;
  CoordinatorClient& operator=(const CoordinatorClient&) = delete;

  // Carries out an effect without waiting for the network. Called from one thread.
  void Carry(Dial dial);
  void Carry(const HangUp& hang_up);
  void Carry(SendToCoordinator send);

 private:
  class Connection;

  const std::string address_;
  const PostEvent post_;
  std::list<std::unique_ptr<Connection>> connections_;  // the last is the current one; others are ending
};

}  // namespace geopipe::agent
