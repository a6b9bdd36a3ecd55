#include "agent/runner.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <string_view>
#include <system_error>
#include <utility>

#include "agent/worker_backends.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/files.h"
#include "runtime/base/host_memory.h"
#include "runtime/base/ids.h"
#include "runtime/base/log.h"
#include "runtime/base/utf8.h"
#include "runtime/base/version.h"

namespace geopipe::agent {
namespace {

constexpr size_t kInboxCapacity = 1024;
constexpr int64_t kLongestWaitNs = 60'000'000'000;
constexpr int64_t kAskBackendsNs = 20'000'000'000;  // opening many GPUs takes seconds

absl::StatusOr<UniqueFd> LockStateFolder(const std::string& state_dir) {
  GP_RETURN_IF_ERROR(MakeFolder(state_dir));
  absl::StatusOr<UniqueFd> lock = LockFile(state_dir + "/agent.lock");
  return absl::IsAlreadyExists(lock.status())
             ? absl::AlreadyExistsError(
                   fmt::format("another agent uses state_dir {}; stop it or choose another folder", state_dir))
             : std::move(lock);
}

// RememberCoordinator writes "9 0a1b2c3d4e5f6071", incarnation and federation; before there were federations it wrote
// "9". Incarnation 0 means that no coordinator has welcomed an agent of this folder.
absl::StatusOr<RememberCoordinator> ReadKnownCoordinator(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path, 128);
  RememberCoordinator known;
  if (absl::IsNotFound(text.status())) {
    return known;
  }
  GP_RETURN_IF_ERROR(text.status());
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), known.incarnation, 16);
  std::string_view rest(end, text->data() + text->size());
  if (error != std::errc() || !rest.ends_with('\n') || (rest.size() > 1 && !rest.starts_with(' '))) {
    return absl::DataLossError(fmt::format("{} is damaged; remove it when no older coordinator can be reached", path));
  }
  rest.remove_suffix(1);
  known.federation = rest.empty() ? "" : std::string(rest.substr(1));
  return known;
}

std::string HostName() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? ToUtf8(name.data()) : "unknown";
}

}  // namespace

absl::StatusOr<std::unique_ptr<AgentRunner>> AgentRunner::Create(const AgentConfig& config,
                                                                 std::function<void()> on_registered) {
  GP_ASSIGN_OR_RETURN(UniqueFd lock, LockStateFolder(config.state_dir));
  GP_ASSIGN_OR_RETURN(RememberCoordinator known, ReadKnownCoordinator(config.CoordinatorIncarnationPath()));
  std::unique_ptr<AgentRunner> runner(
      new AgentRunner(config, std::move(lock), std::move(known), std::move(on_registered)));
  if (!config.metrics.empty()) {
    GP_ASSIGN_OR_RETURN(runner->endpoint_,
                        MetricsEndpoint::Start({.address = config.metrics, .address_file = config.MetricsAddressPath()},
                                               runner->registry_));
  }
  const PostEvent post = [inbox = &runner->inbox_](Event event) { return inbox->Push(std::move(event)); };
  GP_ASSIGN_OR_RETURN(runner->supervisor_, WorkerSupervisor::Create(runner->config_, {}, post));
  WorkerGatewayOptions gateway;
  gateway.max_sessions = std::max(gateway.max_sessions, 4 * config.devices);
  const PostEvent post_soon = [port = &runner->port_](Event event) { return port->Post(std::move(event), {}); };
  GP_ASSIGN_OR_RETURN(runner->gateway_, WorkerGateway::Start(config.SocketPath(), gateway, post_soon));
  runner->prober_ = std::make_unique<LinkProber>(runner->config_, post);
  runner->client_ = std::make_unique<CoordinatorClient>(config.coordinator, post);
  return runner;
}

AgentRunner::AgentRunner(const AgentConfig& config, UniqueFd lock, RememberCoordinator known,
                         std::function<void()> on_registered)
    : config_(config),
      lock_(std::move(lock)),
      on_registered_(std::move(on_registered)),
      inbox_(kInboxCapacity),
      port_(inbox_),
      agent_(config, {.incarnation = RandomId(),
                      .seed = RandomId(),
                      .version = std::string(Version()),
                      .host = HostName(),
                      .pid = getpid(),
                      .known_coordinator = known.incarnation,
                      .federation = std::move(known.federation),
                      .incarnation_file = config.CoordinatorIncarnationPath(),
                      .fleet = {},
                      .host_memory_bytes = HostMemoryBytes(),
                      .refused_backends = AskBackends(config, kAskBackendsNs)}),
      registry_(MetricLabels{{"site", config.site}, {"node", config.node}}),
      metrics_(registry_, config_) {}

// The adapters' threads may be waiting for room in the inbox; closing it releases them.
AgentRunner::~AgentRunner() {
  Stop();
  client_.reset();
  prober_.reset();
  gateway_.reset();
  supervisor_.reset();
}

bool AgentRunner::RequestShutdown(std::string reason) { return inbox_.Push(Shutdown{std::move(reason)}); }

Event AgentRunner::NextEvent() {
  const int64_t wait_ns = std::clamp<int64_t>(agent_.next_deadline_ns() - clock_.NowNs(), 0, kLongestWaitNs);
  std::optional<Event> event = inbox_.Pop(std::chrono::nanoseconds(wait_ns));
  if (!event.has_value()) {
    return Tick{};
  }
  port_.RoomMade();
  return *std::move(event);
}

absl::Status AgentRunner::Run() {
  while (!exited_.has_value()) {
    Event event = NextEvent();
    metrics_.OnEvent(event);
    for (Effect& effect : agent_.Step(clock_.NowNs(), std::move(event))) {
      std::visit([this](auto& e) { Carry(e); }, effect);
    }
    metrics_.SetWorkers(agent_.fleet().LivingCount());
  }
  return *exited_;
}

void AgentRunner::Carry(RememberCoordinator& effect) {
  const absl::Status status = WriteFileAtomically(
      config_.CoordinatorIncarnationPath(),
      fmt::format("{:x}{}{}\n", effect.incarnation, effect.federation.empty() ? "" : " ", effect.federation));
  if (!status.ok()) {
    LogError("{}; the next agent of this node may obey an older coordinator", std::string(status.message()));
  }
}

void AgentRunner::Carry(Announce& /*effect*/) { on_registered_(); }

void AgentRunner::Carry(WriteLog& effect) { LogLine(effect.level, LogContext{}, effect.text); }

void AgentRunner::Carry(Exit& effect) { exited_ = std::move(effect.status); }

}  // namespace geopipe::agent
