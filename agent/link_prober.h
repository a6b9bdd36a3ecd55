// One end of a link's probe, as the core orders it, in a process of its own (geopipe-worker --probe-fd): UCX 1.13's TCP
// ends the process that strangers send malformed bytes to, and this one looks after workers.
#pragma once

#include <list>
#include <memory>

#include "agent/config.h"
#include "agent/events.h"
#include "agent/post_event.h"

namespace geopipe::agent {

class LinkProber {
 public:
  // `config` outlives it.
  LinkProber(const AgentConfig& config, PostEvent post);
  // Ends all probes and waits for them. By then the inbox is closed, or still takes their news.
  ~LinkProber();
  LinkProber(const LinkProber&) = delete;
  LinkProber& operator=(const LinkProber&) = delete;

  // Called on the core's thread; does not wait.
  void Carry(StartProbe order);
  void Carry(const StopProbe& order);

 private:
  class Probe;

  const AgentConfig& config_;
  const PostEvent post_;
  std::list<std::unique_ptr<Probe>> probes_;  // finished ones are joined when the next begins
};

}  // namespace geopipe::agent
