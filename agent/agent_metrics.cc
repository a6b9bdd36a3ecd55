#include "agent/agent_metrics.h"

#include <string>
#include <variant>

#include "runtime/base/version.h"

namespace geopipe::agent {

AgentMetrics::AgentMetrics(MetricRegistry& registry, const AgentConfig& config)
    : registry_(registry), devices_(config.devices) {
  registry_.GetGauge(metrics::kBuildInfo, {"geopipe-agent", std::string(Version())}).Set(1);
  registry_.GetGauge(metrics::kWorkers).Set(0);
  registry_.GetGauge(metrics::kCoordinatorConnected).Set(0);
  registry_.GetCounter(metrics::kCoordinatorConnections);
  for (const char* outcome : {"ok", "error", "signal"}) {
    registry_.GetCounter(metrics::kWorkerExits, {outcome});
  }
  for (const LinkConfig& link : config.links) {
    registry_.GetGauge(metrics::kLinkLatency, {config.site, link.to}).Set(static_cast<double>(link.latency_ns) * 1e-9);
    registry_.GetGauge(metrics::kLinkBandwidth, {config.site, link.to}).Set(link.bandwidth_bytes_per_s);
  }
}

void AgentMetrics::OnEvent(const Event& event) {
  if (const auto* message = std::get_if<WorkerMessage>(&event)) {
    const int32_t device = message->message.worker().device();
    if (message->message.report().has_heartbeat() && device >= 0 && device < devices_) {
      registry_.GetCounter(metrics::kWorkerHeartbeats, {std::to_string(device)}).Add();
    }
  } else if (const auto* order = std::get_if<CoordinatorMessage>(&event)) {
    if (order->message.has_welcome()) {
      welcomed_ = order->connection;
      registry_.GetGauge(metrics::kCoordinatorConnected).Set(1);
      registry_.GetCounter(metrics::kCoordinatorConnections).Add();
    }
  } else if (const auto* closed = std::get_if<CoordinatorClosed>(&event)) {
    if (closed->connection == welcomed_) {
      registry_.GetGauge(metrics::kCoordinatorConnected).Set(0);
    }
  } else if (const auto* exited = std::get_if<WorkerExited>(&event)) {
    OnWorkerExited(*exited);
  }
}

void AgentMetrics::SetWorkers(int64_t workers) {
  registry_.GetGauge(metrics::kWorkers).Set(static_cast<double>(workers));
}

void AgentMetrics::OnWorkerExited(const WorkerExited& event) {
  const char* outcome = event.signal != 0 ? "signal" : event.exit_code != 0 ? "error" : "ok";
  registry_.GetCounter(metrics::kWorkerExits, {outcome}).Add();
}

}  // namespace geopipe::agent
