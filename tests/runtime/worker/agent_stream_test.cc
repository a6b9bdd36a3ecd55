#include "runtime/worker/agent_stream.h"

#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "geopipe/v1/worker_service.grpc.pb.h"
#include "runtime/base/unique_fd.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

// An agent that answers every hello with a StopCommand, and is silent, ends or refuses streams as told.
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
      if (request.report().has_hello() && !silent_) {
        v1::AttachResponse response;
        response.mutable_command()->mutable_stop()->set_reason("test");
        stream->Write(response);
      }
    }
    return grpc::Status::OK;
  }

  void set_refuse() { refuse_ = true; }
  void set_silent() { silent_ = true; }
  void set_break_after(int messages) { break_after_ = messages; }

  // Waits until so many messages have come, and returns them.
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
  bool silent_ = false;
  int break_after_ = -1;
  std::unique_ptr<grpc::Server> server_;
};

// Events that a stream posts.
class Events {
 public:
  std::function<void(WorkerEvent)> post() {
    return [this](WorkerEvent event) {
      const std::lock_guard lock(mutex_);
      events_.push_back(std::move(event));
      changed_.notify_all();
    };
  }
  // Waits for as many events of a kind, and returns them.
  template <class Event>
  std::vector<Event> Await(size_t count) {
    std::vector<Event> found;
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, std::chrono::minutes(1), [&] {
      found.clear();
      for (const WorkerEvent& event : events_) {
        if (const auto* one = std::get_if<Event>(&event)) {
          found.push_back(*one);
        }
      }
      return found.size() >= count;
    }));
    return found;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<WorkerEvent> events_;
};

v1::AttachRequest RequestOf(v1::WorkerReport report) {
  v1::AttachRequest request;
  request.mutable_worker()->set_site("north");
  request.mutable_worker()->set_node("n0");
  request.mutable_worker()->set_job("tiny");
  request.mutable_worker()->set_incarnation(7);
  *request.mutable_report() = std::move(report);
  return request;
}

DialAgent DialOf(AgentStreamId stream) {
  v1::WorkerReport report;
  report.mutable_hello()->set_version("1");
  return {.stream = stream, .hello = RequestOf(report)};
}

v1::AttachRequest HeartbeatOf(int64_t iteration) {
  v1::WorkerReport report;
  report.mutable_heartbeat()->set_iteration(iteration);
  return RequestOf(report);
}

TEST_CASE("a stream says hello, passes commands on, tells what is written, and flushes when it closes") {
  const TempDir dir;
  const std::string address = "unix:" + dir.path() + "/agent.sock";
  FakeAgent agent(address);
  Events events;
  AgentStream stream(address, events.post());
  stream.Dial(DialOf(1));
  CHECK(events.Await<StreamOpened>(1).front().stream == 1);
  CHECK(events.Await<AgentSaid>(1).front().message.command().has_stop());
  for (int64_t iteration = 0; iteration < 100; ++iteration) {
    stream.Send({.stream = 1, .request = HeartbeatOf(iteration)});
  }
  stream.Send({.stream = 2, .request = HeartbeatOf(1000)});  // there is no such stream
  stream.Close(60'000'000'000);
  const std::vector<v1::AttachRequest> received = agent.Await(101);
  CHECK(received.size() == 101);
  CHECK(received[0].report().has_hello());
  CHECK(received[0].worker().incarnation() == 7);
  for (int64_t iteration = 0; iteration < 100; ++iteration) {
    CHECK(received[iteration + 1].report().heartbeat().iteration() == iteration);
  }
  CHECK(events.Await<ReportWritten>(100).size() == 100);
}

TEST_CASE("the end of a stream is told with the agent's word, and the next one begins with its own hello") {
  const TempDir dir;
  const std::string address = "unix:" + dir.path() + "/agent.sock";
  FakeAgent agent(address);
  agent.set_break_after(0);
  Events events;
  AgentStream stream(address, events.post());
  stream.Dial(DialOf(1));
  CHECK(absl::IsUnavailable(events.Await<StreamClosed>(1).front().status));
  agent.set_refuse();
  stream.Dial(DialOf(2));
  const StreamClosed closed = events.Await<StreamClosed>(2).back();
  CHECK(closed.stream == 2);
  CHECK(closed.status == absl::UnauthenticatedError("unknown worker"));
  CHECK(agent.Await(2)[1].report().has_hello());
}

TEST_CASE("a stream that is hung up ends, and another can be dialed at once") {
  const TempDir dir;
  const std::string address = "unix:" + dir.path() + "/agent.sock";
  FakeAgent agent(address);
  Events events;
  AgentStream stream(address, events.post());
  stream.Dial(DialOf(1));
  events.Await<AgentSaid>(1);
  stream.HangUp(1);
  stream.Dial(DialOf(2));
  CHECK(events.Await<StreamOpened>(2).back().stream == 2);
  CHECK(events.Await<StreamClosed>(1).front().stream == 1);
}

// Only the control can tell by what comes: the stream is open, and stays so.
TEST_CASE("an agent that takes the stream and says nothing is hung up on like any other") {
  const TempDir dir;
  const std::string address = "unix:" + dir.path() + "/agent.sock";
  FakeAgent agent(address);
  agent.set_silent();
  Events events;
  AgentStream stream(address, events.post());
  stream.Dial(DialOf(1));
  events.Await<StreamOpened>(1);
  agent.Await(1);  // it has the hello
  stream.HangUp(1);
  CHECK(events.Await<StreamClosed>(1).front().stream == 1);
  stream.Dial(DialOf(2));
  CHECK(events.Await<StreamOpened>(2).back().stream == 2);
}

// Its kernel takes the connection for it.
TEST_CASE("an agent that was stopped is given up before the stream comes about") {
  const TempDir dir;
  const std::string path = dir.path() + "/agent.sock";
  const UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  REQUIRE(path.copy(name.sun_path, sizeof(name.sun_path) - 1) == path.size());
  REQUIRE(bind(listener.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0);
  REQUIRE(listen(listener.get(), 8) == 0);
  Events events;
  AgentStream stream("unix:" + path, events.post());
  stream.Dial(DialOf(1));
  const StreamClosed closed = events.Await<StreamClosed>(1).front();
  CHECK(closed.stream == 1);
  CHECK(closed.status == absl::UnavailableError("no agent answers at unix:" + path));
  CHECK(events.Await<StreamOpened>(0).empty());
}

TEST_CASE("where no agent listens the stream does not come about") {
  const TempDir dir;
  Events events;
  AgentStream stream("unix:" + dir.path() + "/none.sock", events.post());
  stream.Dial(DialOf(1));
  CHECK(absl::IsUnavailable(events.Await<StreamClosed>(1).front().status));
}

}  // namespace
}  // namespace geopipe
