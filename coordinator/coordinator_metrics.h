// The coordinator's metrics for Prometheus, counted from the events and effects of its core, and from the
// calls that its gRPC server answers.
#pragma once

#include <grpcpp/support/server_interceptor.h>

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/runner.h"
#include "runtime/base/metrics.h"

namespace geopipe {

class CoordinatorMetrics final : public RunnerObserver {
 public:
  // `stored` as the core gets them. The registry outlives the metrics.
  CoordinatorMetrics(MetricRegistry& registry, const std::vector<StoredJob>& stored);

  void OnEvent(const Event& event) override;
  void OnEffect(const Effect& effect) override;

 private:
  // Time that a job has spent, in this life of the coordinator.
  struct Times {
    int64_t counted_ns = 0;  // on iterations that are told
    int64_t lost_ns = 0;     // on losses
  };

  struct Agent {
    std::string site;
    std::string node;
  };

  void OnAgentMessage(const AgentMessage& event);
  void OnNewJob(const PersistNewJob& effect);
  void OnTransition(const PersistTransition& effect);
  void OnIterations(const IterationsFinished& effect);
  void OnRecovery(const std::string& job, const v1::JobTransition& transition, const v1::JobDetail& outcome);
  void OnCheckpoints(const std::string& job, const v1::JobDetail& outcome);
  void OnEvaluations(const std::string& job, const v1::JobDetail& outcome);
  void ShowEffectiveTime(const std::string& job);
  // Drops the job's figures, not its state.
  void Forget(const std::string& job);
  // Returns the job's state before. UNSPECIFIED: there is no such job.
  JobState SetState(const std::string& job, JobState state);
  void ShowStates();

  MetricRegistry& registry_;
  std::map<std::string, JobState> states_;
  std::map<JobState, int64_t> counts_;  // of jobs, by state
  std::map<std::string, Times> times_;
  std::deque<std::string> finished_;  // jobs whose figures are still shown, oldest first
  std::map<SessionId, Agent> agents_;
};

// Times every call of a server: unary ones by method and code, streams are counted when they end. The registry outlives
// the server.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeRpcTimer(MetricRegistry& registry,
                                                                                    const Clock& clock);

}  // namespace geopipe
