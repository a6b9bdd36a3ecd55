// The backends of this node, which its worker program knows: asked by a process that has a deadline.
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/model/capabilities.h"
#include "runtime/base/process.h"
#include "runtime/manifest/agent_config.h"

namespace geopipe::agent {

// The command line and environment of the process that is asked; it sees all GPUs of this node's devices. `answer`: the
// file that its answer (WriteBackends) is appended to.
ProcessSpec BackendsProcess(const AgentConfig& config, const std::filesystem::path& answer);

// The backends that workers of this node cannot run, each with a reason. Waits for the process, for at most `limit_ns`.
// One that does not answer in time, or with something else, makes the node refuse every backend, with this as the
// reason. cuda is refused, too, where the devices are not of kind cuda.
std::vector<RefusedBackend> AskBackends(const AgentConfig& config, int64_t limit_ns);

}  // namespace geopipe::agent
