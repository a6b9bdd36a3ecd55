#include "agent/keeper_core.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <csignal>
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
  KeeperCore& core() { return core_; }

 private:
  KeeperCore core_;
};

TEST_CASE("keeper: started, told, ended, kept until it is forgotten") {
  KeptCore keeper;
  CHECK(keeper.At(0, AgentConnected{1}) == Lines{"tell 1 listed"});
  CHECK(keeper.At(1, AgentAsked{1, StartOf(0)}) == Lines{"spawn 0#7"});
  CHECK(keeper.At(1, StartedAs(0, 100)) == Lines{"save 1+0", "tell 1 0#7 runs as 100"});
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
  keeper.At(0, StartedAs(0, 100));
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
  keeper.At(2, StartedAs(1, 101));
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
  keeper.At(600 * kS, StartedAs(0, 100));
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

TEST_CASE("keeper: whatever comes, the next one knows what this one has told") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (int run = 0; run < 200; ++run) {
    v1::KeeperTable table;                        // on disk
    std::map<int32_t, uint64_t> alive;            // processes of the machine
    std::set<std::pair<int32_t, uint64_t>> told;  // started, and not forgotten
    auto core = std::make_unique<KeeperCore>(0, KeeperCoreOptions{}, table);
    KeeperConnection connection = 0;
    uint64_t incarnation = 0;
    const auto step = [&](KeeperEvent first) {
      std::vector<KeeperEvent> events;
      events.push_back(std::move(first));
      while (!events.empty()) {
        const KeeperEvent event = std::move(events.back());
        events.pop_back();
        for (const KeeperEffect& effect : core->Step(0, event)) {
          if (const auto* spawn = std::get_if<Spawn>(&effect)) {
            const v1::WorkerId& id = spawn->start.worker();
            REQUIRE_FALSE(alive.contains(id.device()));
            if (random() % 8 == 0) {
              events.emplace_back(ChildFailed{id, absl::InternalError("no")});
            } else {
              alive[id.device()] = id.incarnation();
              events.emplace_back(StartedAs(id.device(), 1, id.incarnation()));
            }
          } else if (const auto* save = std::get_if<SaveTable>(&effect)) {
            table = save->table;
          } else if (const auto* tell = std::get_if<TellAgent>(&effect)) {
            REQUIRE(tell->connection == connection);
            if (tell->news.has_running()) {
              told.emplace(tell->news.running().worker().device(), tell->news.running().worker().incarnation());
            }
          }
        }
      }
    };
    for (int i = 0; i < 100; ++i) {
      const auto device = static_cast<int32_t>(random() % 3);
      switch (random() % 6) {
        case 0:
          step(AgentConnected{++connection});
          break;
        case 1:
        case 2:
          step(AgentAsked{connection, StartOf(device, random() % 4 == 0 ? incarnation : ++incarnation)});
          break;
        case 3:
          if (const auto at = alive.find(device); at != alive.end()) {
            const WorkerKey key{device, at->second};
            alive.erase(at);
            step(ChildEnded{key, 0, SIGKILL, ""});
          }
          break;
        case 4: {
          const v1::KeeperTable before = table;
          for (const v1::WorkerExit& exit : before.ended()) {
            told.erase({exit.worker().device(), exit.worker().incarnation()});
            step(AgentAsked{connection, ForgetOf(exit.worker().device(), exit.worker().incarnation())});
          }
          break;
        }
        default:  // killed, and followed by another
          core = std::make_unique<KeeperCore>(0, KeeperCoreOptions{}, table);
      }
      std::set<std::pair<int32_t, uint64_t>> known;
      for (const v1::KeptWorker& child : table.running()) {
        known.emplace(child.worker().device(), child.worker().incarnation());
        REQUIRE(alive.at(child.worker().device()) == child.worker().incarnation());
      }
      for (const v1::WorkerExit& exit : table.ended()) {
        known.emplace(exit.worker().device(), exit.worker().incarnation());
      }
      for (const auto& key : told) {
        REQUIRE(known.contains(key));
      }
    }
  }
}

}  // namespace
}  // namespace geopipe::agent
