// Orders to the workers of a run. Those that a worker has to answer follow from the situation (DueFor) and are sent
// when they differ from the last that it was sent, so that one that was lost with an agent is sent again.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/cluster/links.h"
#include "coordinator/core/life/situation.h"
#include "geopipe/v1/agent_service.pb.h"

namespace geopipe {

struct NodeMessage {
  NodeKey node;
  v1::ConnectResponse message;
};

// The order that the worker has to carry out or answer next.
Order DueFor(const Situation& situation, const WorkerKey& worker);
// REQUIRES: it is due. `links`: those of the federation, for kPrepare.
NodeMessage MessageOf(const Situation& situation, const WorkerKey& worker, const Order& order, const LinkTable& links);

NodeMessage CommandTo(const JobLife& life, const WorkerKey& worker, v1::WorkerCommand command);
// One command of the epoch to all its members.
std::vector<NodeMessage> CommandAll(const JobLife& life, v1::WorkerCommand command);
NodeMessage CopyMessage(const JobLife& life, const RunCheckpoints::CopyOrder& order);
// Stops the workers, each after `grace_ns`.
std::vector<NodeMessage> StopMessages(const JobLife& life, const std::vector<WorkerKey>& workers, int64_t grace_ns,
                                      const std::string& reason);

}  // namespace geopipe
