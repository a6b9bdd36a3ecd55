#include "agent/agent.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <utility>

#include "tests/agent/agent_harness.h"

namespace geopipe::agent {
namespace {

using Lines = std::vector<std::string>;

// An agent that is registered on connection 1 at time 0.
class Registered {
 public:
  explicit Registered(AgentConfig config = TestConfig()) : agent_(std::move(config), TestOptions()) {
    At(0, KeeperListed{});
    At(0, Welcome(1));
  }

  Lines At(int64_t now_ns, Event event) {
    effects_ = agent_.Step(now_ns, std::move(event));
    return Describe(effects_);
  }

  const Effects& effects() const { return effects_; }
  const Agent& agent() const { return agent_; }

 private:
  Agent agent_;
  Effects effects_;
};

template <class T>
const T& Only(const Effects& effects) {
  const T* found = nullptr;
  for (const Effect& effect : effects) {
    if (const T* one = std::get_if<T>(&effect)) {
      REQUIRE(found == nullptr);
      found = one;
    }
  }
  REQUIRE(found != nullptr);
  return *found;
}

TEST_CASE("registers: dial with a hello, welcome, heartbeats") {
  Agent agent(TestConfig(), TestOptions());
  CHECK(Describe(agent.Step(0, Tick{})) == Lines{});  // the keeper is asked first
  const Effects first = agent.Step(0, KeeperListed{});
  CHECK(Describe(first) == Lines{"dial 1 []"});
  const v1::ConnectRequest& hello = Only<Dial>(first).hello;
  CHECK(hello.incarnation() == 42);
  CHECK(hello.hello().version() == "1.2.3");
  CHECK(hello.hello().node().site() == "east");
  CHECK(hello.hello().node().node() == "east-0");
  CHECK(hello.hello().node().devices() == 2);
  CHECK(hello.hello().node().device().memory_bytes() == int64_t{1} << 30);
  REQUIRE(hello.hello().links_size() == 1);
  CHECK(hello.hello().links(0).to_site() == "west");
  CHECK(hello.hello().links(0).latency_ns() == 20 * kMs);
  CHECK(hello.hello().links(0).shaped());

  CHECK(Describe(agent.Step(5 * kMs, Welcome(1))) == Lines{"announce"});
  CHECK(agent.next_deadline_ns() == 505 * kMs);
  CHECK(Describe(agent.Step(504 * kMs, Tick{})) == Lines{});
  CHECK(Describe(agent.Step(505 * kMs, Tick{})) == Lines{"send 1 heartbeat"});
  CHECK(Describe(agent.Step(1005 * kMs, Tick{})) == Lines{"send 1 heartbeat"});
}

TEST_CASE("a node that goes down is told with a heartbeat at once, with each later one, and in the hello") {
  Registered agent;
  CHECK(agent.At(10 * kMs, NodeLeaves{90 * kS}) == Lines{"send 1 heartbeat"});
  CHECK(Only<SendToCoordinator>(agent.effects()).message.heartbeat().leaving().within_ns() == 90 * kS);
  agent.At(510 * kMs, Tick{});
  CHECK(Only<SendToCoordinator>(agent.effects()).message.heartbeat().leaving().within_ns() == 89'500 * kMs);
  agent.At(600 * kMs, CoordinatorClosed{1, absl::UnavailableError("gone")});
  agent.At(2 * kS, Tick{});
  CHECK(Only<Dial>(agent.effects()).hello.hello().leaving().within_ns() == 88'010 * kMs);
  agent.At(2 * kS, Welcome(2));
  CHECK(agent.At(3 * kS, NodeLeaves{}) == Lines{"send 2 heartbeat"});
  CHECK_FALSE(Only<SendToCoordinator>(agent.effects()).message.heartbeat().has_leaving());
}

TEST_CASE("the hello says what memory the host has, and which backends its workers cannot run, and why") {
  AgentOptions options = TestOptions();
  options.host_memory_bytes = 123;
  options.refused_backends = {{BackendKind::kCuda, "no library; install it"}};
  Agent agent(TestConfig(), options);
  const Effects effects = agent.Step(0, KeeperListed{});
  const v1::NodeSpec& node = Only<Dial>(effects).hello.hello().node();
  CHECK(node.host_memory_bytes() == 123);
  REQUIRE(node.refused_backends_size() == 1);
  CHECK(node.refused_backends(0).backend() == v1::BACKEND_KIND_CUDA);
  CHECK(node.refused_backends(0).reason() == "no library; install it");
}

TEST_CASE("an unreachable coordinator is dialled again with growing delays and jitter") {
  Agent agent(TestConfig(), TestOptions());
  int64_t now = 0;
  Effects effects = agent.Step(0, KeeperListed{});
  for (int attempt = 1; attempt <= 12; ++attempt) {
    CAPTURE(attempt);
    CHECK(Describe(effects) == Lines{"dial " + std::to_string(attempt) + " []"});
    const auto connection = static_cast<ConnectionId>(attempt);
    CHECK(Describe(agent.Step(now, CoordinatorClosed{connection, absl::UnavailableError("refused")})) == Lines{});
    const int64_t base = std::min(100 * kMs << (attempt - 1), kS);
    const int64_t delay = agent.next_deadline_ns() - now;
    CHECK(delay >= base / 2);
    CHECK(delay <= base);
    now += delay;
    effects = agent.Step(now, Tick{});
  }
}

TEST_CASE("a coordinator that does not welcome in time, or says something else first, is hung up on") {
  Agent agent(TestConfig(), TestOptions());
  agent.Step(0, KeeperListed{});
  CHECK(Describe(agent.Step(5 * kS, Tick{})) == Lines{"hangup 1"});
  const int64_t again = agent.next_deadline_ns();
  CHECK(Describe(agent.Step(again, Tick{})) == Lines{"dial 2 []"});
  CHECK(Describe(agent.Step(again, Start(2, {0}))) == Lines{"hangup 2"});
}

TEST_CASE("a coordinator of another version is waited for until it is upgraded, and the agent says so") {
  const bool had_taken = GENERATE(false, true);
  const bool has_workers = GENERATE(false, true);
  Agent agent(TestConfig(), TestOptions());
  agent.Step(0, has_workers ? Listed({TestWorker(0)}) : KeeperListed{});
  int64_t now_ns = 1;
  ConnectionId connection = 1;
  if (had_taken) {
    agent.Step(0, Welcome(1));
    agent.Step(now_ns, CoordinatorClosed{connection++, absl::UnavailableError("it was replaced")});
    now_ns = agent.next_deadline_ns();
    agent.Step(now_ns, Tick{});
  }
  for (int refusals = 0; refusals < 5; ++refusals) {
    const CoordinatorClosed refused{connection++, absl::FailedPreconditionError("agent 1.2.3, coordinator 1.2.4")};
    const Effects effects = agent.Step(now_ns, refused);
    CHECK(Describe(effects).empty());
    CHECK_THAT(Only<WriteLog>(effects).text,
               Catch::StartsWith("cannot register with the coordinator: agent 1.2.3, coordinator 1.2.4 (FAILED_") &&
                   Catch::Contains("; trying again in 1"));
    int64_t again_ns = now_ns;
    for (bool dials = false; !dials;) {
      again_ns = agent.next_deadline_ns();
      dials = std::ranges::any_of(Describe(agent.Step(again_ns, Tick{})),
                                  [](const std::string& line) { return line.starts_with("dial"); });
    }
    CHECK(again_ns - now_ns >= 10 * kS);
    CHECK(again_ns - now_ns <= 13 * kS);
    now_ns = again_ns;
  }
  const Lines lines = Describe(agent.Step(now_ns, Welcome(connection)));
  CHECK(std::ranges::count(lines, "announce") == (had_taken ? 0 : 1));
}

TEST_CASE("another agent in its place: dialled again until the coordinator knows whether that one lives") {
  const bool lives = GENERATE(false, true);
  Agent agent(TestConfig(), TestOptions());
  int64_t now = 0;
  ConnectionId connection = 0;
  agent.Step(0, KeeperListed{});
  while (now < 100 * kS) {  // however long the coordinator waits for that one
    agent.Step(now, Tick{});
    CHECK(Describe(agent.Step(now, CoordinatorClosed{++connection, absl::UnavailableError("pid 7 holds it")})) ==
          Lines{});
    REQUIRE(agent.next_deadline_ns() > now);
    now = agent.next_deadline_ns();
  }
  agent.Step(now, Tick{});
  if (lives) {
    CHECK(Describe(agent.Step(now, CoordinatorClosed{++connection, absl::AlreadyExistsError("pid 7 holds it")})) ==
          Lines{"exit ALREADY_EXISTS"});
  } else {
    CHECK(Describe(agent.Step(now, Welcome(++connection))) == Lines{"announce"});
  }
}

TEST_CASE("what an earlier connection still says changes nothing") {
  Registered agent;
  agent.At(1, CoordinatorClosed{1, absl::UnavailableError("gone")});
  const int64_t again = agent.agent().next_deadline_ns();
  CHECK(agent.At(again, Tick{}) == Lines{"dial 2 []"});
  CHECK(agent.At(again, Start(1, {0})) == Lines{});
  CHECK(agent.At(again, Welcome(1)) == Lines{});
  CHECK(agent.At(again, CoordinatorClosed{1, absl::OkStatus()}) == Lines{});
  CHECK(agent.At(again, Welcome(2)) == Lines{});  // announced once only
  CHECK(agent.At(again, Start(2, {0})) == Lines{"start 0#7"});
}

TEST_CASE("a worker's life: started, attached, reporting, stopped, gone") {
  Registered agent;
  CHECK(agent.At(1, Start(1, {0, 1})) == Lines{"start 0#7", "start 1#7"});
  CHECK(agent.At(2, WorkerStarted{{0, 7}, 100}) == Lines{});
  CHECK(agent.At(3, HelloFrom(5, TestWorker(0))) == Lines{"accept 5", "beat 5 taken 0", "send 1 0#7 hello"});
  CHECK(agent.At(4, IterationFrom(5, TestWorker(0), 0)) == Lines{"send 1 0#7 iteration 0"});
  CHECK(agent.At(5, Stop(1, 2 * kS)) == Lines{"command 5 stop", "signal 1#7 15"});
  CHECK(agent.At(6, WorkerExited{{1, 7}, 101, 0, SIGTERM, ""}) == Lines{"send 1 1#7 exit 0/15"});
  CHECK(agent.At(7, WorkerClosed{5}) == Lines{});
  CHECK(agent.At(8, WorkerExited{{0, 7}, 100, 0, 0, ""}) == Lines{"send 1 0#7 exit 0/0"});
  CHECK(agent.agent().fleet().empty());
  CHECK(Only<SendToCoordinator>(agent.effects()).message.reports().reports(0).exit().pid() == 100);
}

TEST_CASE("a worker that does not stop within its grace is killed, once") {
  Registered agent;
  agent.At(0, Start(1, {0}));
  agent.At(0, HelloFrom(5, TestWorker(0)));
  CHECK(agent.At(0, Stop(1, 100 * kMs)) == Lines{"command 5 stop"});
  CHECK(agent.agent().next_deadline_ns() == 100 * kMs);
  CHECK(agent.At(99 * kMs, Tick{}) == Lines{});
  CHECK(agent.At(100 * kMs, Tick{}) == Lines{"signal 0#7 9"});
  CHECK(agent.At(200 * kMs, Tick{}) == Lines{});
}

TEST_CASE("a killed worker's exit names the signal and comes after its last reports") {
  Registered agent;
  agent.At(0, Start(1, {0}));
  agent.At(0, HelloFrom(5, TestWorker(0)));
  CHECK(agent.At(1, WorkerExited{{0, 7}, 100, 0, SIGKILL, "oops"}) == Lines{});  // its stream is still being read
  CHECK(agent.At(2, IterationFrom(5, TestWorker(0), 3)) == Lines{"send 1 0#7 iteration 3"});
  CHECK(agent.At(3, WorkerClosed{5}) == Lines{"send 1 0#7 exit 0/9: oops"});
}

TEST_CASE("an exit waits for its stream only so long") {
  Registered agent;
  agent.At(0, Start(1, {0}));
  agent.At(0, HelloFrom(5, TestWorker(0)));
  agent.At(0, WorkerExited{{0, 7}, 100, 3, 0, ""});
  CHECK(agent.At(499 * kMs, Tick{}) == Lines{});
  CHECK(agent.At(kS, Tick{}) == Lines{"close 5 ABORTED", "send 1 heartbeat", "send 1 0#7 exit 3/0"});
}

TEST_CASE("a worker that never attaches is killed") {
  Registered agent;
  agent.At(0, Start(1, {0}));
  agent.At(0, CoordinatorClosed{1, absl::UnavailableError("gone")});
  CHECK(agent.agent().fleet().next_deadline_ns() == 40 * kS);
  for (int64_t now_ns = kS; now_ns < 40 * kS; now_ns += kS) {
    const Lines lines = agent.At(now_ns, Tick{});
    CHECK(std::ranges::find(lines, "signal 0#7 9") == lines.end());
  }
  CHECK(agent.At(40 * kS, Tick{}) == Lines{"signal 0#7 9"});
}

TEST_CASE("a worker that cannot be started is reported with the reason") {
  Registered agent;
  agent.At(0, Start(1, {0}));
  CHECK(agent.At(1, WorkerStartFailed{{0, 7}, absl::NotFoundError("no such program")}) ==
        Lines{"send 1 0#7 exit 127/0: no such program"});
  CHECK(agent.agent().fleet().empty());
}

TEST_CASE("orders that cannot be carried out are answered by an exit") {
  Registered agent;
  CHECK(agent.At(0, Start(1, {2})) == Lines{"send 1 2#7 exit 1/0: this node has no device 2; it has 2"});
  CHECK(agent.At(0, Start(1, {0})) == Lines{"start 0#7"});
  CHECK(agent.At(0, Start(1, {0})) == Lines{});  // the same order again
  CHECK(agent.At(0, Start(1, {0}, 8, "other")) ==
        Lines{"send 1 0#8 exit 1/0: device 0 is held by a worker of job tiny"});
}

TEST_CASE("a device that is being freed takes the next worker afterwards") {
  Registered agent;
  agent.At(0, Start(1, {0}));
  agent.At(0, Stop(1, kS));
  CHECK(agent.At(1, Start(1, {0}, 8, "next")) == Lines{});
  CHECK(agent.At(2, WorkerExited{{0, 7}, 100, 0, 0, ""}) == Lines{"start 0#8", "send 1 0#7 exit 0/0"});

  agent.At(3, Stop(1, kS, "next"));
  agent.At(3, Start(1, {0}, 9, "third"));
  CHECK(agent.At(4, Stop(1, kS, "third")) == Lines{"send 1 0#9 exit 1/0: stopped before it was started: finished"});
  CHECK(agent.At(5, WorkerExited{{0, 8}, 101, 0, 0, ""}) == Lines{"send 1 0#8 exit 0/0"});
}

TEST_CASE("workers of some devices, or of one incarnation, are stopped alone, and the next take their place") {
  Registered agent;
  agent.At(0, Start(1, {0, 1}));
  CHECK(agent.At(1, Stop(1, kS, "tiny", {1}, 7)) == Lines{"signal 1#7 15"});
  CHECK(agent.At(2, Start(1, {1}, 8, "next")) == Lines{});
  CHECK(agent.At(3, Stop(1, kS, "next", {}, 7)) == Lines{});  // of an older run of that name: none
  CHECK(agent.At(4, WorkerExited{{1, 7}, 100, 0, 0, ""}) == Lines{"start 1#8", "send 1 1#7 exit 0/0"});
  CHECK(agent.agent().fleet().Living().size() == 2);
}

TEST_CASE("only the expected worker may attach, once, beginning with its hello") {
  Registered agent;
  agent.At(0, Start(1, {0}));
  CHECK(agent.At(1, HelloFrom(1, TestWorker(0, 6))) == Lines{"close 1 UNAUTHENTICATED"});
  CHECK(agent.At(1, HelloFrom(2, TestWorker(1))) == Lines{"close 2 UNAUTHENTICATED"});
  CHECK(agent.At(1, HelloFrom(3, TestWorker(0, 7, "other"))) == Lines{"close 3 UNAUTHENTICATED"});
  v1::WorkerId elsewhere = TestWorker(0);
  elsewhere.set_node("east-1");
  CHECK(agent.At(1, HelloFrom(4, elsewhere)) == Lines{"close 4 UNAUTHENTICATED"});
  CHECK(agent.At(1, IterationFrom(5, TestWorker(0), 0)) == Lines{"close 5 INVALID_ARGUMENT"});
  CHECK(agent.At(1, HelloFrom(6, TestWorker(0))) == Lines{"accept 6", "beat 6 taken 0", "send 1 0#7 hello"});
  CHECK(agent.At(1, HelloFrom(7, TestWorker(0))) == Lines{"close 7 ALREADY_EXISTS"});
  CHECK(agent.At(1, IterationFrom(6, TestWorker(0, 8), 0)) == Lines{"close 6 INVALID_ARGUMENT"});
  CHECK(agent.At(1, WorkerClosed{6}) == Lines{});
  CHECK(agent.At(1, HelloFrom(8, TestWorker(0))) ==
        Lines{"accept 8", "beat 8 taken 0", "send 1 0#7 hello"});  // attached anew
}

TEST_CASE("commands go to the worker they name, and wait while its stream is broken") {
  Registered agent;
  agent.At(0, Start(1, {0}));
  v1::WorkerCommand commit;
  commit.mutable_commit();
  CHECK(agent.At(1, Command(1, TestWorker(0), commit)) == Lines{});
  CHECK(agent.At(2, HelloFrom(5, TestWorker(0))) ==
        Lines{"accept 5", "beat 5 taken 0", "command 5 commit", "send 1 0#7 hello"});
  CHECK(agent.At(3, Command(1, TestWorker(0), commit)) == Lines{"command 5 commit"});
  CHECK(agent.At(3, Command(1, TestWorker(0, 6), commit)) == Lines{});  // a stale incarnation
  CHECK(agent.At(3, Command(1, TestWorker(1), commit)) == Lines{});     // no such worker
}

TEST_CASE("a prepare command gets this node's memory, threads and pacers") {
  AgentConfig config = TestConfig();
  config.links.push_back(
      {.to = "north", .latency_ns = 0, .bandwidth_bytes_per_s = 1, .shape = true, .pacer_path = "/shared/pacer"});
  Registered agent(std::move(config));
  agent.At(0, Start(1, {0}));
  agent.At(0, HelloFrom(5, TestWorker(0)));
  v1::WorkerCommand command;
  command.mutable_prepare()->set_memory_limit_bytes(GENERATE(int64_t{0}, int64_t{1} << 40));
  for (const char* to : {"west", "north"}) {
    v1::LinkShape& shape = *command.mutable_prepare()->add_shapes();
    shape.set_from_site("east");
    shape.set_to_site(to);
  }
  CHECK(agent.At(1, Command(1, TestWorker(0), command)) == Lines{"command 5 prepare"});
  const v1::PrepareCommand& prepare = Only<SendToWorker>(agent.effects()).message.command().prepare();
  CHECK(prepare.memory_limit_bytes() == int64_t{1} << 30);
  CHECK(prepare.threads() == 3);
  CHECK(prepare.shapes(0).pacer_path() == "/state/pacer-east-west");
  CHECK(prepare.shapes(1).pacer_path() == "/shared/pacer");
}

TEST_CASE("the network of the site is told and paced: per node by one pacer, per device by one each") {
  AgentConfig config = TestConfig();
  config.network = {.spec = {.bandwidth_bytes_per_s = 1e9, .latency_ns = 5000, .per = NetworkSpec::Per::kNode},
                    .shape = true};
  Registered agent(std::move(config));
  agent.At(0, Start(1, {0, 1}));
  agent.At(0, HelloFrom(6, TestWorker(1)));
  v1::WorkerCommand command;
  for (const bool per_device : {false, true}) {
    v1::LinkShape& shape = *command.mutable_prepare()->add_shapes();
    shape.set_from_site("east");
    shape.set_to_site("east");
    shape.set_is_per_device(per_device);
  }
  CHECK(agent.At(1, Command(1, TestWorker(1), command)) == Lines{"command 6 prepare"});
  const v1::PrepareCommand& prepare = Only<SendToWorker>(agent.effects()).message.command().prepare();
  CHECK(prepare.shapes(0).pacer_path() == "/state/pacer-network");
  CHECK(prepare.shapes(1).pacer_path() == "/state/pacer-network-1");
}

TEST_CASE("workers survive a lost coordinator, and their reports wait for its return") {
  Registered agent;
  agent.At(0, Start(1, {0, 1}));
  agent.At(0, HelloFrom(5, TestWorker(0)));
  agent.At(0, CoordinatorClosed{1, absl::UnavailableError("gone")});
  CHECK(agent.At(1, IterationFrom(5, TestWorker(0), 1)) == Lines{});
  CHECK(agent.At(1, HeartbeatFrom(5, TestWorker(0), 1)) == Lines{});
  CHECK(agent.At(1, HeartbeatFrom(5, TestWorker(0), 2)) == Lines{});  // replaces the one before
  CHECK(agent.At(1, WorkerExited{{1, 7}, 101, 0, SIGSEGV, ""}) == Lines{});
  const int64_t again = agent.agent().link().next_deadline_ns();
  CHECK(agent.At(again, Tick{}) == Lines{"dial 2 [0#7]"});
  CHECK(agent.At(again, Welcome(2)) ==
        Lines{"send 2 0#7 hello", "send 2 0#7 iteration 1 + 0#7 beat 2 + 1#7 exit 0/11"});
  CHECK(agent.agent().link().queue().unacknowledged() == 4);
}

TEST_CASE("a coordinator that reads slowly gets no more than a window, and heartbeats first") {
  Registered agent;
  agent.At(0, Start(1, {0}));
  agent.At(0, HelloFrom(5, TestWorker(0)));
  size_t sent = 1;  // the hello
  for (int64_t i = 0; i < 40; ++i) {
    sent += agent.At(1, IterationFrom(5, TestWorker(0), i)).size();
  }
  CHECK(sent == 32);
  CHECK(agent.agent().link().queue().waiting() == 9);
  CHECK(agent.At(500 * kMs, Tick{}) == Lines{});
  CHECK(agent.At(501 * kMs, CoordinatorSent{1}) == Lines{"send 1 heartbeat"});
  const Lines rest = agent.At(502 * kMs, CoordinatorSent{1});
  REQUIRE(rest.size() == 1);  // all nine in one message
  CHECK(rest[0].starts_with("send 1 0#7 iteration 31 + 0#7 iteration 32"));
  CHECK(agent.agent().link().queue().waiting() == 0);
}

TEST_CASE("what the coordinator has taken is forgotten, what went down with a stream is said again") {
  Registered agent;
  agent.At(0, Start(1, {0}));
  agent.At(0, HelloFrom(5, TestWorker(0)));
  agent.At(1, IterationFrom(5, TestWorker(0), 0));
  agent.At(1, IterationFrom(5, TestWorker(0), 1));
  CHECK(agent.agent().link().queue().unacknowledged() == 3);
  CHECK(agent.At(2, Taken(1, 2)) == Lines{});
  CHECK(agent.agent().link().queue().unacknowledged() == 1);
  agent.At(3, CoordinatorClosed{1, absl::UnavailableError("gone")});
  const int64_t again = agent.agent().link().next_deadline_ns();
  agent.At(again, Tick{});
  CHECK(agent.At(again, Welcome(2)) == Lines{"send 2 0#7 iteration 1"});
  CHECK(Only<SendToCoordinator>(agent.effects()).message.reports().first_sequence() == 3);
  CHECK(agent.At(again, IterationFrom(5, TestWorker(0), 2)) == Lines{"send 2 0#7 iteration 2"});
  CHECK(Only<SendToCoordinator>(agent.effects()).message.reports().first_sequence() == 4);
  agent.At(again, Taken(1, 9));  // of the earlier stream
  CHECK(agent.agent().link().queue().unacknowledged() == 2);
  agent.At(again, Taken(2, 4));
  CHECK(agent.agent().link().queue().empty());
}

TEST_CASE("figures are gathered, what is urgent goes at once and takes them along") {
  AgentOptions options = TestOptions();
  options.gather_ns = 50 * kMs;
  Agent agent(TestConfig(), options);
  const auto at = [&](int64_t now_ns, Event event) { return Describe(agent.Step(now_ns, std::move(event))); };
  at(0, KeeperListed{});
  at(0, Welcome(1));
  at(0, Start(1, {0, 1}));
  CHECK(at(1 * kMs, HelloFrom(5, TestWorker(0))) == Lines{"accept 5", "beat 5 taken 0", "send 1 0#7 hello"});
  CHECK(at(2 * kMs, HelloFrom(6, TestWorker(1))) == Lines{"accept 6", "beat 6 taken 0", "send 1 1#7 hello"});
  CHECK(at(10 * kMs, IterationFrom(5, TestWorker(0), 0)) == Lines{});
  CHECK(at(20 * kMs, IterationFrom(6, TestWorker(1), 0)) == Lines{});
  CHECK(agent.next_deadline_ns() == 52 * kMs);
  CHECK(at(52 * kMs, Tick{}) == Lines{"send 1 0#7 iteration 0 + 1#7 iteration 0"});
  CHECK(at(60 * kMs, IterationFrom(5, TestWorker(0), 1)) == Lines{});
  CHECK(at(61 * kMs, WorkerExited{{1, 7}, 101, 0, SIGKILL, ""}) == Lines{});
  CHECK(at(62 * kMs, WorkerClosed{6}) == Lines{"send 1 0#7 iteration 1 + 1#7 exit 0/9"});
}

TEST_CASE("shutdown leaves the workers alone, or with --die-with-parent stops them first") {
  AgentConfig config = TestConfig();
  SECTION("they stay") {
    Registered agent(config);
    agent.At(0, Start(1, {0}));
    CHECK(agent.At(1, Shutdown{"SIGTERM"}) == Lines{"exit"});
    CHECK(agent.At(2, WorkerExited{{0, 7}, 100, 0, 0, ""}) == Lines{});
  }
  SECTION("they go") {
    config.die_with_parent = true;
    Registered agent(config);
    agent.At(0, Start(1, {0, 1}));
    agent.At(0, HelloFrom(5, TestWorker(0)));
    CHECK(agent.At(0, Shutdown{"SIGTERM"}) == Lines{"command 5 stop", "signal 1#7 15"});
    CHECK(agent.At(1, WorkerExited{{1, 7}, 101, 0, 15, ""}) == Lines{"send 1 1#7 exit 0/15"});
    CHECK(agent.At(2, Start(1, {1}, 8)) == Lines{});  // too late
    CHECK(agent.At(2 * kS, Tick{}) == Lines{"beat 5 taken 0", "signal 0#7 9"});
    agent.At(2 * kS, WorkerClosed{5});
    CHECK(agent.At(2 * kS, WorkerExited{{0, 7}, 100, 0, 9, ""}) == Lines{"send 1 0#7 exit 0/9", "exit"});
  }
  SECTION("there are none") {
    config.die_with_parent = true;
    Registered agent(config);
    CHECK(agent.At(0, Shutdown{"SIGINT"}) == Lines{"exit"});
  }
}

TEST_CASE("a probe is run as ordered, its news are passed on, and after its end nothing is") {
  Registered agent;
  CHECK(agent.At(1, Probe(1, 3, "")) == Lines{"probe 3 pacer /state/pacer-east-west"});
  CHECK(agent.At(2, Probe(1, 3, "")).empty());  // twice
  CHECK(agent.At(3, OpenedNews(3)) == Lines{"send 1 probe 3 opened"});
  CHECK(agent.At(4, EndOfProbe(1, 3)) == Lines{"stop probe 3"});
  CHECK(agent.At(5, FailedNews(3)).empty());
  CHECK(agent.At(6, EndOfProbe(1, 3)).empty());

  CHECK(agent.At(7, Probe(1, 4, "127.0.0.1:9", false)) == Lines{"probe 4 dials 127.0.0.1:9"});
  CHECK(agent.At(8, MeasuredNews(4)) == Lines{"send 1 probe 4 measured"});
  CHECK(agent.At(9, EndOfProbe(1, 4)).empty());
}

TEST_CASE("probes are few, and end with the stream to the coordinator and with the agent") {
  Registered agent;
  for (uint64_t probe = 1; probe <= TestOptions().max_probes; ++probe) {
    CHECK(agent.At(1, Probe(1, probe, "")).size() == 1);
  }
  CHECK(agent.At(2, Probe(1, 9, "")) == Lines{"send 1 probe 9 failed"});
  CHECK(agent.At(3, CoordinatorClosed{1, absl::UnavailableError("gone")}) ==
        Lines{"stop probe 1", "stop probe 2", "stop probe 3", "stop probe 4"});
  CHECK(agent.At(4, MeasuredNews(1)).empty());

  Registered leaving;
  leaving.At(1, Probe(1, 5, ""));
  CHECK(leaving.At(2, Shutdown{"SIGTERM"}) == Lines{"stop probe 5", "exit"});
}

}  // namespace
}  // namespace geopipe::agent
