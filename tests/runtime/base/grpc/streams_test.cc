// Both ends of streams, over a Unix socket of this process.
#include <catch2/catch.hpp>
#include <chrono>
#include <future>

#include "geopipe/v1/worker_service.grpc.pb.h"
#include "runtime/base/grpc/channel.h"
#include "runtime/base/grpc/stream_client.h"
#include "runtime/base/grpc/stream_server.h"
#include "runtime/base/inbox.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

constexpr std::chrono::seconds kForEver{30};

v1::AttachRequest RequestOf(int64_t iteration) {
  v1::AttachRequest request;
  request.mutable_report()->mutable_heartbeat()->set_iteration(iteration);
  return request;
}

v1::AttachResponse ResponseOf(std::string reason) {
  v1::AttachResponse response;
  response.mutable_command()->mutable_stop()->set_reason(std::move(reason));
  return response;
}

// A service whose every event is the test's to see.
class Service final : public v1::WorkerService::CallbackService {
 public:
  struct Message {
    StreamId id = 0;
    int64_t iteration = 0;
    std::function<void()> read_on;
  };

  Service(const std::string& address, const StreamLimits& limits) : streams(limits) {
    grpc::ServerBuilder builder;
    ListenOn(address, builder);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    REQUIRE(server_ != nullptr);
  }
  ~Service() override { server_->Shutdown(std::chrono::system_clock::now()); }

  Message NextMessage() {
    auto message = messages.Pop(kForEver);
    REQUIRE(message.has_value());
    return *std::move(message);
  }
  absl::Status NextEnd() {
    auto status = ended.Pop(kForEver);
    REQUIRE(status.has_value());
    return *status;
  }

  StreamServer<v1::AttachRequest, v1::AttachResponse> streams;
  Inbox<Message> messages{16};
  Inbox<absl::Status> ended{16};

 private:
  grpc::ServerBidiReactor<v1::AttachRequest, v1::AttachResponse>* Attach(
      grpc::CallbackServerContext* context) override {
    return streams.Open(context,
                        {.on_message =
                             [this](StreamId id, const v1::AttachRequest& message, std::function<void()> read_on) {
                               const int64_t iteration = message.report().heartbeat().iteration();
                               messages.Push({id, iteration, std::move(read_on)});
                               return iteration < 0 ? absl::InvalidArgumentError("below 0") : absl::OkStatus();
                             },
                         .on_closed = [this](StreamId /*id*/, const absl::Status& status) { ended.Push(status); }});
  }

  std::unique_ptr<grpc::Server> server_;
};

struct Fixture {
  explicit Fixture(StreamLimits limits = {})
      : service(address, limits), stub(v1::WorkerService::NewStub(MakeChannel(address))) {
    context.set_deadline(std::chrono::system_clock::now() + kForEver);
    stream = stub->Attach(&context);
  }

  TempDir folder;
  std::string address = "unix:" + folder.path() + "/service.sock";
  Service service;
  std::unique_ptr<v1::WorkerService::Stub> stub;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AttachRequest, v1::AttachResponse>> stream;
};

// The server's, when the stream has ended.
absl::Status StatusOf(grpc::ClientReaderWriter<v1::AttachRequest, v1::AttachResponse>& stream) {
  v1::AttachResponse ignored;
  while (stream.Read(&ignored)) {
  }
  return FromGrpc(stream.Finish());
}

TEST_CASE("a stream is read on only when its reader wants more") {
  Fixture f;
  f.stream->Write(RequestOf(1));
  f.stream->Write(RequestOf(2));
  const Service::Message first = f.service.NextMessage();
  CHECK(first.iteration == 1);
  CHECK_FALSE(f.service.messages.Pop(std::chrono::milliseconds(50)).has_value());
  first.read_on();
  CHECK(f.service.NextMessage().iteration == 2);
}

TEST_CASE("a message that is refused ends its stream, and the peer hears why") {
  Fixture f;
  f.stream->Write(RequestOf(-1));
  CHECK(StatusOf(*f.stream) == absl::InvalidArgumentError("below 0"));
  CHECK(f.service.NextEnd() == absl::InvalidArgumentError("below 0"));
}

TEST_CASE("more streams than the limit are refused, and so are all after the end") {
  Fixture f({.peer = "worker", .max_streams = 1});
  f.stream->Write(RequestOf(1));
  f.service.NextMessage();
  const auto refusal = [&] {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kForEver);
    return StatusOf(*f.stub->Attach(&context));
  };
  CHECK(refusal() == absl::ResourceExhaustedError("1 streams of workers are open, which is the limit"));
  f.service.streams.EndAll(absl::UnavailableError("closed for today"));
  CHECK(f.service.NextEnd() == absl::UnavailableError("closed for today"));
  CHECK(StatusOf(*f.stream) == absl::UnavailableError("closed for today"));
  CHECK(refusal() == absl::UnavailableError("closed for today"));
}

TEST_CASE("a peer that reads nothing is cut off, and is not waited for when its stream ends") {
  const bool ended = GENERATE(false, true);
  Fixture f({.peer = "worker", .max_queued_messages = 4});
  f.stream->Write(RequestOf(1));
  const StreamId id = f.service.NextMessage().id;
  const std::string large(16 << 20, 'x');  // more than the connection takes by itself
  for (int i = 0; i < (ended ? 1 : 5); ++i) {
    f.service.streams.Send(id, ResponseOf(large));
  }
  if (ended) {
    f.service.streams.End(id, absl::AbortedError("enough"));
    CHECK(f.service.NextEnd() == absl::AbortedError("enough"));
  } else {
    CHECK(f.service.NextEnd() ==
          absl::ResourceExhaustedError("the worker does not read what it is sent: 4 messages wait"));
  }
}

TEST_CASE("an outbox keeps what no stream has taken for the next") {
  Outbox<v1::AttachRequest> outbox(2);
  outbox.Push(RequestOf(1));
  outbox.Push(RequestOf(2));
  outbox.TryPush(RequestOf(3));  // no room
  const auto run = [&](v1::WorkerService::Stub& stub) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kForEver);
    return RunStream<v1::AttachRequest, v1::AttachResponse>(
        context, *stub.Attach(&context), RequestOf(0), outbox,
        {.on_message = [](const v1::AttachResponse&) { return absl::CancelledError("heard enough"); },
         .on_written = {}});
  };
  CHECK(absl::IsUnavailable(run(*v1::WorkerService::NewStub(MakeChannel("unix:/nobody.sock")))));

  Fixture f;
  std::future<absl::Status> status = std::async(std::launch::async, [&] { return run(*f.stub); });
  StreamId id = 0;
  for (const int64_t iteration : {0, 1, 2}) {
    const Service::Message message = f.service.NextMessage();
    CHECK(message.iteration == iteration);
    id = message.id;
    message.read_on();
  }
  f.service.streams.Send(id, ResponseOf("enough"));
  CHECK(status.get() == absl::CancelledError("heard enough"));
}

}  // namespace
}  // namespace geopipe
