// One end of a link's probe, as a process: opens UCX on the devices that workers use, with the link shaped as theirs
// is, and ends. It is a process of its own because strangers who send malformed bytes end a process with UCX 1.13's
// TCP, and the agent looks after workers. A slowdown (links.slowdown) is left out: it stands for a link that is slower
// than the planner believes, and the planner believes these measurements.
#pragma once

#include <string>

#include "runtime/base/network_limits.h"

namespace geopipe {

struct ProbeProcessOptions {
  NetworkLimits limits = {};
  std::string pacer_path = {};  // where the order says that the link is shaped
  bool near = false;            // both ends are in one site
};

// Serves one order over `fd`, one of MakePacketSockets. One packet comes in: v1::ProbeLink. Packets of v1::ProbeReport
// go out: opened (where the order has no address), then measured (where it has) or failed. Returns the exit code: 0
// when the order was carried out or its failure reported.
int ServeProbe(int fd, const ProbeProcessOptions& options);

}  // namespace geopipe
