// Tests what an agent owes to others: numbers on each hop, workers that were there before it, silence, room.
#include <catch2/catch.hpp>
#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include "agent/agent.h"
#include "tests/agent/agent_harness.h"

namespace geopipe::agent {
namespace {

using Strings = std::vector<std::string>;

// An agent that has listed what the keeper has and is registered on connection 1, all at time 0.
class HopsNode {
 public:
  explicit HopsNode(const KeeperListed& listed = {}, const AgentOptions& options = TestOptions(),
                    const CoordinatorMessage& welcome = Welcome(1))
      : agent_(TestConfig(), options) {
    At(0, listed);
    At(0, welcome);
  }
  Strings At(int64_t now_ns, Event event) {
    effects_ = agent_.Step(now_ns, std::move(event));
    return Describe(effects_);
  }
  // True when the latest step read on from the session.
  bool ReadsOn(SessionId session) const {
    for (const Effect& effect : effects_) {
      if (const auto* read_on = std::get_if<ReadOn>(&effect); read_on != nullptr && read_on->session == session) {
        return true;
      }
    }
    return false;
  }
  template <class T>
  T Last() const {
    T last;
    for (const Effect& effect : effects_) {
      if (const auto* one = std::get_if<T>(&effect)) {
        last = *one;
      }
    }
    return last;
  }
  // Ticks each 100 ms up to `until_ns`; all that was done.
  Strings TickTo(int64_t from_ns, int64_t until_ns) {
    Strings all;
    for (int64_t now_ns = from_ns; now_ns <= until_ns; now_ns += 100 * kMs) {
      for (std::string& line : At(now_ns, Tick{})) {
        all.push_back(std::move(line));
      }
    }
    return all;
  }
  Agent& agent() { return agent_; }

 private:
  Agent agent_;
  Effects effects_;
};

v1::WorkerCommand Commit() {
  v1::WorkerCommand command;
  command.mutable_commit();
  return command;
}

size_t Count(const Strings& lines, const std::string& line) {
  return static_cast<size_t>(std::count(lines.begin(), lines.end(), line));
}

TEST_CASE("what runs is adopted and listed before the coordinator is dialled, what has ended is told until taken") {
  Agent agent(TestConfig(), TestOptions());
  CHECK(Describe(agent.Step(0, Tick{})).empty());
  CHECK(Describe(agent.Step(kS, Tick{})).empty());  // however long the keeper takes
  // A worker that is quicker is not refused for good, which would end it.
  CHECK(Describe(agent.Step(kS, HelloFrom(4, TestWorker(0)))) == Strings{"close 4 UNAVAILABLE"});
  const Effects effects = agent.Step(2 * kS, Listed({TestWorker(0)}, {ExitOf(TestWorker(1, 6), SIGSEGV)}));
  REQUIRE(Describe(effects) == Strings{"dial 1 [0#7]"});
  const v1::AgentHello hello = std::get<Dial>(effects.back()).hello.hello();
  REQUIRE(hello.worker_states_size() == 1);
  CHECK(hello.worker_states(0).pid() == 100);
  CHECK_FALSE(hello.worker_states(0).attached());
  CHECK(hello.orphan_grace_ns() == 30 * kS);
  CHECK(Describe(agent.Step(2 * kS, Welcome(1))) == Strings{"announce", "send 1 1#6 exit 0/11"});
  CHECK(Describe(agent.Step(2 * kS, Start(1, {1}, 6))).empty());  // it is dead, and that is on its way
  CHECK(Describe(agent.Step(3 * kS, HelloFrom(5, TestWorker(0)))) ==
        Strings{"accept 5", "beat 5 taken 0", "send 1 heartbeat", "send 1 0#7 hello"});
  CHECK(Describe(agent.Step(3 * kS, Taken(1, 1))) == Strings{"forget 1#6"});
  CHECK(Describe(agent.Step(3 * kS, Start(1, {1}, 8))) == Strings{"start 1#8"});
}

TEST_CASE("an adopted worker that does not dial is told to be silent after four seconds") {
  Agent agent(TestConfig(), TestOptions());
  agent.Step(0, Listed({TestWorker(0)}));
  agent.Step(0, Welcome(1));
  std::vector<std::string> told;
  for (int64_t now_ns = 0; now_ns <= 10 * kS; now_ns += 100 * kMs) {
    for (const std::string& line : Describe(agent.Step(now_ns, Tick{}))) {
      if (line.find("silent") != std::string::npos) {
        told.push_back(line);
      }
    }
  }
  CHECK(told == std::vector<std::string>{"send 1 0#7 silent 4000 ms"});
}

TEST_CASE("an adopted worker that never attaches is killed") {
  HopsNode node(Listed({TestWorker(0)}));
  CHECK(Count(node.TickTo(100 * kMs, 39'900 * kMs), "signal 0#7 9") == 0);
  CHECK(Count(node.At(40 * kS, Tick{}), "signal 0#7 9") == 1);
}

TEST_CASE("a worker that does not attach is left its orphan grace, in which it ends by itself") {
  AgentConfig config = TestConfig();
  config.orphan_grace_ns = 120 * kS;
  const bool adopted = GENERATE(false, true);
  Agent agent(config, TestOptions());
  agent.Step(0, adopted ? Listed({TestWorker(0)}) : KeeperListed{});
  agent.Step(0, Welcome(1));
  if (!adopted) {
    CHECK(Describe(agent.Step(0, Start(1, {0}))) == Strings{"start 0#7"});
  }
  CHECK(agent.fleet().next_deadline_ns() == (adopted ? 4 * kS : 125 * kS));  // it is told to be silent first
  for (int64_t now_ns = kS; now_ns < 125 * kS; now_ns += kS) {
    CHECK(Count(Describe(agent.Step(now_ns, Tick{})), "signal 0#7 9") == 0);
  }
  CHECK(Count(Describe(agent.Step(125 * kS, Tick{})), "signal 0#7 9") == 1);
}

TEST_CASE("workers that do not fit the node are killed, and their exits are nobody's business") {
  v1::WorkerId elsewhere = TestWorker(0, 5);
  elsewhere.set_node("east-1");
  Agent agent(TestConfig(), TestOptions());
  CHECK(Describe(agent.Step(0, Listed({TestWorker(1), TestWorker(2)}, {ExitOf(elsewhere, SIGKILL)}))) ==
        Strings{"signal 2#7 9", "forget 0#5", "dial 1 [1#7]"});
  agent.Step(0, Welcome(1));
  CHECK(Describe(agent.Step(1, WorkerExited{{2, 7}, 102, 0, 9, ""})) == Strings{"forget 2#7"});
}

TEST_CASE("the keeper's list after a break: what is missing has ended, what was ordered is ordered again") {
  HopsNode node;
  node.At(0, Start(1, {0, 1}));
  node.At(0, WorkerStarted{{0, 7}, 100});
  CHECK(node.At(1, Listed({TestWorker(0)})) == Strings{"start 1#7"});
  CHECK(node.At(2, Stop(1, kS, "tiny", {0})) == Strings{"signal 0#7 15"});
  CHECK(node.At(3, Listed({TestWorker(0), TestWorker(1)})) == Strings{"signal 0#7 15"});
  CHECK(node.At(4, Listed({TestWorker(1)})) == Strings{"send 1 0#7 exit -1/0"});
  CHECK(node.At(5, Listed({TestWorker(1)}, {ExitOf(TestWorker(0), SIGTERM)})).empty());  // told already
  CHECK(node.At(6, Taken(1, 1)) == Strings{"forget 0#7"});
  CHECK(node.At(7, Listed({TestWorker(1)}, {ExitOf(TestWorker(0), SIGTERM)})) == Strings{"forget 0#7"});
  CHECK(node.At(8, Listed({TestWorker(1), TestWorker(0, 9)})) == Strings{"signal 0#9 9"});  // nobody ordered that one
  CHECK(node.At(9, WorkerStarted{{0, 9}, 100}) == Strings{"signal 0#9 9"});
}

// The next keeper reports its end without a code; the program was most likely never executed.
TEST_CASE("a worker whose keeper died while it started it is started again, and one that is known to have run is not") {
  const v1::WorkerExit unknown = [] {
    v1::WorkerExit exit = ExitOf(TestWorker(0), 0);
    exit.set_exit_code(kUnknownExitCode);
    return exit;
  }();
  HopsNode node;
  node.At(0, Start(1, {0}));
  SECTION("nothing was heard of it") {
    CHECK(node.At(5 * kS, Listed({}, {unknown})) == Strings{"forget 0#7", "start 0#7", "send 1 heartbeat"});
    CHECK(node.At(6 * kS, WorkerStarted{{0, 7}, 101}) == Strings{"send 1 heartbeat"});
    CHECK(node.At(6 * kS, HelloFrom(5, TestWorker(0))).front() == "accept 5");
  }
  SECTION("it has as long to attach as if it was new") {
    node.TickTo(100 * kMs, 4900 * kMs);
    node.At(5 * kS, Listed({}, {unknown}));
    CHECK(Count(node.TickTo(5100 * kMs, 44900 * kMs), "signal 0#7 9") == 0);
    CHECK(Count(node.TickTo(45 * kS, 45 * kS), "signal 0#7 9") == 1);
  }
  SECTION("the keeper had said that it runs") {
    node.At(0, WorkerStarted{{0, 7}, 100});
    CHECK(node.At(1, Listed({}, {unknown})) == Strings{"send 1 0#7 exit -1/0"});
  }
  SECTION("it had attached") {
    node.At(0, HelloFrom(5, TestWorker(0)));
    node.At(0, WorkerClosed{5});
    CHECK(node.At(1, Listed({}, {unknown})) == Strings{"send 1 0#7 exit -1/0"});
  }
  SECTION("it was to stop meanwhile") {
    node.At(0, Stop(1, kS));
    CHECK(node.At(1, Listed({}, {unknown})) == Strings{"send 1 0#7 exit -1/0"});
  }
  SECTION("it is known how it ended") {
    CHECK(node.At(1, Listed({}, {ExitOf(TestWorker(0), SIGKILL)})) == Strings{"send 1 0#7 exit 0/9"});
  }
}

TEST_CASE("commands are numbered, kept until they are taken, and handed again to a worker that attaches anew") {
  HopsNode node;
  node.At(0, Start(1, {0}));
  node.At(0, NumberingHelloFrom(5, TestWorker(0)));
  for (uint64_t sequence = 1; sequence <= 3; ++sequence) {
    CHECK(node.At(1, Command(1, TestWorker(0), Commit())) == Strings{"command 5 commit"});
    const v1::AttachResponse message = node.Last<SendToWorker>().message;
    CHECK(message.sequence() == sequence);
    CHECK(message.agent_incarnation() == 42);
  }
  node.At(2, Numbered(1, IterationFrom(5, TestWorker(0), 0), 1));
  node.At(3, WorkerClosed{5});
  SECTION("the same agent: what it has not taken") {
    CHECK(node.At(4, NumberingHelloFrom(6, TestWorker(0), 42, 2)) ==
          Strings{"accept 6", "beat 6 taken 0", "command 6 commit", "send 1 0#7 hello"});
    CHECK(node.Last<SendToWorker>().message.sequence() == 3);
  }
  SECTION("it was with another agent in between: all that it has not told to have taken") {
    CHECK(node.At(4, NumberingHelloFrom(6, TestWorker(0), 41, 3)) ==
          Strings{"accept 6", "beat 6 taken 0", "command 6 commit", "command 6 commit", "send 1 0#7 hello"});
  }
  SECTION("a worker that stops reading commands is killed") {
    for (size_t i = 2; i < TestOptions().fleet.waiting_commands; ++i) {
      CHECK(node.At(4, Command(1, TestWorker(0), Commit())).empty());
    }
    CHECK(node.At(4, Command(1, TestWorker(0), Commit())) == Strings{"signal 0#7 9"});
  }
}

TEST_CASE("a stop survives a broken stream, and a relayed stop ends, too") {
  HopsNode node;
  node.At(0, Start(1, {0}));
  node.At(0, NumberingHelloFrom(5, TestWorker(0)));
  v1::WorkerCommand stop;
  stop.mutable_stop();
  CHECK(node.At(1, Command(1, TestWorker(0), stop)) == Strings{"command 5 stop"});
  node.At(2, WorkerClosed{5});
  CHECK(node.At(3, NumberingHelloFrom(6, TestWorker(0), 42, 0)) ==
        Strings{"accept 6", "beat 6 taken 0", "command 6 stop", "send 1 0#7 hello"});
  CHECK(node.At(3, Start(1, {0}, 8)).empty());  // its successor waits, and is not refused
  const Strings lines = node.TickTo(100 * kMs, 11 * kS);
  CHECK(Count(lines, "signal 0#7 9") == 1);
}

TEST_CASE("the keeper is told of which run each worker is that it is to start") {
  HopsNode node;
  const auto start = [](uint64_t incarnation, uint64_t run) {
    CoordinatorMessage order = Start(1, {0}, incarnation);
    order.message.mutable_start_workers()->set_run_incarnation(run);
    return order;
  };
  CHECK(node.At(0, start(7, 5)) == Strings{"start 0#7 of run 5"});
  CHECK(node.At(1, Listed({})) == Strings{"start 0#7 of run 5"});  // the order was lost with its keeper
  v1::WorkerExit unknown = ExitOf(TestWorker(0), 0);
  unknown.set_exit_code(kUnknownExitCode);
  CHECK(node.At(2, Listed({}, {unknown})) == Strings{"forget 0#7", "start 0#7 of run 5"});
  node.At(3, WorkerStarted{{0, 7}, 100});
  node.At(4, Stop(1, 0, "tiny", {0}, 7));
  CHECK(node.At(5, start(8, 6)).empty());  // its successor waits
  const Strings lines = node.At(6, WorkerExited{{0, 7}, 100, 0, 9, ""});
  CHECK(Count(lines, "start 0#8 of run 6") == 1);
}

TEST_CASE("a worker hears that a report was taken when the coordinator has taken it") {
  HopsNode node;
  node.At(0, Start(1, {0}));
  node.At(0, NumberingHelloFrom(5, TestWorker(0)));
  CHECK(node.At(1, Numbered(1, IterationFrom(5, TestWorker(0), 0))) == Strings{"send 1 0#7 iteration 0"});
  CHECK(node.At(2, Numbered(2, IterationFrom(5, TestWorker(0), 1))) == Strings{"send 1 0#7 iteration 1"});
  CHECK(node.At(3, Numbered(2, IterationFrom(5, TestWorker(0), 1))).empty());  // said again
  CHECK(Count(node.TickTo(500 * kMs, kS), "beat 5 taken 0") == 1);
  node.At(1100 * kMs, Taken(1, 2));  // the hello and the first report
  CHECK(Count(node.TickTo(1200 * kMs, 2100 * kMs), "beat 5 taken 1") == 1);
  node.At(2200 * kMs, Taken(1, 3));
  node.At(2300 * kMs, Command(1, TestWorker(0), Commit()));
  CHECK(node.Last<SendToWorker>().message.reports_taken() == 2);
}

TEST_CASE("an attached worker that says nothing is told once, and again after it was heard") {
  HopsNode node;
  node.At(0, Start(1, {0, 1}));
  node.At(0, HelloFrom(5, TestWorker(0)));
  Strings lines = node.TickTo(100 * kMs, 10 * kS - 200 * kMs);
  CHECK(Count(lines, "send 1 0#7 silent 4000 ms") == 1);
  for (const std::string& line : lines) {
    CHECK(line.find("1#7") == std::string::npos);  // not attached: another matter
  }
  node.At(10 * kS - 100 * kMs, HeartbeatFrom(5, TestWorker(0), 0));
  CHECK(Count(node.TickTo(10 * kS, 14 * kS), "send 1 0#7 silent 4000 ms") == 1);
}

TEST_CASE("the agent's own pauses are no silence of others") {
  HopsNode node({}, TestOptions(), Welcome(1, 500 * kMs, 9, 5 * kS));
  node.At(0, Start(1, {0}));
  node.At(0, HelloFrom(5, TestWorker(0)));
  int64_t now_ns = 0;
  for (int pause = 0; pause < 3; ++pause) {  // counts as a second
    now_ns += 60 * kS;
    for (const std::string& line : node.At(now_ns, Tick{})) {
      CHECK(line.find("silent") == std::string::npos);
      CHECK(line.find("hangup") == std::string::npos);
    }
  }
  CHECK(node.agent().next_deadline_ns() <= now_ns + kS);
  const Strings lines = node.TickTo(now_ns + 100 * kMs, now_ns + 2 * kS);
  CHECK(Count(lines, "send 1 0#7 silent 4000 ms") == 1);
  CHECK(Count(lines, "hangup 1") == 1);
}

TEST_CASE("a worker that could not attach because the agent was stopped has its time afterwards") {
  HopsNode node;
  node.At(0, Start(1, {0}));
  CHECK(node.agent().next_deadline_ns() <= kS);
  CHECK(Count(node.At(90 * kS, Tick{}), "signal 0#7 9") == 0);  // counts as a second
  CHECK(Count(node.TickTo(90 * kS + 100 * kMs, 128 * kS), "signal 0#7 9") == 0);
  CHECK(Count(node.TickTo(128 * kS, 130 * kS), "signal 0#7 9") == 1);
}

TEST_CASE("a coordinator of which nothing comes is hung up on, and what comes keeps the stream") {
  HopsNode node({}, TestOptions(), Welcome(1, 500 * kMs, 9, 5 * kS));
  CHECK(Count(node.TickTo(100 * kMs, 4900 * kMs), "hangup 1") == 0);
  node.At(4950 * kMs, Taken(1, 0));
  CHECK(Count(node.TickTo(5 * kS, 9900 * kMs), "hangup 1") == 0);
  CHECK(Count(node.TickTo(10 * kS, 10'100 * kMs), "hangup 1") == 1);
  CHECK_FALSE(node.agent().link().registered());
  HopsNode patient;  // of a coordinator that does not answer heartbeats
  CHECK(Count(patient.TickTo(100 * kMs, 60 * kS), "hangup 1") == 0);
}

TEST_CASE("orders are acted on once, and told to be taken") {
  HopsNode node;
  CHECK(node.At(1, Numbered(1, Start(1, {0}))) == Strings{"start 0#7"});
  CHECK(node.At(2, Numbered(2, Stop(1, 60 * kS))) == Strings{"signal 0#7 15"});
  CHECK(node.At(3, Numbered(2, Stop(1, 0))).empty());
  CHECK(node.At(4, Numbered(1, Start(1, {0}))).empty());
  node.At(500 * kMs, Tick{});
  CHECK(node.Last<SendToCoordinator>().message.orders_taken() == 2);
  node.At(501 * kMs, CoordinatorClosed{1, absl::UnavailableError("gone")});
  node.At(2 * kS, Tick{});
  const v1::ConnectRequest hello = node.Last<Dial>().hello;
  CHECK(hello.orders_taken() == 0);  // nobody has welcomed this stream
  CHECK(hello.hello().orders_taken() == 2);
  CHECK(hello.hello().coordinator_incarnation() == 9);
  SECTION("by the same coordinator, they are passed over on the next stream") {
    node.At(2 * kS, Welcome(2));
    CHECK(node.At(2 * kS, Numbered(2, Stop(2, 0))).empty());
    CHECK(node.At(2 * kS, Numbered(3, Stop(2, 0))) == Strings{"signal 0#7 9"});
  }
  SECTION("another coordinator begins anew") {
    CHECK(node.At(2 * kS, Welcome(2, 500 * kMs, 10))[0] == "remember 10");
    CHECK(node.At(2 * kS, Numbered(1, Stop(2, 0))) == Strings{"signal 0#7 9"});
  }
  SECTION("one that is missing breaks the stream") {
    node.At(2 * kS, Welcome(2));
    CHECK(node.At(2 * kS, Numbered(4, Stop(2, 0))) == Strings{"hangup 2"});
  }
}

TEST_CASE("a coordinator that another has followed is not obeyed") {
  AgentOptions options = TestOptions();
  options.known_coordinator = 20;
  Agent agent(TestConfig(), options);
  agent.Step(0, KeeperListed{});
  CHECK(Describe(agent.Step(0, Welcome(1, 500 * kMs, 19))) == Strings{"hangup 1"});
  CHECK(Describe(agent.Step(0, Start(1, {0}))).empty());
  const int64_t again_ns = agent.next_deadline_ns();
  CHECK(again_ns <= kS);
  CHECK(Describe(agent.Step(again_ns, Tick{})) == Strings{"dial 2 []"});
  CHECK(Describe(agent.Step(again_ns, Welcome(2, 500 * kMs, 21))) == Strings{"remember 21", "announce"});
}

// The welcome of a coordinator of the federation.
CoordinatorMessage WelcomeOf(ConnectionId connection, const std::string& federation, uint64_t incarnation) {
  CoordinatorMessage message = Welcome(connection, 500 * kMs, incarnation);
  message.message.mutable_welcome()->set_federation(federation);
  return message;
}

TEST_CASE("a coordinator of another federation is not obeyed as long as this node has workers") {
  AgentOptions options = TestOptions();
  options.known_coordinator = 20;
  options.federation = "a";
  const bool has_workers = GENERATE(false, true);
  Agent agent(TestConfig(), options);
  agent.Step(0, has_workers ? Listed({TestWorker(0)}) : KeeperListed{});
  if (has_workers) {
    CHECK(Describe(agent.Step(0, WelcomeOf(1, "b", 21))) == Strings{"hangup 1"});
    CHECK(Describe(agent.Step(0, Stop(1, 0))).empty());
    const int64_t again_ns = agent.next_deadline_ns();
    const Effects dialled = agent.Step(again_ns, Tick{});
    CHECK(Describe(dialled) == Strings{"dial 2 [0#7]"});
    CHECK(std::get<Dial>(dialled.at(0)).hello.hello().federation() == "a");
    CHECK(Describe(agent.Step(again_ns, WelcomeOf(2, "a", 21))) == Strings{"remember 21", "announce"});
  } else {  // its coordinators count anew
    CHECK(Describe(agent.Step(0, WelcomeOf(1, "b", 3))) == Strings{"remember 3", "announce"});
  }
}

TEST_CASE("with a full queue streams are not read on, until the coordinator has made room") {
  HopsNode node;
  node.At(0, Start(1, {0, 1}));
  node.At(0, NumberingHelloFrom(5, TestWorker(0)));
  node.At(0, NumberingHelloFrom(6, TestWorker(1)));
  node.At(0, CoordinatorClosed{1, absl::UnavailableError("gone")});
  uint64_t sequence = 0;
  WorkerMessage report = IterationFrom(5, TestWorker(0), 0);
  for (int i = 0; i < 100; ++i) {
    report.message.mutable_report()->mutable_iteration()->add_actions()->set_action("0F1");
  }
  // A failure's text is part of the report and no detail that could be given up.
  WorkerMessage failure = HelloFrom(5, TestWorker(0));
  failure.message.mutable_report()->mutable_failure()->set_message(std::string(1 << 20, 'x'));
  do {
    ++sequence;
    node.At(1, Numbered(sequence, sequence % 2 == 0 ? report : failure));
    REQUIRE(sequence < 200);
  } while (node.ReadsOn(5));
  CHECK(node.agent().link().full());
  CHECK(node.agent().link().queue().dropped() == 0);
  node.At(2, Numbered(1, IterationFrom(6, TestWorker(1), 0)));
  CHECK_FALSE(node.ReadsOn(6));
  node.At(60 * kS, Tick{});
  for (const std::string& line : node.TickTo(61 * kS, 70 * kS)) {
    CHECK(line.find("silent") == std::string::npos);  // who is not read cannot be heard
  }
  ConnectionId dialled = 0;
  for (ConnectionId id = 2; id < 40 && dialled == 0; ++id) {
    node.At(70 * kS, Welcome(id));
    dialled = node.agent().link().registered() ? id : 0;
  }
  REQUIRE(dialled != 0);
  uint64_t taken = 0;
  int64_t now_ns = 70 * kS;
  bool read_on[2] = {};
  for (int i = 0; i < 400 && !node.agent().link().queue().empty(); ++i) {
    node.At(++now_ns, CoordinatorSent{dialled});
    node.At(++now_ns, Taken(dialled, ++taken));
    read_on[0] = read_on[0] || node.ReadsOn(5);
    read_on[1] = read_on[1] || node.ReadsOn(6);
  }
  CHECK(read_on[0]);
  CHECK(read_on[1]);
}

}  // namespace
}  // namespace geopipe::agent
