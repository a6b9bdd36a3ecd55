// Agents that the coordinator does not take: another version, a place that is taken. Real programs; what makes an agent
// one of another version is a relay between it and the coordinator, which changes the version it says it has.
#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "geopipe/v1/agent_service.grpc.pb.h"
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

  // One hello up, the answers down.
  grpc::Status Connect(grpc::ServerContext* /*context*/,
                       grpc::ServerReaderWriter<v1::ConnectResponse, v1::ConnectRequest>* agent) override {
    v1::ConnectRequest hello;
    agent->Read(&hello);
    hello.mutable_hello()->set_version(version_);
    grpc::ClientContext context;
    const auto coordinator = stub_->Connect(&context);
    coordinator->Write(hello);
    v1::ConnectResponse answer;
    while (coordinator->Read(&answer)) {
      agent->Write(answer);
    }
    return coordinator->Finish();
  }

 private:
  const std::string version_;
  const std::unique_ptr<v1::AgentService::Stub> stub_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

std::string HostName() {
  std::array<char, 256> name{};
  REQUIRE(gethostname(name.data(), name.size() - 1) == 0);
  return name.data();
}

TEST_CASE("an agent of another version ends with both versions and the remedy") {
  const TempFolder folder = TestFolder();
  const RunningCoordinator coordinator((folder.path() / "coordinator").string());
  const VersionRelay relay(coordinator.endpoint(), "0.0.1-other");
  const CommandResult result =
      RunCommand("geopipe-agent", AgentArgs(relay.endpoint(), "north", (folder.path() / "agent").string()));
  CheckEnded(result, 1, "",
             {fmt::format("\ngeopipe-agent: the coordinator at {} refuses this agent: agent north/north-0 is version "
                          "0.0.1-other and the coordinator is version {}; install the same version on both\n",
                          relay.endpoint(), Version())});
  CHECK(coordinator.Ask({"get", "sites"}).out.find("north") == std::string::npos);
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

}  // namespace
}  // namespace geopipe
