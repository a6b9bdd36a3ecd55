#include "coordinator/server.h"

#include <fmt/format.h>

#include <chrono>
#include <functional>
#include <thread>
#include <utility>

#include "coordinator/agent_service.h"
#include "coordinator/control_service.h"
#include "coordinator/coordinator_metrics.h"
#include "coordinator/core/planning.h"
#include "coordinator/job_store.h"
#include "coordinator/runner.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/files.h"
#include "runtime/base/grpc/channel.h"
#include "runtime/base/ids.h"
#include "runtime/base/listen_address.h"
#include "runtime/base/thread_pool.h"
#include "runtime/base/version.h"

namespace geopipe {
namespace {

constexpr size_t kMaxInboxBytes = size_t{512} << 20;

// Only agents send messages of notable size.
size_t BytesOf(const Event& event) {
  const auto* const from_agent = std::get_if<AgentMessage>(&event);
  return from_agent == nullptr ? 0 : from_agent->message.ByteSizeLong();
}

constexpr int kMaxStreamsPerConnection = 1024;
constexpr int kKeepaliveMs = 10'000;
// An idle gRPC client looks at its connection every 5 s only (the backup poller), and later on a busy machine: a
// shorter timeout would hang up on clients that are well, and their next call would fail with "Broken pipe". Agents
// that have gone are found by their heartbeats.
constexpr int kKeepaliveTimeoutMs = 30'000;
constexpr int kMinPingIntervalMs = 1'000;
constexpr int kMaxPingStrikes = 10;
constexpr auto kShutdownGrace = std::chrono::milliseconds(500);

CoordinatorOptions OptionsOf(const CoordinatorConfig& config, uint64_t incarnation, const std::string& federation) {
  CoordinatorOptions options;
  options.version = std::string(Version());
  options.incarnation = incarnation;
  options.federation = federation;
  options.heartbeat_interval_ns = config.heartbeat_interval_ns;
  options.membership = config.membership;
  options.membership.max_agents = static_cast<size_t>(config.max_agents);
  options.run = config.run;
  options.probing.interval_ns = config.probe_interval_ns;
  options.probing.first_probe = incarnation;
  options.max_jobs = static_cast<size_t>(config.max_jobs);
  options.max_finished_jobs = static_cast<size_t>(config.max_finished_jobs);
  options.max_watches = static_cast<size_t>(config.max_watches);
  return options;
}

class Server final : public CoordinatorServer {
 public:
  Server(const CoordinatorConfig& config, const Clock& clock, ServerHooks hooks, std::unique_ptr<JobStore> store,
         StoredState stored, uint64_t incarnation)
      : hooks_(std::move(hooks)),
        metrics_address_(config.metrics),
        metrics_address_file_(config.state_dir + "/metrics.address"),
        metrics_(registry_, stored.jobs),
        clock_(clock),
        store_(std::move(store)),
        inbox_(static_cast<size_t>(config.inbox_events), kMaxInboxBytes, BytesOf),
        port_(inbox_),
        incarnation_(incarnation),
        agents_(port_, {.peer = "agent", .max_streams = 2048, .max_queued_messages = 4096}),
        control_(port_, std::string(Version()), incarnation_),
        planner_(std::make_unique<PlannerThread>(
            clock, hooks_.plan, [this](PlannerBegun begun) { inbox_.Push(std::move(begun)); },
            [this](PlannerDone done) {
              done.secret = RandomBytes(kEpochSecretBytes);
              inbox_.Push(std::move(done));
            })),
        runner_(std::make_unique<Coordinator>(OptionsOf(config, incarnation_, stored.federation), std::move(stored)),
                RunnerParts{.inbox = inbox_,
                            .port = port_,
                            .store = *store_,
                            .agents = agents_,
                            .calls = control_,
                            .planner = *planner_,
                            .clock = clock,
                            .observer = &metrics_}) {}
  ~Server() override { Stop().IgnoreError(); }

  absl::Status Listen(ListenAddress address) {
    GP_RETURN_IF_ERROR(CheckBindable(address));
    if (!metrics_address_.empty()) {
      GP_ASSIGN_OR_RETURN(
          endpoint_of_metrics_,
          MetricsEndpoint::Start({.address = metrics_address_, .address_file = metrics_address_file_}, registry_));
    }
    GP_RETURN_IF_ERROR(runner_.Start());
    grpc::ServerBuilder builder;
    int port = 0;
    ListenOn(ToString(address), builder, &port);
    builder.RegisterService(&agents_);
    builder.RegisterService(&control_);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kMinPingIntervalMs);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, kMaxPingStrikes);
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
    interceptors.push_back(MakeRpcTimer(registry_, clock_));
    builder.experimental().SetInterceptorCreators(std::move(interceptors));
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port == 0) {
      return absl::UnavailableError(
          fmt::format("cannot listen on {}: the port is in use by another process; stop it or choose another port",
                      ToString(address)));
    }
    address.port = port;
    endpoint_ = ToString(address);
    core_ = std::thread([this] {
      core_status_ = runner_.Run();
      if (!core_status_.ok()) {
        Abandon(core_status_);
      }
    });
    return absl::OkStatus();
  }

  absl::Status Stop() override {
    const absl::Status going = absl::UnavailableError("the coordinator is shutting down");
    agents_.CloseAll(going);
    control_.CloseAll(going);
    if (server_ != nullptr) {
      server_->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
      server_->Wait();
      server_.reset();
    }
    inbox_.Close();
    if (core_.joinable()) {
      core_.join();
    }
    planner_.reset();
    endpoint_of_metrics_.reset();
    return core_status_;
  }

  std::string endpoint() const override { return endpoint_; }
  std::string metrics_address() const override {
    return endpoint_of_metrics_ == nullptr ? "" : endpoint_of_metrics_->address();
  }

 private:
  // The core has stopped by itself: callers that wait for it learn the reason. Agents wait for the next coordinator.
  void Abandon(const absl::Status& why) {
    const std::string reason = fmt::format("the coordinator has stopped: {}", std::string(why.message()));
    agents_.CloseAll(absl::UnavailableError(reason));
    control_.CloseAll(absl::Status(why.code(), reason));
    if (hooks_.on_fatal) {
      hooks_.on_fatal();
    }
  }

  const ServerHooks hooks_;
  const std::string metrics_address_;
  const std::string metrics_address_file_;
  MetricRegistry registry_{MetricLabels{}};
  CoordinatorMetrics metrics_;
  const Clock& clock_;
  const std::unique_ptr<JobStore> store_;
  Inbox<Event> inbox_;
  EventPort<Event> port_;
  const uint64_t incarnation_;
  AgentServiceAdapter agents_;
  ControlServiceAdapter control_;
  std::unique_ptr<PlannerThread> planner_;
  Runner runner_;
  std::unique_ptr<MetricsEndpoint> endpoint_of_metrics_;
  std::unique_ptr<grpc::Server> server_;
  std::string endpoint_;
  std::thread core_;
  absl::Status core_status_;  // of the core's thread; read when it has been joined
};

// Uses few threads, because agents must be heard while a job is planned.
absl::StatusOr<PlanResult> PlanOnSomeThreads(const PlanningInput& input, std::function<bool()> should_stop) {
  ThreadPool pool(ThreadPool::Processors(2));
  return PlanJob(input, std::move(should_stop),
                 [&pool](int64_t count, const std::function<void(int64_t)>& work) { pool.For(count, work); });
}

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(const CoordinatorConfig& config,
                                                                            const Clock& clock, ServerHooks hooks) {
  GP_ASSIGN_OR_RETURN(const ListenAddress address, ParseListenAddress("listen", config.listen));
  GP_RETURN_IF_ERROR(MakeFolder(config.state_dir));
  GP_ASSIGN_OR_RETURN(std::unique_ptr<JobStore> store, JobStore::Open(config.state_dir + "/jobs.sqlite"));
  GP_ASSIGN_OR_RETURN(StoredState stored, store->Load());
  GP_ASSIGN_OR_RETURN(const uint64_t incarnation, store->NextIncarnation(clock.UnixNowNs()));
  if (!hooks.plan) {
    hooks.plan = PlanOnSomeThreads;
  }
  auto server =
      std::make_unique<Server>(config, clock, std::move(hooks), std::move(store), std::move(stored), incarnation);
  GP_RETURN_IF_ERROR(server->Listen(address));
  return server;
}

}  // namespace geopipe
