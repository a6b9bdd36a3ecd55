// The two adapters and the whole agent over real gRPC: a Unix socket and a loopback port of this process.
#include <grpcpp/grpcpp.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <fstream>
#include <thread>

#include "agent/coordinator_client.h"
#include "agent/runner.h"
#include "agent/worker_gateway.h"
#include "geopipe/v1/agent_service.grpc.pb.h"
#include "geopipe/v1/worker_service.grpc.pb.h"
#include "runtime/base/files.h"
#include "runtime/base/inbox.h"
#include "runtime/base/version.h"
#include "tests/agent/agent_harness.h"

namespace geopipe::agent {
namespace {

constexpr auto kForEver = std::chrono::seconds(30);

// Waits for an event of one kind.
template <class T>
T Next(Inbox<Event>& inbox) {
  std::optional<Event> event = inbox.Pop(kForEver);
  REQUIRE(event.has_value());
  REQUIRE(std::holds_alternative<T>(*event));
  return std::get<T>(*std::move(event));
}

// A worker's end of the stream.
class FakeWorker {
 public:
  explicit FakeWorker(const std::string& socket)
      : stub_(v1::WorkerService::NewStub(grpc::CreateChannel("unix:" + socket, grpc::InsecureChannelCredentials()))),
        stream_(stub_->Attach(&context_)) {
    context_.set_deadline(std::chrono::system_clock::now() + kForEver);
  }
  bool Send(const WorkerMessage& event) { return stream_->Write(event.message); }
  std::optional<v1::AttachResponse> Read() {
    v1::AttachResponse message;
    return stream_->Read(&message) ? std::optional(std::move(message)) : std::nullopt;
  }
  grpc::StatusCode Finish() {
    v1::AttachResponse ignored;
    while (stream_->Read(&ignored)) {
    }
    return stream_->Finish().error_code();
  }
  void HangUp() { context_.TryCancel(); }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<v1::WorkerService::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AttachRequest, v1::AttachResponse>> stream_;
};

// A gateway whose core is the test.
struct GatewayFixture {
  explicit GatewayFixture(const WorkerGatewayOptions& options = {}) {
    auto started = WorkerGateway::Start(socket, options, [this](Event e) { return inbox.Push(std::move(e)); });
    REQUIRE(started.ok());
    gateway = *std::move(started);
  }
  ~GatewayFixture() { inbox.Close(); }

  TempFolder folder = *TempFolder::Create("geopipe-gateway");
  std::string socket = (folder.path() / "agent.sock").string();
  Inbox<Event> inbox{4};
  std::unique_ptr<WorkerGateway> gateway;
};

TEST_CASE("gateway: the socket is this user's alone") {
  const GatewayFixture fixture;
  struct stat info {};
  REQUIRE(stat(fixture.socket.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
}

TEST_CASE("gateway: accepted, reports up in order, commands down, closed") {
  GatewayFixture fixture;
  FakeWorker worker(fixture.socket);
  worker.Send(HelloFrom(0, TestWorker(0)));
  const WorkerMessage hello = Next<WorkerMessage>(fixture.inbox);
  CHECK(hello.message.report().has_hello());
  fixture.gateway->Carry(AcceptSession{hello.session});
  v1::AttachResponse stop;
  stop.mutable_command()->mutable_stop()->set_reason("enough");
  fixture.gateway->Carry(SendToWorker{hello.session, stop});
  const auto command = worker.Read();
  REQUIRE(command.has_value());
  CHECK(command->command().stop().reason() == "enough");
  for (int64_t i = 0; i < 20; ++i) {  // more than the inbox holds
    worker.Send(IterationFrom(0, TestWorker(0), i));
    CHECK(Next<WorkerMessage>(fixture.inbox).message.report().iteration().iteration() == i);
    fixture.gateway->Carry(ReadOn{hello.session});
  }
  worker.HangUp();
  CHECK(Next<WorkerClosed>(fixture.inbox).session == hello.session);
}

TEST_CASE("gateway: a stream is read message by message, as the core says") {
  GatewayFixture fixture;
  FakeWorker worker(fixture.socket);
  worker.Send(HelloFrom(0, TestWorker(0)));
  const SessionId session = Next<WorkerMessage>(fixture.inbox).session;
  fixture.gateway->Carry(AcceptSession{session});
  for (int64_t i = 0; i < 3; ++i) {
    worker.Send(IterationFrom(0, TestWorker(0), i));
  }
  FakeWorker other(fixture.socket);
  CHECK(Next<WorkerMessage>(fixture.inbox).message.report().iteration().iteration() == 0);
  other.Send(HelloFrom(0, TestWorker(1)));
  const WorkerMessage hello = Next<WorkerMessage>(fixture.inbox);  // and not the first one's next
  CHECK(hello.message.report().has_hello());
  CHECK_FALSE(fixture.inbox.Pop(std::chrono::milliseconds(50)).has_value());
  fixture.gateway->Carry(ReadOn{session});
  CHECK(Next<WorkerMessage>(fixture.inbox).message.report().iteration().iteration() == 1);
}

TEST_CASE("gateway: a refused worker gets the status") {
  GatewayFixture fixture;
  FakeWorker worker(fixture.socket);
  worker.Send(HelloFrom(0, TestWorker(0)));
  const SessionId session = Next<WorkerMessage>(fixture.inbox).session;
  fixture.gateway->Carry(CloseSession{session, absl::UnauthenticatedError("unknown")});
  CHECK(worker.Finish() == grpc::StatusCode::UNAUTHENTICATED);
  CHECK(Next<WorkerClosed>(fixture.inbox).session == session);
  fixture.gateway->Carry(AcceptSession{session});  // gone: nothing happens
}

TEST_CASE("gateway: a message that does not validate never reaches the core") {
  GatewayFixture fixture;
  FakeWorker worker(fixture.socket);
  WorkerMessage bad = HelloFrom(0, TestWorker(0));
  bad.message.mutable_worker()->clear_site();
  worker.Send(bad);
  CHECK(worker.Finish() == grpc::StatusCode::INVALID_ARGUMENT);
  Next<WorkerClosed>(fixture.inbox);
}

TEST_CASE("gateway: a worker whose report does not validate is told so, in mid-run, too") {
  GatewayFixture fixture;
  FakeWorker worker(fixture.socket);
  worker.Send(HelloFrom(0, TestWorker(0)));
  const SessionId session = Next<WorkerMessage>(fixture.inbox).session;
  fixture.gateway->Carry(AcceptSession{session});
  worker.Send(IterationFrom(0, TestWorker(0), -1));
  CHECK(worker.Finish() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(Next<WorkerClosed>(fixture.inbox).session == session);
}

TEST_CASE("gateway: more streams than the bound are refused") {
  GatewayFixture fixture({.max_sessions = 1});
  FakeWorker first(fixture.socket);
  first.Send(HelloFrom(0, TestWorker(0)));
  Next<WorkerMessage>(fixture.inbox);
  FakeWorker second(fixture.socket);
  CHECK(second.Finish() == grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_CASE("gateway: it ends while workers are attached and the core is gone") {
  auto fixture = std::make_unique<GatewayFixture>();
  FakeWorker accepted(fixture->socket);
  accepted.Send(HelloFrom(0, TestWorker(0)));
  fixture->gateway->Carry(AcceptSession{Next<WorkerMessage>(fixture->inbox).session});
  FakeWorker waiting(fixture->socket);  // for its verdict
  waiting.Send(HelloFrom(0, TestWorker(1)));
  Next<WorkerMessage>(fixture->inbox);
  fixture.reset();
  CHECK(accepted.Finish() != grpc::StatusCode::OK);
  CHECK(waiting.Finish() != grpc::StatusCode::OK);
}

// A coordinator whose script is a function of one stream.
class FakeCoordinator final : public v1::AgentService::Service {
 public:
  using Stream = grpc::ServerReaderWriter<v1::ConnectResponse, v1::ConnectRequest>;
  using Script = std::function<grpc::Status(Stream&)>;

  explicit FakeCoordinator(Script script) : script_(std::move(script)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    REQUIRE(server_ != nullptr);
  }
  ~FakeCoordinator() override { server_->Shutdown(std::chrono::system_clock::now()); }
  grpc::Status Connect(grpc::ServerContext* /*context*/, Stream* stream) override { return script_(*stream); }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  Script script_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

v1::ConnectRequest Hello() {
  v1::ConnectRequest hello;
  hello.mutable_hello()->set_version("1.2.3");
  return hello;
}

TEST_CASE("client: hello, welcome, reports acknowledged, the status at the end") {
  FakeCoordinator coordinator([](FakeCoordinator::Stream& stream) {
    v1::ConnectRequest hello;
    stream.Read(&hello);
    stream.Write(Welcome(1).message);
    v1::ConnectRequest report;
    stream.Read(&report);
    return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION,
                        hello.hello().version() + (report.has_heartbeat() ? " and a heartbeat" : ""));
  });
  Inbox<Event> inbox(4);
  CoordinatorClient client(coordinator.address(), [&](Event e) { return inbox.Push(std::move(e)); });
  client.Carry(Dial{1, Hello()});
  CHECK(Next<CoordinatorMessage>(inbox).message.welcome().heartbeat_interval_ns() == 500 * kMs);
  v1::ConnectRequest heartbeat;
  heartbeat.mutable_heartbeat();
  client.Carry(SendToCoordinator{1, heartbeat});
  CHECK(Next<CoordinatorSent>(inbox).connection == 1);
  const CoordinatorClosed closed = Next<CoordinatorClosed>(inbox);
  CHECK(closed.status.code() == absl::StatusCode::kFailedPrecondition);
  CHECK(closed.status.message() == "1.2.3 and a heartbeat");
  inbox.Close();
}

TEST_CASE("client: an unreachable coordinator closes the connection, and hanging up does, too") {
  Inbox<Event> inbox(4);
  CoordinatorClient client("127.0.0.1:1", [&](Event e) { return inbox.Push(std::move(e)); });
  client.Carry(Dial{1, Hello()});
  CHECK(Next<CoordinatorClosed>(inbox).status.code() == absl::StatusCode::kUnavailable);

  FakeCoordinator coordinator([](FakeCoordinator::Stream& stream) {
    v1::ConnectRequest message;
    while (stream.Read(&message)) {
    }
    return grpc::Status::OK;
  });
  CoordinatorClient other(coordinator.address(), [&](Event e) { return inbox.Push(std::move(e)); });
  other.Carry(Dial{7, Hello()});
  other.Carry(HangUp{7});
  CHECK(Next<CoordinatorClosed>(inbox).connection == 7);
  inbox.Close();
}

TEST_CASE("the whole agent: registers, starts a worker, reports its death, leaves") {
  Inbox<v1::ConnectRequest> heard(64);
  FakeCoordinator coordinator([&](FakeCoordinator::Stream& stream) {
    v1::ConnectRequest message;
    stream.Read(&message);
    heard.Push(message);
    stream.Write(Welcome(1).message);
    stream.Write(Start(1, {0}).message);
    while (stream.Read(&message)) {
      for (const v1::NodeReport& report : message.reports().reports()) {
        if (report.has_exit()) {
          heard.Push(message);
        }
      }
    }
    return grpc::Status::OK;
  });
  const TempFolder folder = *TempFolder::Create("geopipe-agent");
  AgentConfig config = TestConfig();
  config.coordinator = coordinator.address();
  config.state_dir = folder.path();
  config.die_with_parent = true;  // and so does the keeper
  config.worker_binary = folder.path() / "worker";
  std::ofstream(config.worker_binary) << "#!/bin/sh\necho dying >&2\nkill -9 $$\n";
  chmod(config.worker_binary.c_str(), 0700);

  bool registered = false;
  auto runner = AgentRunner::Create(config, [&] { registered = true; });
  REQUIRE(runner.ok());
  const auto second = AgentRunner::Create(config, [] {});
  CHECK(second.status().code() == absl::StatusCode::kAlreadyExists);
  absl::Status left = absl::UnknownError("still there");
  std::thread core([&] { left = (*runner)->Run(); });
  const auto hello = heard.Pop(kForEver);
  REQUIRE(hello.has_value());
  CHECK(hello->hello().version() == Version());
  CHECK(hello->incarnation() != 0);
  CHECK(hello->hello().pid() == getpid());
  CHECK_FALSE(hello->hello().host().empty());
  const auto exit = heard.Pop(kForEver);
  (*runner)->RequestShutdown("the test is over");
  core.join();
  CHECK(left.ok());
  CHECK(registered);
  REQUIRE(exit.has_value());
  CHECK(exit->reports().reports(0).exit().signal() == SIGKILL);
  CHECK(exit->reports().reports(0).exit().last_words() == "dying\n");
  CHECK(exit->reports().reports(0).exit().worker().device() == 0);

  CHECK(*ReadFile(config.CoordinatorIncarnationPath(), 64) == "9\n");  // for the next agent of the folder
  runner->reset();
  REQUIRE(WriteFileAtomically(config.CoordinatorIncarnationPath(), "9x\n").ok());
  const absl::Status damaged = AgentRunner::Create(config, [] {}).status();
  CHECK(damaged.code() == absl::StatusCode::kDataLoss);
  CHECK_THAT(std::string(damaged.message()), Catch::Contains(config.CoordinatorIncarnationPath()));
}

}  // namespace
}  // namespace geopipe::agent
