// The agent's metrics for Prometheus, counted from the events of its core.
#pragma once

#include <cstdint>

#include "agent/config.h"
#include "agent/events.h"
#include "runtime/base/metrics.h"

namespace geopipe::agent {

class AgentMetrics {
 public:
  // The registry outlives the metrics.
  AgentMetrics(MetricRegistry& registry, const AgentConfig& config);

  // Counts an event before the core gets it, on the core's thread.
  void OnEvent(const Event& event);
  // Sets the number of workers that live now.
  void SetWorkers(int64_t workers);

 private:
  void OnWorkerExited(const WorkerExited& event);

  MetricRegistry& registry_;
  const int32_t devices_;
  ConnectionId welcomed_ = 0;  // the connection that has been welcomed last
};

}  // namespace geopipe::agent
