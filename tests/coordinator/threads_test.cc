// The threads around the core, without gRPC: the planner, the runner; and the configuration.
#include <catch2/catch.hpp>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "coordinator/config.h"
#include "coordinator/planner.h"
#include "coordinator/runner.h"
#include "runtime/base/config/yaml_reader.h"
#include "runtime/base/listen_address.h"
#include "tests/support/fake_clock.h"
#include "tests/support/tiny_model.h"

namespace geopipe {
namespace {

struct Answers {
  std::mutex mutex;
  std::condition_variable arrived;
  std::vector<PlannerDone> done;

  void Take(PlannerDone answer) {
    std::lock_guard lock(mutex);
    done.push_back(std::move(answer));
    arrived.notify_all();
  }
  void WaitFor(size_t count) {
    std::unique_lock lock(mutex);
    arrived.wait(lock, [&] { return done.size() >= count; });
  }
};

TEST_CASE("the planner answers in order, stops what is no longer wanted, and when its time is spent") {
  FakeClock clock;
  Answers answers;
  std::mutex mutex;
  std::condition_variable changed;
  bool searching = false;
  std::vector<std::string> begun_jobs;
  PlannerThread planner(
      clock,
      [&](const PlanningInput& input, const std::function<bool()>& should_stop) -> absl::StatusOr<PlanResult> {
        if (input.job.name == "endless") {
          {
            std::lock_guard lock(mutex);
            searching = true;
            changed.notify_all();
          }
          while (!should_stop()) {
            std::this_thread::yield();
          }
        }
        PlanResult result;
        result.search.stopped_early = should_stop();
        return result;
      },
      [&](const PlannerBegun& begun) {
        std::lock_guard lock(mutex);
        begun_jobs.push_back(begun.job);
      },
      [&](PlannerDone done) { answers.Take(std::move(done)); });
  PlanningInput endless;
  endless.job.name = "endless";
  PlanningInput quick;
  quick.job.search.time_budget_ns = 1;
  planner.Start({"endless", 1, endless});
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return searching; });
  }
  planner.Start({"forgotten", 2, quick});
  planner.Start({"quick", 3, quick});
  planner.Stop({"forgotten", 2});
  planner.Stop({"endless", 1});
  answers.WaitFor(1);
  REQUIRE(answers.done.size() == 1);
  CHECK(answers.done[0].incarnation == 3);
  CHECK_FALSE(answers.done[0].result->search.stopped_early);
  PlanningInput spent;
  spent.job.search.time_budget_ns = 0;
  planner.Start({"spent", 4, spent});
  answers.WaitFor(2);
  CHECK(answers.done[1].result->search.stopped_early);
  std::lock_guard lock(mutex);
  CHECK(begun_jobs == std::vector<std::string>{"endless", "quick", "spent"});
}

// Everything the runner does, in order.
class Recorder final : public JobStore, public AgentStreams, public ControlCalls, public PlanningQueue {
 public:
  absl::StatusOr<StoredState> Load() override { return StoredState(); }
  absl::StatusOr<uint64_t> NextIncarnation(int64_t now_unix_ns) override { return now_unix_ns; }
  absl::Status InsertJob(const v1::JobDetail& /*detail*/, const v1::JobRecord& /*record*/, std::string_view /*forget*/,
                         int64_t /*keep_below*/, std::string_view /*keep_as*/) override {
    return Note("insert");
  }
  absl::Status AddTransition(std::string_view /*job*/, int64_t /*sequence*/, const v1::JobTransition& transition,
                             const v1::JobDetail* /*outcome*/, const v1::JobRecord* /*record*/,
                             const JobProgress* /*progress*/) override {
    return Note(std::string(JobStateName(transition.state())));
  }
  absl::Status SetRecord(std::string_view /*job*/, const v1::JobRecord& /*record*/,
                         const v1::JobDetail* /*outcome*/) override {
    return Note("record");
  }
  absl::Status AddProgress(const std::vector<JobProgress>& /*progress*/,
                           const std::vector<StoredLink>& /*links*/) override {
    return Note("progress");
  }
  absl::StatusOr<std::vector<v1::IterationSummary>> LoadIterations(std::string_view /*job*/) override {
    return std::vector<v1::IterationSummary>();
  }
  absl::StatusOr<std::vector<v1::IterationTimeline>> LoadTimelines(std::string_view /*job*/) override {
    return std::vector<v1::IterationTimeline>();
  }
  absl::StatusOr<std::string> Backup(int64_t /*now_unix_ns*/) override { return absl::UnimplementedError("not here"); }
  absl::Status SetDrained(std::string_view /*site*/, bool drained) override {
    return Note(drained ? "drained" : "uncordoned");
  }
  void Send(SessionId /*session*/, v1::ConnectResponse message) override {
    Note(message.has_welcome() ? "welcome" : message.has_start_workers() ? "start" : "stop").IgnoreError();
  }
  void Close(SessionId /*session*/, const absl::Status& /*status*/) override { Note("close").IgnoreError(); }
  void Reply(CallId /*call*/, absl::StatusOr<ControlReply> reply) override {
    Note(reply.ok() ? "reply" : absl::StatusCodeToString(reply.status().code())).IgnoreError();
  }
  void SendToWatcher(CallId /*call*/, std::vector<v1::WatchJobResponse> /*messages*/) override {}
  void EndWatch(CallId /*call*/, const absl::Status& /*status*/) override {}
  void Start(StartPlanning /*request*/) override {}
  void Stop(const StopPlanning& /*request*/) override {}

  void FailStore(absl::Status status) {
    std::lock_guard lock(mutex_);
    store_ = std::move(status);
  }
  // Waits until at least `count` things are done and returns all of them.
  std::vector<std::string> WaitFor(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_.size() >= count; });
    return done_;
  }

 private:
  absl::Status Note(std::string what) {
    std::lock_guard lock(mutex_);
    done_.push_back(std::move(what));
    changed_.notify_all();
    return store_;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> done_;
  absl::Status store_;
};

ApplyJob Submission() {
  JobSpec job;
  job.parallelism.tensor = 1;
  job.parallelism.data = 1;
  job.name = "tiny";
  job.model = TinyModel(2);
  job.data.paths = {"/data"};
  job.training.iterations = 3;
  job.training.tokens_per_iteration = 512;
  job.search.sequence_length = {64};
  job.placement.sites = {"north"};
  return {1, job, {}};
}

AgentMessage Hello() {
  AgentMessage hello{1, {}};
  hello.message.set_incarnation(1);
  v1::AgentHello& message = *hello.message.mutable_hello();
  message.set_version("1");
  message.mutable_node()->set_site("north");
  message.mutable_node()->set_node("n0");
  message.mutable_node()->set_devices(1);
  return hello;
}

CoordinatorOptions OptionsOfVersion1() {
  CoordinatorOptions options;
  options.version = "1";
  return options;
}

struct RunningCore {
  Inbox<Event> inbox{8};
  EventPort<Event> port{inbox};
  Recorder recorder;
  FakeClock clock;
  Runner runner{std::make_unique<Coordinator>(OptionsOfVersion1(), StoredState{}), RunnerParts{.inbox = inbox,
                                                                                               .port = port,
                                                                                               .store = recorder,
                                                                                               .agents = recorder,
                                                                                               .calls = recorder,
                                                                                               .planner = recorder,
                                                                                               .clock = clock}};
  absl::Status status;
  std::thread thread{[this] { status = runner.Run(); }};

  void Stop() {
    inbox.Close();
    thread.join();
  }
};

TEST_CASE("the runner does what the core decides, in its order") {
  RunningCore core;
  core.inbox.Push(Submission());
  core.inbox.Push(Hello());
  core.inbox.Push(CancelJob{2, "tiny", ""});
  const std::vector<std::string> done = core.recorder.WaitFor(8);
  core.Stop();
  CHECK(core.status.ok());
  CHECK(done ==
        std::vector<std::string>{"insert", "reply", "welcome", "PROFILING", "start", "CANCELLED", "stop", "reply"});
}

TEST_CASE("a transition that cannot be stored takes no effect: the runner ends") {
  RunningCore core;
  core.inbox.Push(Submission());
  core.recorder.WaitFor(2);
  core.recorder.FailStore(absl::ResourceExhaustedError("disk full"));
  core.inbox.Push(Hello());
  core.thread.join();
  CHECK(core.status == absl::ResourceExhaustedError("disk full"));
  CHECK(core.recorder.WaitFor(0) == std::vector<std::string>{"insert", "reply", "welcome", "PROFILING"});
}

TEST_CASE("a submission that cannot be stored is an error of the call alone") {
  RunningCore core;
  core.recorder.FailStore(absl::ResourceExhaustedError("disk full"));
  core.inbox.Push(Submission());
  core.recorder.WaitFor(2);
  core.recorder.FailStore(absl::OkStatus());
  core.inbox.Push(Submission());
  const std::vector<std::string> done = core.recorder.WaitFor(4);
  core.Stop();
  CHECK(core.status.ok());
  CHECK(done == std::vector<std::string>{"insert", "INTERNAL", "insert", "reply"});
}

TEST_CASE("the configuration: file, ranges, and only loopback") {
  const auto read = [](std::string_view text) { return CoordinatorConfigSchema().Read(*ParseYaml(text, "c.yaml")); };
  const auto config = read("state_dir: /tmp/x\nheartbeat: {interval: 100ms}\ntimeouts: {prepare: 5s}\n");
  REQUIRE(config.ok());
  CHECK(config->heartbeat_interval_ns == 100'000'000);
  CHECK(config->membership.failed_after_ns == 5'000'000'000);
  CHECK(config->run.prepare_timeout_ns == 5'000'000'000);
  CHECK(ValidateConfig(*config).ok());
  CHECK(std::string(read("state_dir: x\nhearbeat: {}\n").status().message()).find("c.yaml:2:1") == 0);

  CoordinatorConfig slow = *config;
  slow.membership.suspect_after_ns = 6'000'000'000;
  CHECK(ValidateConfig(slow).message() ==
        "heartbeat.failed_after is 5s; it must be longer than heartbeat.suspect_after, which is 6s");
  const YamlDocument file = *ParseYaml("state_dir: x\nheartbeat:\n  suspect_after: 6s\n", "c.yaml");
  CHECK(ValidateConfig(slow, file).message() ==
        "c.yaml:2:1: heartbeat.failed_after: is 5s; it must be longer than heartbeat.suspect_after, which is 6s");
  CHECK(read("state_dir: x\nlimits: {jobs: 0}\n").status().message() ==
        "c.yaml:2:16: limits.jobs: is 0; it must be from 1 to 1000000");
  CoordinatorConfig open_metrics = *config;
  open_metrics.metrics = "0.0.0.0:9464";
  CHECK(std::string(ValidateConfig(open_metrics).message()).find("metrics: refuses to listen") == 0);
  CoordinatorConfig same_port = *config;
  same_port.listen = same_port.metrics = "127.0.0.1:7171";
  CHECK(ValidateConfig(same_port).message() ==
        "metrics is 127.0.0.1:7171, where the coordinator listens; give it another port");
  same_port.listen = same_port.metrics = "127.0.0.1:0";
  CHECK(ValidateConfig(same_port).ok());
  CHECK(ParseListenAddress("listen", "127.0.0.1:0")->port == 0);
  CHECK(ParseListenAddress("listen", "[::1]:70")->host == "::1");
  CHECK(ParseListenAddress("listen", "localhost:70")->host == "127.0.0.1");
  for (const char* incomplete : {"127.0.0.1", ":70"}) {
    CHECK(ParseListenAddress("listen", incomplete).status().code() == absl::StatusCode::kInvalidArgument);
  }
  for (const char* open : {"10.0.0.1:70", "0.0.0.0:70", "[::]:70", "example.com:70"}) {
    INFO(open);
    CHECK(ParseListenAddress("listen", open).status().code() == absl::StatusCode::kPermissionDenied);
  }
}

}  // namespace
}  // namespace geopipe
