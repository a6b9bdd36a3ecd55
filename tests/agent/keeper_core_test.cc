#include "agent/keeper_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <deque>
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
  std::string operator()(const Spawn& e) const { return "spawn " + KeptName(e.start.worker()); }
  std::string operator()(const ReleaseChild& e) const {
    return fmt::format("release {}#{}", e.worker.device, e.worker.incarnation);
  }
  std::string operator()(const SignalChild& e) const {
    return fmt::format("signal {}#{} {}", e.worker.device, e.worker.incarnation, e.signal);
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

v1::KeeperRequest StartOf(int32_t device, uint64_t incarnation = 7) {
  v1::KeeperRequest request;
  *request.mutable_start()->mutable_worker() = TestWorker(device, incarnation);
  request.mutable_start()->set_program("/bin/worker");
  request.mutable_start()->set_log_path("/log");
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

ChildStarted StartedAs(int32_t device, int64_t pid, uint64_t incarnation = 7) {
  ChildStarted started;
  *started.child.mutable_worker() = TestWorker(device, incarnation);
  started.child.set_pid(pid);
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
  CHECK(keeper.At(2000 * kS, Tick{}).empty());  // nobody has taken the exit
  keeper.At(2000 * kS, AgentConnected{2});
  keeper.At(2000 * kS, AgentAsked{2, ForgetOf(0, 7)});
  keeper.At(2001 * kS, AgentLeft{2});
  CHECK(keeper.core().next_deadline_ns() == 2061 * kS);
  CHECK(keeper.At(2060 * kS, Tick{}).empty());
  CHECK(keeper.At(2061 * kS, Tick{}) == Lines{"leave"});
}

// A machine whose keepers are killed between any two effects, and follow each other.
class KeptMachine {
 public:
  explicit KeptMachine(std::mt19937_64& random) : random_(random) {}

  void RandomEvent() {
    const auto device = static_cast<int32_t>(random_() % 3);
    switch (random_() % 6) {
      case 0:
        return Take(AgentConnected{++connection_});
      case 1:
      case 2:
        return Take(AgentAsked{connection_, StartOf(device, random_() % 4 == 0 ? incarnation_ : ++incarnation_)});
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
  }

  int64_t killed_at_gate() const { return killed_at_gate_; }

 private:
  bool IsInTable(int32_t device, uint64_t incarnation) const {
    const auto is_it = [&](const auto& entry) {
      return entry.worker().device() == device && entry.worker().incarnation() == incarnation;
    };
    return std::ranges::any_of(table_.running(), is_it) || std::ranges::any_of(table_.ended(), is_it);
  }

  // With the answers to its effects.
  void Take(KeeperEvent first) {
    events_.push_back(std::move(first));
    while (!events_.empty()) {
      const KeeperEvent event = std::move(events_.front());
      events_.pop_front();
      for (const KeeperEffect& effect : core_->Step(0, event)) {
        if (random_() % 64 == 0) {
          return Kill();
        }
        std::visit([this](const auto& e) { Carry(e); }, effect);
      }
    }
  }

  // The next keeper finds what is in the table, and what of it does not run any more.
  void Kill() {
    killed_at_gate_ += waiting_.has_value() ? 1 : 0;
    waiting_.reset();
    events_.clear();
    const v1::KeeperTable left = table_;
    core_ = std::make_unique<KeeperCore>(0, KeeperCoreOptions{}, left);
    for (const v1::KeptWorker& child : left.running()) {
      const v1::WorkerId& id = child.worker();
      const auto at = alive_.find(id.device());
      if (at == alive_.end() || at->second != id.incarnation()) {
        events_.emplace_back(ChildEnded{{id.device(), id.incarnation()}, kUnknownExitCode, 0, ""});
      }
    }
    if (!events_.empty()) {
      KeeperEvent event = std::move(events_.front());
      events_.pop_front();
      Take(std::move(event));
    }
  }

  void Carry(const Spawn& e) {
    const v1::WorkerId& id = e.start.worker();
    REQUIRE_FALSE(alive_.contains(id.device()));
    if (random_() % 8 == 0) {
      events_.emplace_back(ChildFailed{id, absl::InternalError("no")});
    } else {
      waiting_ = id;
      events_.emplace_back(StartedAs(id.device(), 1, id.incarnation()));
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
      events_.emplace_back(ChildReleased{e.worker});
    }
  }
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
      Take(ChildEnded{key, 0, SIGKILL, ""});
    }
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
  std::deque<KeeperEvent> events_;
  std::unique_ptr<KeeperCore> core_ = std::make_unique<KeeperCore>(0, KeeperCoreOptions{}, v1::KeeperTable());
  KeeperConnection connection_ = 0;
  uint64_t incarnation_ = 0;
  int64_t killed_at_gate_ = 0;
};

TEST_CASE("keeper: whatever comes, the next one knows what this one has told") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  int64_t killed_at_gate = 0;
  for (int run = 0; run < 200; ++run) {
    KeptMachine machine(random);
    for (int i = 0; i < 100; ++i) {
      machine.RandomEvent();
      machine.Check();
    }
    killed_at_gate += machine.killed_at_gate();
  }
  CHECK(killed_at_gate > 0);
}

}  // namespace
}  // namespace geopipe::agent
