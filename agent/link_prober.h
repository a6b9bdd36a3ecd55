// One end of a link's probe, as the core orders it: UCX is opened for the probe on the devices that the workers use,
// with the link shaped as the workers' is, and closed when it is over. A slowdown (links.slowdown) is left out: it
// makes a link slower than everybody believes, and what is believed comes from here.
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
  // Ends all probes and waits for them. The inbox is closed by then, or may take their news.
  ~LinkProber();
  LinkProber(const LinkProber&) = delete;
  LinkProber& operator=(const LinkProber&) = delete;

  // Core's thread. Neither waits.
  void Carry(StartProbe order);
  void Carry(const StopProbe& order);

 private:
  class Probe;

  const AgentConfig& config_;
  const PostEvent post_;
  std::list<std::unique_ptr<Probe>> probes_;  // those that are over are joined when the next begins
};

}  // namespace geopipe::agent
