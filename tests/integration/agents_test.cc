// Tests agents that the coordinator refuses (another version, a place that is taken), and agents that die, with the
// state that they leave to the next one of their node. Programs are real; an agent gets another version from a relay
// between it and the coordinator, which changes the version in its messages.
#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "geopipe/v1/agent_service.grpc.pb.h"
#include "runtime/base/files.h"
#include "runtime/base/inbox.h"
#include "runtime/base/version.h"
#include "tests/integration/daemons.h"

namespace geopipe {
namespace {

class VersionRelay final : public v1::AgentService::Service {
 public:
  VersionRelay(const std::string& coordinator, std::string version)
      : version_(std::move(version)),
        stub_(v1::AgentService::NewStub(grpc::CreateChannel(coordinator, grpc::InsecureChannelCredentials()))) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    REQUIRE(server_ != nullptr);
  }
  ~VersionRelay() override { server_->Shutdown(std::chrono::system_clock::now()); }
  std::string endpoint() const { return fmt::format("127.0.0.1:{}", port_); }
  void SetVersion(std::string version) {
    const std::lock_guard lock(mutex_);
    version_ = std::move(version);
  }

  // One hello up, the answers down.
  grpc::Status Connect(grpc::ServerContext* context,
                       grpc::ServerReaderWriter<v1::ConnectResponse, v1::ConnectRequest>* agent) override {
    v1::ConnectRequest hello;
    agent->Read(&hello);
    {
      const std::lock_guard lock(mutex_);
      hello.mutable_hello()->set_version(version_);
    }
    const std::unique_ptr<grpc::ClientContext> up = grpc::ClientContext::FromServerContext(*context);
    const auto coordinator = stub_->Connect(up.get());
    coordinator->Write(hello);
    v1::ConnectResponse answer;
    while (coordinator->Read(&answer)) {
      agent->Write(answer);
    }
    return coordinator->Finish();
  }

 private:
  std::mutex mutex_;
  std::string version_;
  const std::unique_ptr<v1::AgentService::Stub> stub_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// A coordinator that obeys the test.
class ScriptedCoordinator final : public v1::AgentService::Service {
 public:
  using Stream = grpc::ServerReaderWriter<v1::ConnectResponse, v1::ConnectRequest>;

  ScriptedCoordinator() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    REQUIRE(server_ != nullptr);
  }
  ~ScriptedCoordinator() override {
    heard_.Close();
    server_->Shutdown(std::chrono::system_clock::now());
  }
  std::string endpoint() const { return fmt::format("127.0.0.1:{}", port_); }

  // Numbered anew for each stream.
  void Order(v1::ConnectResponse order) {
    const std::lock_guard lock(mutex_);
    order.set_sequence(++sequence_);
    if (stream_ != nullptr) {
      stream_->Write(order);
    }
  }

  // The next message that holds what `wanted` looks for; a minute is for ever.
  v1::ConnectRequest Next(const std::function<bool(const v1::ConnectRequest&)>& wanted) {
    for (;;) {
      std::optional<v1::ConnectRequest> message = heard_.Pop(std::chrono::minutes(1));
      REQUIRE(message.has_value());
      if (wanted(*message)) {
        return *std::move(message);
      }
    }
  }
  v1::AgentHello NextHello() {
    return Next([](const v1::ConnectRequest& message) { return message.has_hello(); }).hello();
  }
  // Waits for a report of a worker or of its exit.
  v1::NodeReport NextReport(const std::function<bool(const v1::NodeReport&)>& wanted) {
    v1::NodeReport found;
    Next([&](const v1::ConnectRequest& message) {
      for (const v1::NodeReport& report : message.reports().reports()) {
        if (wanted(report)) {
          found = report;
          return true;
        }
      }
      return false;
    });
    return found;
  }

  grpc::Status Connect(grpc::ServerContext* /*context*/, Stream* agent) override {
    v1::ConnectResponse welcome;
    welcome.mutable_welcome()->set_coordinator_incarnation(1);
    welcome.mutable_welcome()->set_heartbeat_interval_ns(100'000'000);
    v1::ConnectRequest message;
    agent->Read(&message);
    {
      const std::lock_guard lock(mutex_);
      stream_ = agent;
      sequence_ = 0;
      agent->Write(welcome);
    }
    heard_.Push(message);
    while (agent->Read(&message)) {
      heard_.Push(message);
      v1::ConnectResponse taken;
      taken.mutable_reports_taken()->set_sequence(message.reports().first_sequence() +
                                                  static_cast<uint64_t>(message.reports().reports_size()) - 1);
      const std::lock_guard lock(mutex_);
      if (message.has_reports()) {
        agent->Write(taken);
      }
    }
    const std::lock_guard lock(mutex_);
    stream_ = stream_ == agent ? nullptr : stream_;
    return grpc::Status::OK;
  }

 private:
  Inbox<v1::ConnectRequest> heard_{4096};
  std::mutex mutex_;
  Stream* stream_ = nullptr;
  uint64_t sequence_ = 0;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

std::string HostName() {
  std::array<char, 256> name{};
  REQUIRE(gethostname(name.data(), name.size() - 1) == 0);
  return name.data();
}

TEST_CASE("an agent of another version says so with the remedy, and registers when the versions are the same") {
  const TempFolder folder = TestFolder();
  const RunningCoordinator coordinator((folder.path() / "coordinator").string());
  VersionRelay relay(coordinator.endpoint(), "0.0.1-other");
  Command agent("geopipe-agent", AgentArgs(relay.endpoint(), "north", (folder.path() / "agent").string()));
  WaitForWords(agent,
               fmt::format("agent north/north-0 is version 0.0.1-other and the coordinator is version {}; install "
                           "the same version on both",
                           Version()));
  CHECK_THAT(coordinator.Ask({"get", "sites"}).out,
             Catch::StartsWith("no sites\nwarning: agent north/north-0 was refused "));
  CHECK_FALSE(agent.process().Wait(0).has_value());
  relay.SetVersion(std::string(Version()));
  WaitForWords(agent, "registered with the coordinator");
}

TEST_CASE("a second agent for one place ends and says who holds it, another node of the site is welcome") {
  const TempFolder folder = TestFolder();
  const RunningCoordinator coordinator((folder.path() / "coordinator").string());
  const auto args = [&](const std::string& state, const std::string& node) {
    std::vector<std::string> args = AgentArgs(coordinator.endpoint(), "north", (folder.path() / state).string());
    args.insert(args.end(), {"--set", "node=" + node});
    return args;
  };
  Command first("geopipe-agent", args("first", "a"));
  WaitForWords(first, "registered with the coordinator");
  CheckEnded(RunCommand("geopipe-agent", args("first", "b")), 1, "geopipe-agent: another agent uses state_dir ",
             {"stop it or choose another folder"});

  Command other_node("geopipe-agent", args("other", "b"));
  WaitForWords(other_node, "registered with the coordinator");

  const CommandResult second = RunCommand("geopipe-agent", args("second", "a"));
  CheckEnded(
      second, 1, "",
      {fmt::format("\ngeopipe-agent: the coordinator at {} refuses this agent: north/a belongs to the agent with "
                   "pid {} on host {}, which registered ",
                   coordinator.endpoint(), first.process().pid(), HostName()),
       " ago and was heard from ", "stop that one, or give this one another site or node name\n"});
  CHECK_FALSE(first.process().Wait(0).has_value());
  CHECK_FALSE(other_node.process().Wait(0).has_value());

  first.process().Signal(SIGKILL);  // its place is free with it
  Command successor("geopipe-agent", args("third", "a"));
  WaitForWords(successor, "registered with the coordinator");
}

// Ends what an agent that does not die with its parent has left.
class Remains {
 public:
  explicit Remains(std::string state_dir) : state_dir_(std::move(state_dir)) {}
  ~Remains() {
    const absl::StatusOr<std::string> log = ReadFile(state_dir_ + "/logs/keeper.log", 1 << 20);
    const size_t at = log.ok() ? log->rfind("(pid ") : std::string::npos;
    if (at != std::string::npos) {
      kill(static_cast<pid_t>(std::stoll(log->substr(at + 5))), SIGKILL);
    }
    if (worker > 0) {
      kill(static_cast<pid_t>(worker), SIGKILL);
    }
  }
  int64_t worker = 0;  // its pid

 private:
  const std::string state_dir_;
};

TEST_CASE("agents are killed, the worker of the node goes on, and the next agent has it, its reports and its end") {
  const TempFolder folder = TestFolder();
  const std::string state_dir = (folder.path() / "agent").string();
  ScriptedCoordinator coordinator;
  Remains remains(state_dir);
  std::vector<std::string> args = AgentArgs(coordinator.endpoint(), "north", state_dir);
  args.back() = "die_with_parent=false";
  const auto is_hello = [](const v1::NodeReport& report) { return report.worker().report().has_hello(); };

  auto agent = std::make_unique<Command>("geopipe-agent", args);
  CHECK(coordinator.NextHello().workers_size() == 0);
  v1::ConnectResponse start;
  start.mutable_start_workers()->set_job("mini");
  start.mutable_start_workers()->add_devices(0);
  start.mutable_start_workers()->set_incarnation(7);
  coordinator.Order(start);
  const int64_t pid = coordinator.NextReport(is_hello).worker().report().hello().pid();
  REQUIRE(pid > 0);
  remains.worker = pid;

  for (const int signal : {SIGKILL, SIGKILL, SIGTERM, SIGKILL}) {
    CAPTURE(signal);
    agent->process().Signal(signal);
    agent->Finish(30'000'000'000);
    CHECK(kill(static_cast<pid_t>(pid), 0) == 0);
    agent = std::make_unique<Command>("geopipe-agent", args);
    const v1::AgentHello hello = coordinator.NextHello();
    REQUIRE(hello.workers_size() == 1);
    CHECK(hello.workers(0).job() == "mini");
    CHECK(hello.workers(0).incarnation() == 7);
    REQUIRE(hello.worker_states_size() == 1);
    CHECK(hello.worker_states(0).pid() == pid);
    CHECK(coordinator.NextReport(is_hello).worker().report().hello().pid() == pid);  // it has attached to this one
  }

  SECTION("it is killed under an agent that did not start it") { kill(static_cast<pid_t>(pid), SIGKILL); }
  SECTION("it is killed while there is no agent") {
    agent->process().Signal(SIGKILL);
    agent->Finish(30'000'000'000);
    kill(static_cast<pid_t>(pid), SIGKILL);
    agent = std::make_unique<Command>("geopipe-agent", args);
    CHECK(coordinator.NextHello().workers_size() == 0);
  }
  const v1::WorkerExit exit =
      coordinator.NextReport([](const v1::NodeReport& report) { return report.has_exit(); }).exit();
  CHECK(exit.pid() == pid);
  CHECK(exit.signal() == SIGKILL);
  CHECK(exit.worker().job() == "mini");
  CHECK(agent->process().Terminate(20'000'000'000).success());
}

}  // namespace
}  // namespace geopipe
