// The whole coordinator behind real gRPC on loopback, with agents and people as clients.
#include <grpcpp/grpcpp.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <thread>

#include "coordinator/server.h"
#include "geopipe/v1/agent_service.grpc.pb.h"
#include "geopipe/v1/control_service.grpc.pb.h"
#include "proto/wire/schedule_wire.h"
#include "proto/wire/telemetry_wire.h"
#include "runtime/base/files.h"
#include "runtime/base/version.h"
#include "runtime/manifest/job_manifest.h"
#include "tests/coordinator/core/federation.h"
#include "tests/support/scrape.h"

namespace geopipe {
namespace {

void SetDeadline(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
}

struct Fixture {
  TempFolder folder = *TempFolder::Create("geopipe-coordinator-");
  std::unique_ptr<CoordinatorServer> server;
  std::unique_ptr<v1::ControlService::Stub> control;
  std::shared_ptr<grpc::Channel> channel;

  explicit Fixture(CoordinatorConfig config = {}) {
    config.listen = "127.0.0.1:0";
    config.state_dir = folder.path().string();
    config.log_level = LogLevel::kError;
    config.probe_interval_ns = 0;  // these agents have no links to be probed
    server = *CoordinatorServer::Start(
        config, Clock::Real(),
        {.plan = [](const PlanningInput& input, const std::function<bool()>&) -> absl::StatusOr<PlanResult> {
           return Federation::PlanFor(input);
         },
         .on_fatal = {}});
    channel = grpc::CreateChannel(server->endpoint(), grpc::InsecureChannelCredentials());
    control = v1::ControlService::NewStub(channel);
  }

  grpc::Status Apply(const JobSpec& job, const RunOptions& run = {}) {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::ApplyJobRequest request;
    request.set_manifest(WriteManifest(job));
    *request.mutable_run() = ToProto(run);
    v1::ApplyJobResponse response;
    return control->ApplyJob(&context, request, &response);
  }

  v1::JobDetail Get(const std::string& name) {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::GetJobRequest request;
    request.set_name(name);
    v1::GetJobResponse response;
    return control->GetJob(&context, request, &response).ok() ? response.job() : v1::JobDetail();
  }
};

// An agent with one device, whose worker answers everything at once.
class FakeAgent {
 public:
  FakeAgent(Fixture& fixture, const std::string& site, uint64_t incarnation = 1)
      : site_(site), incarnation_(incarnation), stub_(v1::AgentService::NewStub(fixture.channel)) {
    SetDeadline(context_);
    stream_ = stub_->Connect(&context_);
    v1::ConnectRequest request;
    v1::AgentHello& hello = *request.mutable_hello();
    hello.set_version(std::string(Version()));
    hello.mutable_node()->set_site(site);
    hello.mutable_node()->set_node("n0");
    hello.mutable_node()->set_devices(1);
    hello.mutable_node()->mutable_device()->set_kind("cpu");
    hello.mutable_node()->mutable_device()->set_memory_bytes(1 << 30);
    hello.mutable_node()->mutable_device()->set_efficiency(0.5);
    for (const std::string to : {"north", "east", "west"}) {
      if (to != site) {
        v1::LinkDeclaration& link = *hello.add_links();
        link.set_to_site(to);
        link.set_latency_ns(1000);
        link.set_bandwidth_bytes_per_s(1e9);
      }
    }
    Write(std::move(request));
  }

  bool Read(v1::ConnectResponse* message) { return stream_->Read(message); }

  // Plays the worker until the orders have come to a StopWorkers.
  void ServeToTheEnd() {
    v1::ConnectResponse message;
    while (Read(&message) && !message.has_stop_workers()) {
      if (message.has_start_workers()) {
        worker_ = MakeWorkerId({site_, "n0", 0}, message.start_workers().job(), message.start_workers().incarnation());
        v1::WorkerReport hello = HelloReport();
        hello.mutable_hello()->set_version(std::string(Version()));
        Report(std::move(hello));
      } else if (message.command().command().has_profile()) {
        v1::WorkerReport measured;
        *measured.mutable_profile()->mutable_message() = ToProto(
            MessageCost{.site = site_, .node = "n0", .device = 0, .bytes = 1024, .whole_ns = 2000, .fixed_ns = 1000});
        Report(std::move(measured));
      } else if (message.command().command().has_prepare()) {
        rank_ = message.command().command().prepare().rank();
        Report(PreparedReportOf(rank_, message.command().command().epoch()));
      } else if (message.command().command().has_commit()) {
        const uint64_t epoch = message.command().command().epoch();
        const int64_t end = message.command().command().commit().end_iteration();
        Report(CommittedReportOf(rank_, epoch));
        for (int64_t i = 0; i < end; ++i) {
          Report(IterationReportOf(rank_, epoch, i));
        }
        Report(FinishedReportOf(rank_, epoch, end));
      }
    }
  }

  void Write(v1::ConnectRequest request) {
    request.set_incarnation(incarnation_);
    stream_->Write(request);
  }

  grpc::Status Finish() {
    v1::ConnectResponse message;
    while (stream_->Read(&message)) {
    }
    return stream_->Finish();
  }

 private:
  void Report(v1::WorkerReport report) {
    v1::ConnectRequest request;
    v1::NodeReports& reports = *request.mutable_reports();
    reports.set_first_sequence(++sequence_);
    v1::RelayedReport& relayed = *reports.add_reports()->mutable_worker();
    *relayed.mutable_worker() = worker_;
    *relayed.mutable_report() = std::move(report);
    Write(std::move(request));
  }

  const std::string site_;
  const uint64_t incarnation_;
  uint64_t sequence_ = 0;
  std::unique_ptr<v1::AgentService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ConnectRequest, v1::ConnectResponse>> stream_;
  v1::WorkerId worker_;
  int32_t rank_ = 0;
};

TEST_CASE("three agents train a job over gRPC, watched from its submission to its end") {
  CoordinatorConfig config;
  config.metrics = "127.0.0.1:0";
  config.inbox_events = 4;  // far too small for the reports: nothing may be lost all the same
  Fixture fixture(config);
  std::vector<std::unique_ptr<FakeAgent>> agents;
  std::vector<std::thread> threads;
  for (const std::string site : {"north", "east", "west"}) {
    agents.push_back(std::make_unique<FakeAgent>(fixture, site));
    threads.emplace_back([agent = agents.back().get()] { agent->ServeToTheEnd(); });
  }
  JobSpec job = Federation::TinyJob();
  job.training.iterations = 1000;
  RunOptions run;
  run.backend = BackendKind::kModelled;
  // A small inbox answers RESOURCE_EXHAUSTED to calls; that is for the caller to try again.
  grpc::Status applied = fixture.Apply(job, run);
  while (applied.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) {
    applied = fixture.Apply(job, run);
  }
  REQUIRE(applied.ok());

  grpc::ClientContext context;
  SetDeadline(context);
  v1::WatchJobRequest request;
  request.set_name("tiny");
  const auto watch = fixture.control->WatchJob(&context, request);
  std::vector<v1::JobState> states;
  int64_t iterations = 0;
  v1::WatchJobResponse event;
  while (watch->Read(&event)) {
    if (event.has_transition()) {
      states.push_back(event.transition().state());
    } else {
      CHECK(event.iteration().iteration() == iterations);
      ++iterations;
    }
  }
  CHECK(watch->Finish().ok());
  CHECK(iterations == 1000);
  CHECK(states == std::vector<v1::JobState>{v1::JOB_STATE_PENDING, v1::JOB_STATE_PROFILING, v1::JOB_STATE_PLANNING,
                                            v1::JOB_STATE_DEPLOYING, v1::JOB_STATE_RUNNING, v1::JOB_STATE_COMPLETED});
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(fixture.Get("tiny").measured().iterations() == 900);

  const std::string text = Scrape(fixture.server->metrics_address());
  INFO(text);
  const std::vector<std::pair<std::string, std::string>> tiny = {{"training_job", "tiny"}};
  const v1::JobDetail detail = fixture.Get("tiny");
  CHECK(SeriesValue(text, "geopipe_iterations_total", tiny) == 1000);
  CHECK(SeriesValue(text, "geopipe_iteration_seconds_count", tiny) == 1000);
  CHECK(SeriesValue(text, "geopipe_tokens_total", tiny) == 1000.0 * 512);
  CHECK(SeriesValue(text, "geopipe_loss", tiny) == detail.summary().last_loss());
  CHECK(SeriesValue(text, "geopipe_predicted_iteration_seconds", tiny) ==
        Approx(static_cast<double>(detail.prediction().iteration_ns()) * 1e-9));
  CHECK(SeriesValue(text, "geopipe_jobs", {{"state", "COMPLETED"}}) == 1);
  CHECK(SeriesValue(text, "geopipe_jobs", {{"state", "RUNNING"}}) == 0);
  CHECK(SeriesValue(text, "geopipe_rpc_seconds_count", {{"method", "ApplyJob"}, {"code", "OK"}}) == 1);
  CHECK(SeriesValue(text, "geopipe_rpc_seconds_count", {{"method", "GetJob"}, {"code", "OK"}}).value_or(0) >= 1);
  CHECK(SeriesValue(text, "geopipe_rpc_streams_total", {{"method", "WatchJob"}, {"code", "OK"}}) == 1);
  CHECK(SeriesValue(text, "geopipe_build_info", {{"program", "geopipe-coordinator"}}) == 1);
  CHECK(fixture.server->Stop().ok());
}

TEST_CASE("bad streams end with the status that says why") {
  Fixture fixture;
  SECTION("the first message is not a hello") {
    FakeAgent agent(fixture, "");  // a hello without a site does not validate
    CHECK(agent.Finish().error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  }
  SECTION("another live agent") {
    FakeAgent first(fixture, "north", 1);
    v1::ConnectResponse welcome;
    REQUIRE(first.Read(&welcome));
    CHECK(welcome.welcome().heartbeat_interval_ns() == 500'000'000);
    // The second agent is put off until the first one's next heartbeat shows that it lives.
    CHECK(FakeAgent(fixture, "north", 2).Finish().error_code() == grpc::StatusCode::UNAVAILABLE);
    v1::ConnectRequest heartbeat;
    heartbeat.mutable_heartbeat();
    first.Write(std::move(heartbeat));
    grpc::StatusCode answer = grpc::StatusCode::UNAVAILABLE;
    for (int tries = 0; tries < 10'000 && answer == grpc::StatusCode::UNAVAILABLE; ++tries) {
      answer = FakeAgent(fixture, "north", 2).Finish().error_code();
    }
    CHECK(answer == grpc::StatusCode::ALREADY_EXISTS);
    CHECK(fixture.server->Stop().ok());
    CHECK(first.Finish().error_code() == grpc::StatusCode::UNAVAILABLE);
  }
}

TEST_CASE("calls tell what is wrong") {
  Fixture fixture;
  JobSpec job = Federation::TinyJob();
  CHECK(fixture.Apply(job).ok());
  CHECK(fixture.Apply(job).error_code() == grpc::StatusCode::ALREADY_EXISTS);
  job.training.tokens_per_iteration = 100;
  const grpc::Status invalid = fixture.Apply(job);
  CHECK(invalid.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(invalid.error_message().find("tokens_per_iteration") != std::string::npos);
  grpc::ClientContext context;
  SetDeadline(context);
  v1::CancelJobRequest request;
  request.set_name("nothing");
  v1::CancelJobResponse response;
  CHECK(fixture.control->CancelJob(&context, request, &response).error_code() == grpc::StatusCode::NOT_FOUND);
  CHECK(fixture.Get("tiny").summary().cause() == "waiting for site north: 0 of 1 devices");
}

TEST_CASE("a watch is ended when the coordinator stops, the job is there when it starts again") {
  Fixture fixture;
  REQUIRE(fixture.Apply(Federation::TinyJob()).ok());
  grpc::ClientContext context;
  SetDeadline(context);
  v1::WatchJobRequest request;
  request.set_name("tiny");
  const auto watch = fixture.control->WatchJob(&context, request);
  v1::WatchJobResponse event;
  REQUIRE(watch->Read(&event));
  CHECK(fixture.server->Stop().ok());
  CHECK_FALSE(watch->Read(&event));
  CHECK(watch->Finish().error_code() == grpc::StatusCode::UNAVAILABLE);

  fixture.server.reset();
  CoordinatorConfig config;
  config.listen = "127.0.0.1:0";
  config.state_dir = fixture.folder.path().string();
  fixture.server = *CoordinatorServer::Start(config, Clock::Real(), {});
  fixture.control =
      v1::ControlService::NewStub(grpc::CreateChannel(fixture.server->endpoint(), grpc::InsecureChannelCredentials()));
  CHECK(fixture.Get("tiny").summary().state() == v1::JOB_STATE_PENDING);
  CHECK(fixture.Get("tiny").summary().cause() == "waiting for site north: 0 of 1 devices");
}

TEST_CASE("a port in use is one sentence") {
  Fixture fixture;
  CoordinatorConfig config;
  const TempFolder folder = *TempFolder::Create("geopipe-coordinator-");
  config.state_dir = folder.path().string();
  config.listen = fixture.server->endpoint();
  const absl::Status status = CoordinatorServer::Start(config, Clock::Real(), {}).status();
  CHECK(std::string(status.message()).find("the port is in use by another process") != std::string::npos);

  config.listen = "127.0.0.1:0";
  config.metrics = fixture.server->endpoint();
  const absl::Status metrics = CoordinatorServer::Start(config, Clock::Real(), {}).status();
  CHECK(std::string(metrics.message()).find("metrics: cannot listen on " + config.metrics) == 0);
}

}  // namespace
}  // namespace geopipe
