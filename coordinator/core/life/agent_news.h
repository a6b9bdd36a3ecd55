// News of a run's agents: workers that have ended or are silent, and agents that return or are silent themselves.
#pragma once

#include <cstdint>
#include <map>

#include "coordinator/core/life/hearing.h"
#include "geopipe/v1/agent_service.pb.h"

namespace geopipe {

class AgentNews : public Hearing {
 public:
  using Hearing::Hearing;

  void OnExit(const WorkerKey& key, const v1::WorkerExit& exit);
  void OnSilent(const WorkerKey& key, const v1::WorkerSilent& silent);
  // Handles an agent that can be heard again and has these workers of the run alive. `fresh`: it does not know this
  // coordinator's orders (one of the two was restarted).
  struct Living {
    bool attached = false;
    v1::WorkerStatus status;
  };
  void OnNodeReturned(const NodeKey& node, const std::map<WorkerKey, Living>& alive, bool fresh);
  // Handles another machine in the node's place. True: the life has changed.
  bool OnReplaced(const NodeKey& node) { return life_.checkpoints.marked.erase(node) > 0; }
  // The agent has this worker of the run, which is younger than the one that the life knows of.
  void OnYounger(const WorkerKey& key, uint64_t number);
  // An agent has this worker of a later run of the job.
  void OnLaterRun(const WorkerKey& key);
  void OnAllConnected();
  void OnTick();

 private:
  void NoteSilence();
};

}  // namespace geopipe
