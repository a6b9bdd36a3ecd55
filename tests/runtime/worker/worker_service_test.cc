#include "runtime/worker/worker_service.h"

#include <grpcpp/grpcpp.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "geopipe/v1/worker_service.grpc.pb.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

// An agent that answers every hello with a StopCommand, and ends or refuses streams as told.
class FakeAgent final : public v1::WorkerService::Service {
 public:
  explicit FakeAgent(const std::string& address) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeAgent() override { server_->Shutdown(std::chrono::system_clock::now()); }

  grpc::Status Attach(grpc::ServerContext*,
                      grpc::ServerReaderWriter<v1::AttachResponse, v1::AttachRequest>* stream) override {
    v1::AttachRequest request;
    for (int count = 0; stream->Read(&request); ++count) {
      std::unique_lock lock(mutex_);
      received_.push_back(request);
      changed_.notify_all();
      if (refuse_) {
        return {grpc::StatusCode::UNAUTHENTICATED, "unknown worker"};
      }
      if (break_after_ == count) {
        break_after_ = -1;
        return {grpc::StatusCode::UNAVAILABLE, "restarting"};
      }
      if (request.report().has_hello()) {
        v1::AttachResponse response;
        response.mutable_command()->mutable_stop()->set_reason("test");
        stream->Write(response);
      }
    }
    return grpc::Status::OK;
  }

  void set_refuse() { refuse_ = true; }
  void set_break_after(int messages) { break_after_ = messages; }

  // Waits until so many messages have come; they are returned.
  std::vector<v1::AttachRequest> Await(size_t count) {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, std::chrono::minutes(1), [&] { return received_.size() >= count; }));
    return received_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<v1::AttachRequest> received_;
  bool refuse_ = false;
  int break_after_ = -1;
  std::unique_ptr<grpc::Server> server_;
};

// Counts what a link calls back.
class Callbacks {
 public:
  AgentLink::Handlers handlers() {
    return {.on_command =
                [this](const v1::WorkerCommand& command) {
                  const std::lock_guard lock(mutex_);
                  commands_ += command.has_stop() ? 1 : 0;
                  changed_.notify_all();
                },
            .on_lost =
                [this](const absl::Status& status) {
                  const std::lock_guard lock(mutex_);
                  lost_.push_back(status);
                  changed_.notify_all();
                }};
  }
  void AwaitCommands(int count) {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, std::chrono::minutes(1), [&] { return commands_ >= count; }));
  }
  absl::Status AwaitLost() {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, std::chrono::minutes(1), [&] { return !lost_.empty(); }));
    return lost_.front();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int commands_ = 0;
  std::vector<absl::Status> lost_;
};

AgentLink::Options OptionsFor(const std::string& address) {
  AgentLink::Options options;
  options.address = address;
  options.worker.set_site("north");
  options.worker.set_node("n0");
  options.worker.set_job("tiny");
  options.worker.set_incarnation(7);
  options.hello.set_version("1");
  options.hello.set_pid(1);
  return options;
}

v1::WorkerReport HeartbeatOf(int64_t iteration) {
  v1::WorkerReport report;
  report.mutable_heartbeat()->set_iteration(iteration);
  return report;
}

TEST_CASE("a link says hello, passes commands on, and flushes its reports in order when it closes") {
  const TempDir dir;
  const std::string address = "unix:" + dir.path() + "/agent.sock";
  FakeAgent agent(address);
  Callbacks callbacks;
  AgentLink link(OptionsFor(address), callbacks.handlers(), Clock::Real());
  link.Start();
  callbacks.AwaitCommands(1);
  for (int64_t iteration = 0; iteration < 100; ++iteration) {
    link.Report(HeartbeatOf(iteration));
  }
  link.Close(60'000'000'000);
  const std::vector<v1::AttachRequest> received = agent.Await(101);
  CHECK(received[0].report().has_hello());
  CHECK(received[0].worker().incarnation() == 7);
  for (int64_t iteration = 0; iteration < 100; ++iteration) {
    CHECK(received[iteration + 1].report().heartbeat().iteration() == iteration);
  }
}

TEST_CASE("a broken stream is dialled again, with a hello first") {
  const TempDir dir;
  const std::string address = "unix:" + dir.path() + "/agent.sock";
  FakeAgent agent(address);
  agent.set_break_after(0);
  Callbacks callbacks;
  AgentLink link(OptionsFor(address), callbacks.handlers(), Clock::Real());
  link.Start();
  callbacks.AwaitCommands(1);
  const std::vector<v1::AttachRequest> received = agent.Await(2);
  CHECK(received[0].report().has_hello());
  CHECK(received[1].report().has_hello());
  link.Close(0);
}

TEST_CASE("an agent that does not know the worker ends the link at once") {
  const TempDir dir;
  const std::string address = "unix:" + dir.path() + "/agent.sock";
  FakeAgent agent(address);
  agent.set_refuse();
  Callbacks callbacks;
  AgentLink link(OptionsFor(address), callbacks.handlers(), Clock::Real());
  link.Start();
  const absl::Status lost = callbacks.AwaitLost();
  CHECK(absl::IsUnauthenticated(lost));
  CHECK(lost.message() == "unknown worker");
}

TEST_CASE("with no agent within the grace the link is lost") {
  const TempDir dir;
  Callbacks callbacks;
  AgentLink::Options options = OptionsFor("unix:" + dir.path() + "/none.sock");
  options.orphan_grace_ns = 1;
  AgentLink link(options, callbacks.handlers(), Clock::Real());
  link.Start();
  CHECK(absl::IsUnavailable(callbacks.AwaitLost()));
}

}  // namespace
}  // namespace geopipe
