#include "coordinator/coordinator_metrics.h"

#include <absl/status/status.h>

#include <algorithm>
#include <atomic>

#include "coordinator/core/run/job_state.h"
#include "coordinator/core/run/kept_name.h"
#include "runtime/base/version.h"

namespace geopipe {
namespace {

// Figures of this many finished jobs stay, so that scrapes after the end find them.
constexpr size_t kMaxFinishedJobs = 64;

double Seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

}  // namespace

CoordinatorMetrics::CoordinatorMetrics(MetricRegistry& registry, const std::vector<StoredJob>& stored)
    : registry_(registry) {
  registry_.GetGauge(metrics::kBuildInfo, {"geopipe-coordinator", std::string(Version())}).Set(1);
  registry_.GetGauge(metrics::kAgentsConnected).Set(0);
  for (const StoredJob& job : stored) {
    if (!IsKeptName(job.detail.summary().name())) {  // a job counts once, as its latest run
      SetState(job.detail.summary().name(), job.detail.summary().state());
    }
  }
  ShowStates();
}

void CoordinatorMetrics::OnEvent(const Event& event) {
  if (const auto* message = std::get_if<AgentMessage>(&event)) {
    OnAgentMessage(*message);
  } else if (const auto* closed = std::get_if<AgentClosed>(&event)) {
    agents_.erase(closed->session);
    registry_.GetGauge(metrics::kAgentsConnected).Set(static_cast<double>(agents_.size()));
  }
}

void CoordinatorMetrics::OnAgentMessage(const AgentMessage& event) {
  const v1::ConnectRequest& message = event.message;
  if (message.has_hello()) {
    agents_[event.session] = {message.hello().node().site(), message.hello().node().node()};
    registry_.GetGauge(metrics::kAgentsConnected).Set(static_cast<double>(agents_.size()));
  } else if (message.has_heartbeat()) {
    if (const auto agent = agents_.find(event.session); agent != agents_.end()) {
      registry_.GetCounter(metrics::kAgentHeartbeats, {agent->second.site, agent->second.node}).Add();
    }
  }
}

void CoordinatorMetrics::OnEffect(const Effect& effect) {
  if (const auto* created = std::get_if<PersistNewJob>(&effect)) {
    OnNewJob(*created);
  } else if (const auto* transition = std::get_if<PersistTransition>(&effect)) {
    OnTransition(*transition);
  } else if (const auto* finished = std::get_if<IterationsFinished>(&effect)) {
    OnIterations(*finished);
  } else if (const auto* record = std::get_if<PersistRecord>(&effect)) {
    if (record->outcome.has_value()) {
      OnCheckpoints(record->job, *record->outcome);
      OnEvaluations(record->job, *record->outcome);
    }
  } else if (const auto* measured = std::get_if<LinkMeasured>(&effect)) {
    const LabelValues link = {measured->from_site, measured->to_site};
    registry_.GetGauge(metrics::kLinkMeasuredLatency, link).Set(Seconds(measured->value.latency_ns()));
    if (measured->value.bandwidth_bytes_per_s() > 0) {
      registry_.GetGauge(metrics::kLinkMeasuredBandwidth, link).Set(measured->value.bandwidth_bytes_per_s());
    }
  }
}

void CoordinatorMetrics::OnNewJob(const PersistNewJob& effect) {
  const std::string& name = effect.detail.summary().name();
  for (const std::string& gone : {effect.forget, name}) {
    Forget(gone);
    SetState(gone, v1::JOB_STATE_UNSPECIFIED);
  }
  SetState(name, effect.detail.summary().state());
  ShowStates();
}

void CoordinatorMetrics::OnTransition(const PersistTransition& effect) {
  const JobState from = SetState(effect.job, effect.transition.state());
  if (effect.transition.state() == v1::JOB_STATE_PENDING &&
      (from == v1::JOB_STATE_RECOVERING || from == v1::JOB_STATE_PAUSED || from == v1::JOB_STATE_REPLANNING)) {
    registry_.GetCounter(metrics::kReplans, {effect.job, from == v1::JOB_STATE_REPLANNING ? "asked" : "lost"}).Add();
  }
  ShowStates();
  if (effect.outcome.has_value()) {
    OnRecovery(effect.job, effect.transition, *effect.outcome);
  }
  if (IsFinal(effect.transition.state())) {
    finished_.push_back(effect.job);
    if (finished_.size() > kMaxFinishedJobs) {
      Forget(std::string(finished_.front()));
    }
  } else if (effect.outcome.has_value() && effect.outcome->has_prediction()) {
    const v1::Prediction& prediction = effect.outcome->prediction();
    registry_.GetGauge(metrics::kPredictedIterationSeconds, {effect.job}).Set(Seconds(prediction.iteration_ns()));
    registry_.GetGauge(metrics::kPredictedBubbleRatio, {effect.job}).Set(prediction.bubble_ratio());
  }
}

void CoordinatorMetrics::OnIterations(const IterationsFinished& effect) {
  const LabelValues job = {effect.job};
  const Counter iterations = registry_.GetCounter(metrics::kIterations, job);
  const Counter tokens = registry_.GetCounter(metrics::kTokens, job);
  const Histogram seconds = registry_.GetHistogram(metrics::kIterationSeconds, job);
  for (const v1::IterationSummary& iteration : effect.iterations) {
    iterations.Add();
    tokens.Add(static_cast<double>(effect.tokens_per_iteration));
    seconds.Observe(Seconds(iteration.duration_ns()));
    times_[effect.job].counted_ns += iteration.duration_ns();
    registry_.GetGauge(metrics::kBubbleRatio, job).Set(iteration.bubble_ratio());
    if (iteration.has_loss()) {
      registry_.GetGauge(metrics::kLoss, job).Set(iteration.loss());
    }
    if (iteration.has_grad_norm()) {
      registry_.GetGauge(metrics::kGradientNorm, job).Set(iteration.grad_norm());
    }
  }
  ShowEffectiveTime(effect.job);
}

// A loss is reported with a transition to RECOVERING or back to PENDING; its end with one to RUNNING or PAUSED.
void CoordinatorMetrics::OnRecovery(const std::string& job, const v1::JobTransition& transition,
                                    const v1::JobDetail& outcome) {
  if (outcome.recoveries_size() == 0) {
    return;
  }
  const v1::RecoverySummary& recovery = *outcome.recoveries().rbegin();
  if (recovery.begun_unix_time_ns() == transition.unix_time_ns()) {
    registry_.GetCounter(metrics::kRecoveries, {job, recovery.kind()}).Add();
  } else if (recovery.ended_unix_time_ns() == transition.unix_time_ns()) {
    registry_.GetCounter(metrics::kRecoveryLostSeconds, {job}).Add(Seconds(recovery.lost_ns()));
    times_[job].lost_ns += recovery.lost_ns();
    ShowEffectiveTime(job);
  }
}

void CoordinatorMetrics::OnCheckpoints(const std::string& job, const v1::JobDetail& outcome) {
  if (outcome.checkpoints_size() == 0) {
    return;
  }
  for (const v1::CheckpointSummary& checkpoint : outcome.checkpoints()) {
    if (checkpoint.replicated_unix_time_ns() > 0) {
      registry_.GetGauge(metrics::kCheckpointCopiedTime, {job}).Set(Seconds(checkpoint.unix_time_ns()));
    }
  }
  const v1::CheckpointSummary& newest = *outcome.checkpoints().rbegin();
  registry_.GetGauge(metrics::kCheckpointTime, {job}).Set(Seconds(newest.unix_time_ns()));
  registry_.GetGauge(metrics::kCheckpointSeconds, {job}).Set(Seconds(newest.duration_ns()));
  registry_.GetGauge(metrics::kCheckpointBytes, {job}).Set(static_cast<double>(newest.bytes()));
}

void CoordinatorMetrics::OnEvaluations(const std::string& job, const v1::JobDetail& outcome) {
  if (outcome.evaluations_size() == 0 || outcome.evaluations().rbegin()->incomplete()) {
    return;
  }
  const v1::EvaluationSummary& newest = *outcome.evaluations().rbegin();
  registry_.GetGauge(metrics::kEvaluatedIterations, {job}).Set(static_cast<double>(newest.iteration()));
  registry_.GetGauge(metrics::kEvaluationSeconds, {job}).Set(Seconds(newest.duration_ns()));
  if (newest.has_loss()) {
    registry_.GetGauge(metrics::kValidationLoss, {job}).Set(newest.loss());
  }
}

void CoordinatorMetrics::ShowEffectiveTime(const std::string& job) {
  const Times& times = times_[job];
  const int64_t all_ns = times.counted_ns + times.lost_ns;
  if (all_ns > 0) {
    registry_.GetGauge(metrics::kEffectiveTimeRatio, {job})
        .Set(static_cast<double>(times.counted_ns) / static_cast<double>(all_ns));
  }
}

void CoordinatorMetrics::Forget(const std::string& job) {
  times_.erase(job);
  std::erase(finished_, job);
  registry_.Remove("training_job", job);
}

JobState CoordinatorMetrics::SetState(const std::string& job, JobState state) {
  const auto known = states_.find(job);
  const JobState before = known == states_.end() ? v1::JOB_STATE_UNSPECIFIED : known->second;
  --counts_[before];
  ++counts_[state];
  if (state == v1::JOB_STATE_UNSPECIFIED) {
    states_.erase(job);
  } else {
    states_[job] = state;
  }
  return before;
}

void CoordinatorMetrics::ShowStates() {
  for (int state = v1::JOB_STATE_UNSPECIFIED + 1; state <= v1::JobState_MAX; ++state) {
    registry_.GetGauge(metrics::kJobs, {std::string(JobStateName(static_cast<JobState>(state)))})
        .Set(static_cast<double>(counts_[static_cast<JobState>(state)]));
  }
}

// --- Calls --------------------------------------------------------------------------------------------------------

namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;
using grpc::experimental::ServerInterceptorFactoryInterface;
using grpc::experimental::ServerRpcInfo;

class RpcTimer final : public Interceptor {
 public:
  RpcTimer(MetricRegistry& registry, const Clock& clock, const ServerRpcInfo& call)
      : registry_(registry),
        clock_(clock),
        method_(call.method()),
        unary_(call.type() == ServerRpcInfo::Type::UNARY),
        begin_ns_(clock.NowNs()) {}

  // A caller that has gone gets no status.
  ~RpcTimer() override { Ended(absl::StatusCode::kCancelled); }

  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      Ended(static_cast<absl::StatusCode>(methods->GetSendStatus().error_code()));
    }
    methods->Proceed();
  }

 private:
  void Ended(absl::StatusCode code) {
    if (ended_.exchange(true)) {
      return;
    }
    const LabelValues labels = {method_.substr(method_.rfind('/') + 1), absl::StatusCodeToString(code)};
    if (unary_) {
      registry_.GetHistogram(metrics::kRpcSeconds, labels).Observe(Seconds(clock_.NowNs() - begin_ns_));
    } else {
      registry_.GetCounter(metrics::kRpcStreams, labels).Add();
    }
  }

  MetricRegistry& registry_;
  const Clock& clock_;
  const std::string method_;  // "/geopipe.v1.ControlService/GetJob": registered ones alone come here
  const bool unary_;
  const int64_t begin_ns_;
  std::atomic<bool> ended_ = false;
};

class RpcTimerFactory final : public ServerInterceptorFactoryInterface {
 public:
  RpcTimerFactory(MetricRegistry& registry, const Clock& clock) : registry_(registry), clock_(clock) {}
  Interceptor* CreateServerInterceptor(ServerRpcInfo* call) override { return new RpcTimer(registry_, clock_, *call); }

 private:
  MetricRegistry& registry_;
  const Clock& clock_;
};

}  // namespace

std::unique_ptr<ServerInterceptorFactoryInterface> MakeRpcTimer(MetricRegistry& registry, const Clock& clock) {
  return std::make_unique<RpcTimerFactory>(registry, clock);
}

}  // namespace geopipe
