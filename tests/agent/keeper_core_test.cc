#include "agent/keeper_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <utility>

#include "tests/agent/agent_harness.h"
#include "tests/support/seed.h"

namespace geopipe::agent {
namespace {

using Lines = std::vector<std::string>;

std::string KeptName(const v1::WorkerId& id) { return fmt::format("{}#{}", id.device(), id.incarnation()); }

struct KeeperDescriber {
  std::string operator()(const Spawn& e) const {
    return fmt::format("spawn {}{}{}", KeptName(e.start.worker()), e.hands_memory_on ? " with memory" : "",
                       e.program == Spawn::Program::kOpened ? ", opened"
                       : e.program == Spawn::Program::kKept ? ", kept"
                                                            : "");
  }
  std::string operator()(const ReleaseChild& e) const {
    return fmt::format("release {}#{}", e.worker.device, e.worker.incarnation);
  }
  std::string operator()(const SignalChild& e) const {
    return fmt::format("signal {}#{} {}", e.worker.device, e.worker.incarnation, e.signal);
  }
  std::string operator()(const TakeMemory& e) const { return fmt::format("take {} from {}", e.device, e.fd); }
  std::string operator()(const DropMemory& e) const { return fmt::format("drop {}", e.device); }
  std::string operator()(const DropProgram& e) const {
    return fmt::format("close {}:{}", e.run.job, e.run.incarnation);
  }
  std::string operator()(const TellAgent& e) const {
    switch (e.news.news_case()) {
      case v1::KeeperNews::kRunning:
        return fmt::format("tell {} {} runs as {}", e.connection, KeptName(e.news.running().worker()),
                           e.news.running().pid());
      case v1::KeeperNews::kExited:
        return fmt::format("tell {} {} ended {}/{}", e.connection, KeptName(e.news.exited().worker()),
                           e.news.exited().exit_code(), e.news.exited().signal());
      case v1::KeeperNews::kFailed:
        return fmt::format("tell {} {} failed: {}", e.connection, KeptName(e.news.failed().worker()),
                           e.news.failed().message());
      case v1::KeeperNews::kLeaving:
        return fmt::format("tell {} leaving within {} s", e.connection, e.news.leaving().within_ns() / kS);
      case v1::KeeperNews::kPong:
        return fmt::format("tell {} pong {}", e.connection, e.news.pong().sequence());
      default:
        return fmt::format("tell {} listed", e.connection);
    }
  }
  std::string operator()(const SaveTable& e) const {
    return fmt::format("save {}+{}", e.table.running_size(), e.table.ended_size());
  }
  std::string operator()(const WriteLog& /*e*/) const { return "log"; }
  std::string operator()(const LeaveKeeper& /*e*/) const { return "leave"; }
};

Lines DescribeAll(const KeeperEffects& effects) {
  Lines lines;
  for (const KeeperEffect& effect : effects) {
    lines.push_back(std::visit(KeeperDescriber{}, effect));
  }
  return lines;
}

v1::KeeperRequest StartOf(int32_t device, uint64_t incarnation = 7, const std::string& job = "tiny", uint64_t run = 0) {
  v1::KeeperRequest request;
  request.mutable_start()->set_run_incarnation(run);
  *request.mutable_start()->mutable_worker() = TestWorker(device, incarnation, job);
  request.mutable_start()->set_program("/bin/worker");
  request.mutable_start()->set_log_path("/log");
  request.mutable_start()->set_takes_memory(true);
  return request;
}

v1::KeeperRequest SignalOf(int32_t device, uint64_t incarnation, int signal) {
  v1::KeeperRequest request;
  request.mutable_signal()->set_device(device);
  request.mutable_signal()->set_incarnation(incarnation);
  request.mutable_signal()->set_signal(signal);
  return request;
}

v1::KeeperRequest ForgetOf(int32_t device, uint64_t incarnation) {
  v1::KeeperRequest request;
  request.mutable_forget()->set_device(device);
  request.mutable_forget()->set_incarnation(incarnation);
  return request;
}

ChildStarted StartedAs(int32_t device, int64_t pid, uint64_t incarnation = 7, const std::string& job = "tiny",
                       int32_t memory_fd = 0) {
  ChildStarted started;
  *started.child.mutable_worker() = TestWorker(device, incarnation, job);
  started.child.set_pid(pid);
  started.child.set_memory_fd(memory_fd);
  return started;
}

class KeptCore {
 public:
  explicit KeptCore(const KeeperCoreOptions& options = {}, const v1::KeeperTable& table = {})
      : core_(0, options, table) {}
  Lines At(int64_t now_ns, KeeperEvent event) { return DescribeAll(core_.Step(now_ns, std::move(event))); }
  // The process is there, is released and executes its program.
  void Begin(int64_t now_ns, int32_t device, int64_t pid, uint64_t incarnation = 7) {
    At(now_ns, StartedAs(device, pid, incarnation));
    At(now_ns, ChildReleased{{device, incarnation}});
  }
  // A worker on device 0 with memory: how it is spawned. It then runs.
  Lines Remember(int64_t now_ns, uint64_t incarnation, const std::string& job = "tiny") {
    Lines lines = At(now_ns, AgentAsked{1, StartOf(0, incarnation, job)});
    At(now_ns, StartedAs(0, 100, incarnation, job, 9));
    At(now_ns, ChildReleased{{0, incarnation}});
    return lines;
  }
  // A worker of the run without memory: how it is spawned. It then runs.
  Lines Run(int64_t now_ns, int32_t device, uint64_t incarnation, uint64_t run, const std::string& job = "tiny") {
    v1::KeeperRequest start = StartOf(device, incarnation, job, run);
    start.mutable_start()->clear_takes_memory();
    Lines lines = At(now_ns, AgentAsked{1, std::move(start)});
    At(now_ns, StartedAs(device, 100, incarnation, job));
    At(now_ns, ChildReleased{{device, incarnation}});
    return lines;
  }
  // The worker is killed, or ends by itself with the code. What is closed for it.
  Lines End(int64_t now_ns, int32_t device, uint64_t incarnation, int code = 0, int signal = 0) {
    Lines lines = At(now_ns, ChildEnded{{device, incarnation}, code, signal, ""});
    std::erase_if(lines, [](const std::string& line) { return !line.starts_with("close"); });
    return lines;
  }
  KeeperCore& core() { return core_; }

 private:
  KeeperCore core_;
};

TEST_CASE("keeper: started, told, ended, kept until it is forgotten") {
  KeptCore keeper;
  CHECK(keeper.At(0, AgentConnected{1}) == Lines{"tell 1 listed"});
  CHECK(keeper.At(1, AgentAsked{1, StartOf(0)}) == Lines{"spawn 0#7"});
  CHECK(keeper.At(1, StartedAs(0, 100)) == Lines{"save 1+0", "release 0#7"});
  CHECK(keeper.At(1, ChildReleased{{0, 7}}) == Lines{"tell 1 0#7 runs as 100"});
  CHECK(keeper.At(2, AgentAsked{1, StartOf(0)}) == Lines{"tell 1 0#7 runs as 100"});  // the order came twice
  CHECK(keeper.At(3, AgentAsked{1, SignalOf(0, 7, SIGTERM)}) == Lines{"signal 0#7 15"});
  CHECK(keeper.At(4, AgentLeft{1}).empty());
  CHECK(keeper.At(5, ChildEnded{{0, 7}, 0, SIGTERM, ""}) == Lines{"save 0+1"});
  CHECK(keeper.At(6, AgentConnected{2}) == Lines{"tell 2 0#7 ended 0/15", "tell 2 listed"});
  CHECK(keeper.At(7, AgentAsked{2, StartOf(0)}) == Lines{"tell 2 0#7 ended 0/15"});
  CHECK(keeper.At(8, AgentAsked{2, ForgetOf(0, 8)}).empty());
  CHECK(keeper.At(8, AgentAsked{2, ForgetOf(0, 7)}) == Lines{"save 0+0"});
  CHECK(keeper.At(9, AgentConnected{3}) == Lines{"tell 3 listed"});
}

TEST_CASE("keeper: what does not fit is passed over") {
  KeptCore keeper({.max_running = 2, .max_ended = 1});
  keeper.At(0, AgentConnected{1});
  keeper.At(0, AgentAsked{1, StartOf(0)});
  keeper.Begin(0, 0, 100);
  CHECK(keeper.At(1, AgentAsked{1, StartOf(0, 8)}) == Lines{"log", "tell 1 0#8 failed: device 0 has a running worker"});
  CHECK(keeper.At(1, AgentAsked{1, v1::KeeperRequest()}) == Lines{"log"});
  v1::KeeperRequest nameless = StartOf(1);
  nameless.mutable_start()->mutable_worker()->clear_job();
  CHECK(keeper.At(1, AgentAsked{1, nameless}).size() == 2);
  v1::KeeperRequest programless = StartOf(1);
  programless.mutable_start()->clear_program();
  CHECK(keeper.At(1, AgentAsked{1, programless}).size() == 2);
  CHECK(keeper.At(1, AgentAsked{1, SignalOf(0, 7, 65)}) == Lines{"log"});
  CHECK(keeper.At(1, AgentAsked{1, SignalOf(0, 8, 9)}).empty());
  CHECK(keeper.At(1, AgentAsked{1, SignalOf(5, 7, 9)}).empty());
  keeper.At(2, AgentAsked{1, StartOf(1)});
  keeper.Begin(2, 1, 101);
  CHECK(keeper.At(3, AgentAsked{1, StartOf(2)}).back() ==
        "tell 1 2#7 failed: 2 workers run on this node, which is the limit");
  keeper.At(4, ChildEnded{{1, 7}, 1, 0, ""});
  CHECK(keeper.At(5, AgentAsked{1, StartOf(2)}).back() ==
        "tell 1 2#7 failed: 1 exits of workers wait for a coordinator to take them, which is the limit");
  keeper.At(6, AgentConnected{2});
  CHECK(keeper.At(7, AgentAsked{1, ForgetOf(1, 7)}).empty());  // of the earlier connection
  CHECK(keeper.At(7, AgentLeft{1}).empty());
  CHECK(keeper.At(8, ChildEnded{{0, 7}, 0, 9, ""}).back() == "tell 2 0#7 ended 0/9");
}

TEST_CASE("keeper: a start that fails is told, and leaves the device free") {
  KeptCore keeper;
  keeper.At(0, AgentConnected{1});
  keeper.At(0, AgentAsked{1, StartOf(0)});
  CHECK(keeper.At(0, ChildFailed{TestWorker(0), absl::NotFoundError("no such program")}) ==
        Lines{"tell 1 0#7 failed: no such program"});
  CHECK(keeper.At(1, AgentAsked{1, StartOf(0)}) == Lines{"spawn 0#7"});
  CHECK(keeper.At(1, StartedAs(0, 100)) == Lines{"save 1+0", "release 0#7"});
  CHECK(keeper.At(1, ChildFailed{TestWorker(0), absl::NotFoundError("not a program")}) ==
        Lines{"save 0+0", "tell 1 0#7 failed: not a program"});
  CHECK(keeper.At(2, AgentAsked{1, StartOf(0)}) == Lines{"spawn 0#7"});
}

TEST_CASE("keeper: it leaves when it has kept nothing for its time, and not before") {
  const KeeperCoreOptions options{.idle_ns = 60 * kS};
  KeptCore unused(options);
  CHECK(unused.core().next_deadline_ns() == 60 * kS);
  CHECK(unused.At(60 * kS - 1, Tick{}).empty());
  CHECK(unused.At(60 * kS, Tick{}) == Lines{"leave"});

  KeptCore keeper(options);
  keeper.At(0, AgentConnected{1});
  CHECK(keeper.At(600 * kS, Tick{}).empty());
  keeper.At(600 * kS, AgentAsked{1, StartOf(0)});
  keeper.Begin(600 * kS, 0, 100);
  keeper.At(601 * kS, AgentLeft{1});
  CHECK(keeper.At(1000 * kS, Tick{}).empty());
  keeper.At(1001 * kS, ChildEnded{{0, 7}, 0, 0, ""});
  CHECK(keeper.At(1500 * kS, Tick{}).empty());  // nobody has taken the exit
  keeper.At(1500 * kS, AgentConnected{2});
  keeper.At(1500 * kS, AgentAsked{2, ForgetOf(0, 7)});
  keeper.At(1501 * kS, AgentLeft{2});
  CHECK(keeper.core().next_deadline_ns() == 1561 * kS);
  CHECK(keeper.At(1560 * kS, Tick{}).empty());
  CHECK(keeper.At(1561 * kS, Tick{}) == Lines{"leave"});
}

TEST_CASE("keeper: it leaves exits that no agent asks for to the next one, as soon as they are in the table") {
  KeptCore keeper({.rest_ns = 600 * kS});
  keeper.At(0, AgentConnected{1});
  keeper.At(0, AgentAsked{1, StartOf(0)});
  keeper.Begin(0, 0, 100);
  keeper.At(kS, ChildEnded{{0, 7}, 3, 0, ""});
  CHECK(keeper.At(1000 * kS, Tick{}).empty());  // its agent may still ask
  keeper.At(1000 * kS, AgentLeft{1});
  CHECK(keeper.core().next_deadline_ns() == 1600 * kS);
  CHECK(keeper.At(1600 * kS, Tick{}) == Lines{"save 0+1", "leave"});
  CHECK(keeper.At(1600 * kS, MustStay{}).empty());
  CHECK(keeper.core().next_deadline_ns() == 2200 * kS);
  CHECK(keeper.At(2200 * kS, Tick{}) == Lines{"save 0+1", "leave"});
  CHECK(keeper.At(2300 * kS, Tick{}).empty());
  keeper.At(2300 * kS, AgentConnected{2});  // while its table is written
  keeper.At(2300 * kS, AgentLeft{2});
  CHECK(keeper.At(2900 * kS, Tick{}) == Lines{"save 0+1", "leave"});
}

TEST_CASE("keeper: without its folder it leaves as soon as nothing runs and nobody asks") {
  KeptCore keeper;
  keeper.At(0, AgentConnected{1});
  keeper.Remember(0, 7);
  CHECK(keeper.At(0, FolderSeen{false}).empty());
  keeper.At(kS, AgentLeft{1});
  CHECK(keeper.At(2 * kS, Tick{}).empty());
  const bool is_back = GENERATE(false, true);
  CHECK(keeper.At(3 * kS, FolderSeen{is_back}).empty());
  const Lines ends = keeper.At(4 * kS, ChildEnded{{0, 7}, 0, SIGKILL, ""});  // and leaves memory
  CHECK(ends == (is_back ? Lines{"save 0+1"} : Lines{"save 0+1", "leave"}));
}

TEST_CASE("keeper: told to end it starts nothing any more, says so, and leaves when its workers have") {
  KeptCore keeper({.leave_grace_ns = 90 * kS, .kill_grace_ns = 5 * kS});
  keeper.At(0, AgentConnected{1});
  keeper.Remember(0, 7);
  CHECK(keeper.At(10 * kS, ToldToLeave{}) == Lines{"log", "tell 1 leaving within 90 s"});
  CHECK(keeper.At(20 * kS, ToldToLeave{}).empty());
  CHECK(keeper.At(21 * kS, AgentAsked{1, StartOf(1)}) ==
        Lines{"log", "tell 1 1#7 failed: this node goes down: its keeper was told to end"});
  CHECK(keeper.At(30 * kS, AgentConnected{2}) ==
        Lines{"tell 2 0#7 runs as 100", "tell 2 leaving within 70 s", "tell 2 listed"});
  CHECK(keeper.core().next_deadline_ns() == 100 * kS);
  SECTION("by themselves") {
    CHECK(keeper.At(40 * kS, ChildEnded{{0, 7}, 0, 0, ""}) ==
          Lines{"drop 0", "save 0+1", "tell 2 0#7 ended 0/0", "save 0+1", "leave"});
    CHECK(keeper.At(200 * kS, Tick{}).empty());
  }
  SECTION("by its signals") {
    CHECK(keeper.At(100 * kS - 1, Tick{}).empty());
    CHECK(keeper.At(100 * kS, Tick{}) == Lines{"signal 0#7 15"});
    if (GENERATE(false, true)) {
      CHECK(keeper.At(101 * kS, ChildEnded{{0, 7}, 0, 0, ""}) ==
            Lines{"drop 0", "save 0+1", "tell 2 0#7 ended 0/15", "save 0+1", "leave"});
      return;
    }
    CHECK(keeper.At(104 * kS, Tick{}).empty());
    CHECK(keeper.At(105 * kS, Tick{}) == Lines{"signal 0#7 9"});
    CHECK(keeper.At(200 * kS, Tick{}).empty());
    CHECK(keeper.At(200 * kS, ChildEnded{{0, 7}, 0, SIGKILL, ""}).back() == "leave");
  }
}

TEST_CASE("keeper: told to end while nothing runs it leaves at once") {
  KeptCore keeper;
  keeper.At(0, AgentConnected{1});
  CHECK(keeper.At(kS, ToldToLeave{}) == Lines{"log", "tell 1 leaving within 90 s", "leave"});
}

TEST_CASE("keeper: the memory of a worker that is killed or fails is handed on to the next one of its job") {
  KeptCore keeper;
  keeper.At(0, AgentConnected{1});
  CHECK(keeper.Remember(0, 7) == Lines{"spawn 0#7"});
  CHECK(keeper.At(1, ChildEnded{{0, 7}, 0, SIGKILL, ""}) == Lines{"save 0+1", "tell 1 0#7 ended 0/9"});
  CHECK(keeper.Remember(2, 8) == Lines{"spawn 0#8 with memory"});
  keeper.At(3, ChildEnded{{0, 8}, 3, 0, ""});
  CHECK(keeper.Remember(4, 9) == Lines{"spawn 0#9 with memory"});
  keeper.At(5, ChildEnded{{0, 9}, kUnknownExitCode, 0, ""});
  CHECK(keeper.Remember(6, 10) == Lines{"spawn 0#10 with memory"});
  CHECK(keeper.At(7 * 3600 * kS, Tick{}).empty());  // it runs: no time is too long
  keeper.At(7 * 3600 * kS, ChildEnded{{0, 10}, 3, 0, ""});
  CHECK(keeper.At(8 * 3600 * kS, AgentAsked{1, StartOf(1, 11)}) == Lines{"spawn 1#11"});  // another device
}

TEST_CASE("keeper: memory is let go of with a worker that was told to stop, for another job, and after an hour") {
  KeptCore keeper;
  keeper.At(0, AgentConnected{1});
  keeper.Remember(0, 7);
  CHECK(keeper.At(1, ChildEnded{{0, 7}, 0, 0, ""}) == Lines{"drop 0", "save 0+1", "tell 1 0#7 ended 0/0"});
  CHECK(keeper.Remember(2, 8) == Lines{"spawn 0#8"});
  keeper.At(3, ChildEnded{{0, 8}, 0, SIGKILL, ""});
  CHECK(keeper.Remember(4, 9, "other") == Lines{"drop 0", "spawn 0#9"});
  keeper.At(5, ChildEnded{{0, 9}, 0, SIGKILL, ""});
  CHECK(keeper.Remember(6, 10) == Lines{"drop 0", "spawn 0#10"});
  keeper.At(kS, ChildEnded{{0, 10}, 0, SIGKILL, ""});
  CHECK(keeper.core().next_deadline_ns() == 3601 * kS);
  CHECK(keeper.At(3601 * kS - 1, Tick{}).empty());
  CHECK(keeper.At(3601 * kS, Tick{}) == Lines{"drop 0"});
  CHECK(keeper.At(3602 * kS, Tick{}).empty());
  CHECK(keeper.Remember(3602 * kS, 11) == Lines{"spawn 0#11"});
  keeper.At(3603 * kS, ChildEnded{{0, 11}, 0, SIGKILL, ""});
  v1::KeeperRequest earlier = StartOf(0, 12);  // of an earlier agent: its program does not know the flag
  earlier.mutable_start()->clear_takes_memory();
  CHECK(keeper.At(3604 * kS, AgentAsked{1, earlier}) == Lines{"drop 0", "spawn 0#12"});
}

TEST_CASE("keeper: a start that fails costs no memory that an earlier worker has left, and leaves none of its own") {
  KeptCore keeper;
  keeper.At(0, AgentConnected{1});
  keeper.At(0, AgentAsked{1, StartOf(0)});
  keeper.At(0, StartedAs(0, 100, 7, "tiny", 9));
  CHECK(keeper.At(0, ChildFailed{TestWorker(0), absl::NotFoundError("no")}) ==
        Lines{"drop 0", "save 0+0", "tell 1 0#7 failed: no"});
  keeper.Remember(1, 8);
  keeper.At(2, ChildEnded{{0, 8}, 0, SIGKILL, ""});
  CHECK(keeper.At(3, AgentAsked{1, StartOf(0, 9)}) == Lines{"spawn 0#9 with memory"});
  CHECK(keeper.At(3, ChildFailed{TestWorker(0, 9), absl::NotFoundError("no")}) == Lines{"tell 1 0#9 failed: no"});
  CHECK(keeper.At(4, AgentAsked{1, StartOf(0, 10)}) == Lines{"spawn 0#10 with memory"});
  keeper.At(4, StartedAs(0, 100, 10, "tiny", 9));
  CHECK(keeper.At(4, ChildFailed{TestWorker(0, 10), absl::NotFoundError("no")}) ==
        Lines{"save 0+1", "tell 1 0#10 failed: no"});
  CHECK(keeper.Remember(5, 11) == Lines{"spawn 0#11 with memory"});
}

TEST_CASE("keeper: it does not leave while it holds memory") {
  KeptCore keeper({.idle_ns = 60 * kS, .kept_memory_ns = 600 * kS});
  keeper.At(0, AgentConnected{1});
  keeper.Remember(0, 7);
  keeper.At(kS, ChildEnded{{0, 7}, 0, SIGKILL, ""});
  keeper.At(kS, AgentAsked{1, ForgetOf(0, 7)});
  keeper.At(kS, AgentLeft{1});
  CHECK(keeper.core().next_deadline_ns() == 601 * kS);
  CHECK(keeper.At(600 * kS, Tick{}).empty());
  CHECK(keeper.At(601 * kS, Tick{}) == Lines{"drop 0"});
  CHECK(keeper.core().next_deadline_ns() == 661 * kS);
  CHECK(keeper.At(661 * kS, Tick{}) == Lines{"leave"});
}

TEST_CASE("keeper: the memory of an earlier keeper's worker is handed on, unless it could not be taken over") {
  const bool lost = GENERATE(false, true);
  v1::KeeperTable table;
  *table.add_running() = StartedAs(0, 100, 7, "tiny", 9).child;
  KeptCore keeper({}, table);
  if (lost) {
    CHECK(keeper.At(0, MemoryLost{{0, 6}}).empty());  // of another
    CHECK(keeper.At(0, MemoryLost{{0, 7}}).empty());
  }
  keeper.At(0, AgentConnected{1});
  keeper.At(1, ChildEnded{{0, 7}, kUnknownExitCode, 0, ""});
  CHECK(keeper.Remember(2, 8) == Lines{lost ? "spawn 0#8" : "spawn 0#8 with memory"});
}

TEST_CASE("keeper: memory that the agent holds is taken where none is, and handed on or let go of") {
  KeptCore keeper;
  keeper.At(0, AgentConnected{1});
  v1::KeeperRequest held;
  held.mutable_held()->set_device(0);
  held.mutable_held()->set_job("tiny");
  held.mutable_held()->set_fd(12);
  CHECK(keeper.At(0, AgentAsked{1, held}) == Lines{"take 0 from 12"});
  CHECK(keeper.At(0, AgentAsked{1, held}).empty());  // it has it
  SECTION("handed on to the next of its job") { CHECK(keeper.Remember(1, 8) == Lines{"spawn 0#8 with memory"}); }
  SECTION("it could not be taken") {
    CHECK(keeper.At(0, MemoryGone{0}).empty());
    CHECK(keeper.Remember(1, 8) == Lines{"spawn 0#8"});
    CHECK(keeper.At(2, AgentAsked{1, held}).empty());  // the worker that runs has some of its own
  }
  SECTION("let go of after its time") { CHECK(keeper.At(3600 * kS, Tick{}) == Lines{"drop 0"}); }
}

TEST_CASE("keeper: all workers of a run execute the program that the first of them executed") {
  KeptCore keeper;
  keeper.At(0, AgentConnected{1});
  CHECK(keeper.Run(0, 0, 7, 1) == Lines{"spawn 0#7, opened"});
  CHECK(keeper.Run(0, 1, 7, 1) == Lines{"spawn 1#7, kept"});
  CHECK(keeper.Run(0, 2, 7, 0) == Lines{"spawn 2#7"});          // of an agent that does not tell the run
  CHECK(keeper.Run(0, 3, 7, 2) == Lines{"spawn 3#7, opened"});  // another run of the job
  CHECK(keeper.Run(0, 4, 7, 1, "other") == Lines{"spawn 4#7, opened"});
  CHECK(keeper.End(kS, 0, 7, 0, SIGKILL).empty());
  CHECK(keeper.Run(7 * 3600 * kS, 0, 8, 1) == Lines{"spawn 0#8, kept"});  // the other one runs: no time is too long
  CHECK(keeper.End(7 * 3600 * kS, 0, 8, 0, SIGKILL).empty());
  CHECK(keeper.End(7 * 3600 * kS, 1, 7, 3).empty());
  CHECK(keeper.Run(8 * 3600 * kS - 1, 1, 9, 1) == Lines{"spawn 1#9, kept"});
  CHECK(keeper.core().programs().size() == 3);
}

TEST_CASE("keeper: the program of a run is let go of when others have taken its devices, and after an hour") {
  KeptCore keeper;
  keeper.At(0, AgentConnected{1});
  keeper.Run(0, 0, 7, 1);
  keeper.Run(0, 1, 7, 1);
  keeper.End(0, 0, 7, 0, SIGKILL);
  CHECK(keeper.Run(0, 0, 8, 2) == Lines{"spawn 0#8, opened"});  // the other device is still its own
  keeper.End(kS, 1, 7, 0, SIGKILL);
  SECTION("others have taken its devices") {
    CHECK(keeper.Run(2 * kS, 1, 9, 0, "other") == Lines{"close tiny:1", "spawn 1#9"});
    keeper.End(3 * kS, 1, 9, 0, SIGKILL);
    CHECK(keeper.Run(3 * kS, 1, 10, 1) == Lines{"spawn 1#10, opened"});
  }
  SECTION("an hour has passed") {
    CHECK(keeper.core().next_deadline_ns() == 3601 * kS);
    CHECK(keeper.At(3601 * kS - 1, Tick{}).empty());
    CHECK(keeper.At(3601 * kS, Tick{}) == Lines{"close tiny:1"});
    CHECK(keeper.At(3602 * kS, Tick{}).empty());
    CHECK(keeper.Run(3602 * kS, 1, 9, 1) == Lines{"spawn 1#9, opened"});
  }
}

TEST_CASE("keeper: a program with which no worker of the run came up is not kept") {
  KeptCore keeper({.proving_ns = 10 * kS});
  keeper.At(0, AgentConnected{1});
  SECTION("it cannot be executed") {
    keeper.At(0, AgentAsked{1, StartOf(0, 7, "tiny", 1)});
    keeper.At(0, AgentAsked{1, StartOf(1, 7, "tiny", 1)});
    CHECK(keeper.At(0, ChildFailed{TestWorker(0), absl::InternalError("no")}) == Lines{"tell 1 0#7 failed: no"});
    CHECK(keeper.At(0, ChildFailed{TestWorker(1), absl::InternalError("no")}) ==
          Lines{"close tiny:1", "tell 1 1#7 failed: no"});
  }
  SECTION("its worker ends with an error at once") {
    keeper.Run(0, 0, 7, 1);
    CHECK(keeper.End(10 * kS - 1, 0, 7, 127) == Lines{"close tiny:1"});
  }
  CHECK(keeper.Run(20 * kS, 0, 8, 1) == Lines{"spawn 0#8, opened"});
  CHECK(keeper.End(30 * kS, 0, 8, 1).empty());  // it has come up
  CHECK(keeper.Run(30 * kS, 0, 9, 1) == Lines{"spawn 0#9, kept"});
  CHECK(keeper.End(31 * kS, 0, 9, 1).empty());
  keeper.At(31 * kS, AgentAsked{1, StartOf(0, 10, "tiny", 1)});
  CHECK(keeper.At(31 * kS, ChildFailed{TestWorker(0, 10), absl::InternalError("no")}) ==
        Lines{"tell 1 0#10 failed: no"});
  CHECK(keeper.Run(32 * kS, 0, 11, 1) == Lines{"spawn 0#11, kept"});
}

TEST_CASE("keeper: a worker that is killed at once has shown nothing of its program, which is kept") {
  KeptCore keeper;
  keeper.At(0, AgentConnected{1});
  keeper.Run(0, 0, 7, 1);
  CHECK(keeper.End(1, 0, 7, 0, SIGKILL).empty());
  CHECK(keeper.Run(2, 0, 8, 1) == Lines{"spawn 0#8, kept"});
}

TEST_CASE("keeper: the number of programs that are kept is bounded") {
  KeptCore keeper({.max_programs = 2});
  keeper.At(0, AgentConnected{1});
  keeper.Run(0, 0, 7, 1);
  keeper.Run(0, 1, 7, 2);
  CHECK(keeper.Run(0, 2, 7, 3) == Lines{"spawn 2#7"});  // both have workers
  keeper.End(1, 1, 7, 0, SIGKILL);
  keeper.End(2, 0, 7, 0, SIGKILL);
  CHECK(keeper.Run(3, 3, 7, 4) == Lines{"close tiny:2", "spawn 3#7, opened"});
  CHECK(keeper.Run(4, 0, 8, 1) == Lines{"spawn 0#8, kept"});
}

TEST_CASE("keeper: the program of an earlier keeper's worker is kept on, unless it could not be taken over") {
  v1::KeeperTable table;
  for (const int32_t device : {0, 1}) {
    v1::KeptWorker& child = *table.add_running();
    child = StartedAs(device, 100 + device).child;
    child.set_run_incarnation(1);
    child.set_program_inode(device == 0 ? 12 : 0);  // for that of device 1 none was kept
  }
  KeptCore keeper({}, table);
  CHECK(keeper.core().programs() == std::vector<RunKey>{{"tiny", 1}});
  const bool lost = GENERATE(false, true);
  if (lost) {
    CHECK(keeper.At(0, ProgramLost{{"tiny", 1}}).empty());
  }
  keeper.At(0, AgentConnected{1});
  CHECK(keeper.End(1, 0, 7, kUnknownExitCode).empty());
  CHECK(keeper.Run(2, 0, 8, 1) == Lines{lost ? "spawn 0#8, opened" : "spawn 0#8, kept"});
}

TEST_CASE("keeper: the table says of which run a worker is, and what it executes") {
  KeeperCore core(0, {}, {});
  core.Step(0, AgentConnected{1});
  core.Step(0, AgentAsked{1, StartOf(0, 7, "tiny", 5)});
  ChildStarted started = StartedAs(0, 100);
  started.child.set_program_device(3);
  started.child.set_program_inode(12);
  const KeeperEffects effects = core.Step(0, started);
  const v1::KeptWorker& child = std::get<SaveTable>(effects.at(0)).table.running(0);
  CHECK(child.run_incarnation() == 5);
  CHECK(child.program_device() == 3);
  CHECK(child.program_inode() == 12);
}

TEST_CASE("keeper: a ping is answered") {
  KeptCore keeper;
  keeper.At(0, AgentConnected{1});
  v1::KeeperRequest ping;
  ping.mutable_ping()->set_sequence(3);
  CHECK(keeper.At(0, AgentAsked{1, ping}) == Lines{"tell 1 pong 3"});
}

// A machine whose keepers are killed between any two effects, and follow each other.
class KeptMachine {
 public:
  explicit KeptMachine(std::mt19937_64& random) : random_(random) {}

  void RandomEvent() {
    const auto device = static_cast<int32_t>(random_() % 3);
    switch (random_() % 7) {
      case 6:
        now_ns_ += static_cast<int64_t>(random_() % 2400) * kS;
        return Pass();
      case 0:
        return Take(AgentConnected{++connection_});
      case 1:
      case 2:
        installed_ += random_() % 4 == 0 ? 1 : 0;  // an upgrade
        return Take(AgentAsked{connection_, StartOf(device, random_() % 4 == 0 ? incarnation_ : ++incarnation_,
                                                    random_() % 4 == 0 ? "other" : "tiny", random_() % 3)});
      case 3:
        return End(device);
      case 4:
        return ForgetAll();
      default:
        return Kill();
    }
  }

  void Check() const {
    REQUIRE_FALSE(waiting_.has_value());
    for (const v1::KeptWorker& child : table_.running()) {
      REQUIRE(alive_.at(child.worker().device()) == child.worker().incarnation());
    }
    for (const auto& [device, incarnation] : alive_) {
      REQUIRE(IsInTable(device, incarnation));
    }
    for (const auto& [device, incarnation] : told_) {
      REQUIRE(IsInTable(device, incarnation));
    }
    std::vector<RunKey> open;
    for (const auto& [run, program] : programs_) {
      open.push_back(run);
    }
    REQUIRE(core_->programs() == open);
    REQUIRE(memory_.size() == left_.size());
    for (const auto& [device, left] : left_) {
      REQUIRE(memory_.at(device) == left.job);
    }
  }

  int64_t killed_at_gate() const { return killed_at_gate_; }
  int64_t handed_on() const { return handed_on_; }
  int64_t of_before() const { return of_before_; }

 private:
  // Program that a worker executes.
  struct Executed {
    RunKey run;
    uint64_t program = 0;  // number of the upgrade
  };

  // Hold expected on a device.
  struct Left {
    std::string job;
    int64_t until_ns = std::numeric_limits<int64_t>::max();  // while its worker runs
  };

  bool IsInTable(int32_t device, uint64_t incarnation) const {
    const auto is_it = [&](const auto& entry) {
      return entry.worker().device() == device && entry.worker().incarnation() == incarnation;
    };
    return std::ranges::any_of(table_.running(), is_it) || std::ranges::any_of(table_.ended(), is_it);
  }

  // Takes the event and all answers to its effects.
  void Take(KeeperEvent first) {
    events_.push_back(std::move(first));
    TakeAll();
  }

  void TakeAll() {
    while (!events_.empty()) {
      const KeeperEvent event = std::move(events_.front());
      events_.pop_front();
      for (const KeeperEffect& effect : core_->Step(now_ns_, event)) {
        if (random_() % 64 == 0) {
          return Kill();
        }
        std::visit([this](const auto& e) { Carry(e); }, effect);
      }
    }
  }

  // The next keeper finds the workers in the table, and which of them no longer run.
  void Kill() {
    killed_at_gate_ += waiting_.has_value() ? 1 : 0;
    waiting_.reset();
    events_.clear();
    const v1::KeeperTable left = table_;
    core_ = std::make_unique<KeeperCore>(now_ns_, KeeperCoreOptions{}, left);
    programs_.clear();
    for (const v1::KeptWorker& child : left.running()) {
      const int32_t device = child.worker().device();
      if (child.run_incarnation() != 0 && alive_.contains(device) &&
          alive_.at(device) == child.worker().incarnation()) {
        programs_[executed_.at(device).run] = executed_.at(device).program;
      }
    }
    std::erase_if(memory_, [&](const auto& entry) { return !alive_.contains(entry.first); });
    std::erase_if(left_, [&](const auto& entry) { return !alive_.contains(entry.first); });
    for (const v1::KeptWorker& child : left.running()) {
      const v1::WorkerId& id = child.worker();
      const auto at = alive_.find(id.device());
      if (at == alive_.end() || at->second != id.incarnation()) {
        events_.emplace_back(MemoryLost{{id.device(), id.incarnation()}});
        events_.emplace_back(ChildEnded{{id.device(), id.incarnation()}, kUnknownExitCode, 0, ""});
      }
    }
    for (const RunKey& run : core_->programs()) {
      if (!programs_.contains(run)) {
        events_.emplace_back(ProgramLost{run});
      }
    }
    TakeAll();
  }

  void Carry(const Spawn& e) {
    const v1::WorkerId& id = e.start.worker();
    REQUIRE_FALSE(alive_.contains(id.device()));
    if (const auto left = left_.find(id.device()); left != left_.end() && left->second.job != id.job()) {
      left_.erase(left);
    }
    REQUIRE(e.hands_memory_on == left_.contains(id.device()));
    REQUIRE(e.hands_memory_on == memory_.contains(id.device()));
    handed_on_ += e.hands_memory_on ? 1 : 0;
    const RunKey run{id.job(), e.start.run_incarnation()};
    if (e.program == Spawn::Program::kOpened) {
      REQUIRE(programs_.emplace(run, installed_).second);
    }
    REQUIRE(programs_.contains(run) == (e.program != Spawn::Program::kInstalled));
    executed_[id.device()] = {run, programs_.contains(run) ? programs_.at(run) : installed_};
    of_before_ += executed_.at(id.device()).program != installed_ ? 1 : 0;
    for (const auto& [device, incarnation] : alive_) {
      const Executed& other = executed_.at(device);
      REQUIRE((run.incarnation == 0 || other.run != run || other.program == executed_.at(id.device()).program));
    }
    if (random_() % 8 == 0) {
      events_.emplace_back(ChildFailed{id, absl::InternalError("no")});
    } else {
      memory_[id.device()] = id.job();
      waiting_ = id;
      ChildStarted started = StartedAs(id.device(), 1, id.incarnation(), id.job(), 9);
      started.child.set_program_inode(e.program == Spawn::Program::kInstalled ? 0 : 1);
      events_.emplace_back(std::move(started));
    }
  }
  void Carry(const ReleaseChild& e) {
    REQUIRE(waiting_.has_value());
    const v1::WorkerId id = *std::exchange(waiting_, std::nullopt);
    REQUIRE(WorkerKey{id.device(), id.incarnation()} == e.worker);
    REQUIRE(IsInTable(id.device(), id.incarnation()));  // before it executes its program
    if (random_() % 8 == 0) {
      events_.emplace_back(ChildFailed{id, absl::InternalError("no")});
    } else {
      alive_[id.device()] = id.incarnation();
      left_[id.device()] = {.job = id.job()};
      events_.emplace_back(ChildReleased{e.worker});
    }
  }
  static void Carry(const TakeMemory& /*e*/) { FAIL("nobody offers memory"); }
  void Carry(const DropMemory& e) { REQUIRE(memory_.erase(e.device) == 1); }
  void Carry(const DropProgram& e) { REQUIRE(programs_.erase(e.run) == 1); }
  void Carry(const SaveTable& e) { table_ = e.table; }
  void Carry(const TellAgent& e) {
    REQUIRE(e.connection == connection_);
    if (e.news.has_running()) {
      const v1::WorkerId& id = e.news.running().worker();
      REQUIRE(IsInTable(id.device(), id.incarnation()));  // before it is told
      REQUIRE(alive_.at(id.device()) == id.incarnation());
      told_.emplace(id.device(), id.incarnation());
    }
  }
  template <class Other>
  void Carry(const Other& /*e*/) {}

  void End(int32_t device) {
    if (const auto at = alive_.find(device); at != alive_.end()) {
      const WorkerKey key{device, at->second};
      alive_.erase(at);
      const bool told_to_stop = random_() % 4 == 0;
      if (told_to_stop) {
        left_.erase(device);
      } else {
        left_.at(device).until_ns = now_ns_ + KeeperCoreOptions{}.kept_memory_ns;
      }
      Take(ChildEnded{key, 0, told_to_stop ? 0 : SIGKILL, ""});
    }
  }

  void Pass() {
    std::erase_if(left_, [&](const auto& entry) { return entry.second.until_ns <= now_ns_; });
    Take(Tick{});
  }

  void ForgetAll() {
    const v1::KeeperTable before = table_;
    for (const v1::WorkerExit& exit : before.ended()) {
      told_.erase({exit.worker().device(), exit.worker().incarnation()});
      Take(AgentAsked{connection_, ForgetOf(exit.worker().device(), exit.worker().incarnation())});
    }
  }

  std::mt19937_64& random_;
  v1::KeeperTable table_;                        // on disk
  std::optional<v1::WorkerId> waiting_;          // at its gate
  std::map<int32_t, uint64_t> alive_;            // execute their program
  std::set<std::pair<int32_t, uint64_t>> told_;  // started, and not forgotten
  std::map<int32_t, std::string> memory_;        // by device, the job whose memory the keeper holds
  std::map<int32_t, Left> left_;
  std::map<int32_t, Executed> executed_;  // by device, of the worker that was spawned last
  std::map<RunKey, uint64_t> programs_;   // that the keeper has open
  uint64_t installed_ = 0;
  int64_t of_before_ = 0;
  std::deque<KeeperEvent> events_;
  std::unique_ptr<KeeperCore> core_ = std::make_unique<KeeperCore>(0, KeeperCoreOptions{}, v1::KeeperTable());
  KeeperConnection connection_ = 0;
  uint64_t incarnation_ = 0;
  int64_t now_ns_ = 0;
  int64_t killed_at_gate_ = 0;
  int64_t handed_on_ = 0;
};

TEST_CASE("keeper: whatever comes, the next one knows what this one has told") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  int64_t killed_at_gate = 0;
  int64_t handed_on = 0;
  int64_t of_before = 0;
  for (int run = 0; run < 200; ++run) {
    KeptMachine machine(random);
    for (int i = 0; i < 100; ++i) {
      machine.RandomEvent();
      machine.Check();
    }
    killed_at_gate += machine.killed_at_gate();
    handed_on += machine.handed_on();
    of_before += machine.of_before();
  }
  CHECK(killed_at_gate > 0);
  CHECK(handed_on > 50);
  CHECK(of_before > 50);
}

}  // namespace
}  // namespace geopipe::agent
