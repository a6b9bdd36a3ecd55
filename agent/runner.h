// Runs an agent: one thread takes events from the inbox, steps the core and carries out its effects; the adapters only
// post.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "agent/agent.h"
#include "agent/agent_metrics.h"
#include "agent/coordinator_client.h"
#include "agent/link_prober.h"
#include "agent/worker_gateway.h"
#include "agent/worker_supervisor.h"
#include "runtime/base/clock.h"
#include "runtime/base/event_port.h"
#include "runtime/base/inbox.h"
#include "runtime/base/metrics.h"
#include "runtime/base/unique_fd.h"

namespace geopipe::agent {

class AgentRunner {
 public:
  // Makes and locks the state folder, listens for workers. `on_registered` is called once, from Run. Errors say what is
  // wrong with the folder, that another agent uses it, or that metrics cannot be served.
  static absl::StatusOr<std::unique_ptr<AgentRunner>> Create(const AgentConfig& config,
                                                             std::function<void()> on_registered);
  ~AgentRunner();
  AgentRunner(const AgentRunner&) = delete;
  AgentRunner& operator=(const AgentRunner&) = delete;

  // Runs until the core says Exit: OK when it was asked to leave, else why it cannot go on. Call once.
  absl::Status Run();

  // Releases all threads that wait to post. Call after Run.
  void Stop() { inbox_.Close(); }

  // Address that Prometheus may scrape; empty: none.
  std::string metrics_address() const { return endpoint_ == nullptr ? "" : endpoint_->address(); }

  // Any thread. False when the core has ended.
  bool RequestShutdown(std::string reason);

 private:
  AgentRunner(const AgentConfig& config, UniqueFd lock, RememberCoordinator known, std::function<void()> on_registered);

  Event NextEvent();
  void Carry(Dial& effect) { client_->Carry(std::move(effect)); }
  void Carry(HangUp& effect) { client_->Carry(effect); }
  void Carry(SendToCoordinator& effect) { client_->Carry(std::move(effect)); }
  void Carry(StartWorker& effect) { supervisor_->Carry(effect); }
  void Carry(SignalWorker& effect) { supervisor_->Carry(effect); }
  void Carry(ForgetExit& effect) { supervisor_->Carry(effect); }
  void Carry(AcceptSession& effect) { gateway_->Carry(effect); }
  void Carry(ReadOn& effect) { gateway_->Carry(effect); }
  void Carry(SendToWorker& effect) { gateway_->Carry(std::move(effect)); }
  void Carry(CloseSession& effect) { gateway_->Carry(effect); }
  void Carry(StartProbe& effect) { prober_->Carry(std::move(effect)); }
  void Carry(StopProbe& effect) { prober_->Carry(effect); }
  void Carry(RememberCoordinator& effect);
  void Carry(Announce& effect);
  void Carry(WriteLog& effect);
  void Carry(Exit& effect);

  const AgentConfig config_;
  const UniqueFd lock_;  // of the state folder
  const std::function<void()> on_registered_;
  Clock& clock_ = Clock::Real();
  Inbox<Event> inbox_;
  EventPort<Event> port_;  // into it, for threads that must not wait
  Agent agent_;
  MetricRegistry registry_;
  AgentMetrics metrics_;
  std::unique_ptr<MetricsEndpoint> endpoint_;
  std::optional<absl::Status> exited_;
  std::unique_ptr<WorkerSupervisor> supervisor_;
  std::unique_ptr<CoordinatorClient> client_;
  std::unique_ptr<WorkerGateway> gateway_;
  std::unique_ptr<LinkProber> prober_;
};

}  // namespace geopipe::agent
