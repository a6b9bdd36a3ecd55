#include "agent/runner.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "runtime/base/files.h"
#include "runtime/base/ids.h"
#include "runtime/base/log.h"
#include "runtime/base/utf8.h"
#include "runtime/base/version.h"

namespace geopipe::agent {
namespace {

constexpr size_t kInboxCapacity = 1024;
constexpr int64_t kLongestWaitNs = 60'000'000'000;

absl::StatusOr<UniqueFd> LockStateFolder(const std::string& state_dir) {
  GP_RETURN_IF_ERROR(MakeFolder(state_dir));
  absl::StatusOr<UniqueFd> lock = LockFile(state_dir + "/agent.lock");
  return absl::IsAlreadyExists(lock.status())
             ? absl::AlreadyExistsError(
                   fmt::format("another agent uses state_dir {}; stop it or choose another folder", state_dir))
             : std::move(lock);
}

std::string HostName() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? ToUtf8(name.data()) : "unknown";
}

}  // namespace

absl::StatusOr<std::unique_ptr<AgentRunner>> AgentRunner::Create(const AgentConfig& config,
                                                                 std::function<void()> on_registered) {
  GP_ASSIGN_OR_RETURN(UniqueFd lock, LockStateFolder(config.state_dir));
  std::unique_ptr<AgentRunner> runner(new AgentRunner(config, std::move(lock), std::move(on_registered)));
  if (!config.metrics.empty()) {
    GP_ASSIGN_OR_RETURN(runner->endpoint_,
                        MetricsEndpoint::Start({.address = config.metrics, .address_file = config.MetricsAddressPath()},
                                               runner->registry_));
  }
  const PostEvent post = [inbox = &runner->inbox_](Event event) { return inbox->Push(std::move(event)); };
  GP_ASSIGN_OR_RETURN(runner->supervisor_, WorkerSupervisor::Create(runner->config_, {}, post));
  WorkerGatewayOptions gateway;
  gateway.max_sessions = std::max(gateway.max_sessions, 4 * config.devices);
  GP_ASSIGN_OR_RETURN(runner->gateway_, WorkerGateway::Start(config.SocketPath(), gateway, post));
  runner->prober_ = std::make_unique<LinkProber>(runner->config_, post);
  runner->client_ = std::make_unique<CoordinatorClient>(config.coordinator, post);
  return runner;
}

AgentRunner::AgentRunner(const AgentConfig& config, UniqueFd lock, std::function<void()> on_registered)
    : config_(config),
      lock_(std::move(lock)),
      on_registered_(std::move(on_registered)),
      inbox_(kInboxCapacity),
      agent_(config, {.incarnation = RandomId(),
                      .seed = RandomId(),
                      .version = std::string(Version()),
                      .host = HostName(),
                      .pid = getpid(),
                      .fleet = {}}),
      registry_(MetricLabels{{"site", config.site}, {"node", config.node}}),
      metrics_(registry_, config_) {}

// The adapters' threads may be waiting for room in the inbox; closed, it lets them go.
AgentRunner::~AgentRunner() {
  Stop();
  client_.reset();
  prober_.reset();
  gateway_.reset();
  supervisor_.reset();
}

bool AgentRunner::RequestShutdown(std::string reason) { return inbox_.Push(Shutdown{std::move(reason)}); }

Event AgentRunner::NextEvent() {
  if (!answers_.empty()) {
    Event event = std::move(answers_.front());
    answers_.pop_front();
    return event;
  }
  const int64_t wait_ns = std::clamp<int64_t>(agent_.next_deadline_ns() - clock_.NowNs(), 0, kLongestWaitNs);
  std::optional<Event> event = inbox_.Pop(std::chrono::nanoseconds(wait_ns));
  return event.has_value() ? *std::move(event) : Event(Tick{});
}

absl::Status AgentRunner::Run() {
  while (!exited_.has_value()) {
    Event event = NextEvent();
    metrics_.OnEvent(event);
    for (Effect& effect : agent_.Step(clock_.NowNs(), std::move(event))) {
      std::visit([this](auto& e) { Carry(e); }, effect);
    }
  }
  return *exited_;
}

void AgentRunner::Carry(StartWorker& effect) {
  const WorkerKey key{effect.worker.device(), effect.worker.incarnation()};
  const absl::StatusOr<int64_t> pid = supervisor_->Start(effect.worker);
  if (pid.ok()) {
    answers_.emplace_back(WorkerStarted{key, *pid});
  } else {
    answers_.emplace_back(WorkerStartFailed{key, pid.status()});
  }
}

void AgentRunner::Carry(Announce& /*effect*/) { on_registered_(); }

void AgentRunner::Carry(WriteLog& effect) { LogLine(effect.level, LogContext{}, effect.text); }

void AgentRunner::Carry(Exit& effect) {
  if (!config_.die_with_parent) {
    supervisor_->LeaveAll();
  }
  exited_ = std::move(effect.status);
}

}  // namespace geopipe::agent
