// Random events against a model of the world: a coordinator that comes and goes, workers that attach, report, break
// off, die. What must always hold is listed in agent/agent.h.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <deque>
#include <map>
#include <random>
#include <set>

#include "agent/agent.h"
#include "tests/agent/agent_harness.h"
#include "tests/support/seed.h"

namespace geopipe::agent {
namespace {

constexpr int kDevices = 2;

// A worker process as the machine has it.
struct FakeProcess {
  v1::WorkerId id;
  std::optional<SessionId> session;
  bool accepted = false;
  int64_t next_iteration = 0;
};

class World {
 public:
  explicit World(uint64_t seed) : random_(seed), agent_(TestConfig(), TestOptions()) { Step(KeeperListed{}); }

  void RandomEvent() {
    now_ns_ += static_cast<int64_t>(Below(300)) * kMs;
    switch (Below(11)) {
      case 10:
        return ProbeEvent();
      case 0:
        return CoordinatorEvent();
      case 1:
        return Order();
      case 2:
      case 3:
        return WorkerEvent();
      case 4:
        return KillSome();
      case 5:
        return StaleEvent();
      case 6:
      case 7:
        return Arrive();
      default:
        return Step(Tick{});
    }
  }

  // Everything that is still open comes to its end, and is accounted for.
  void Settle() {
    for (int round = 0; round < 400 && !(agent_.fleet().empty() && agent_.link().queue().empty() && connected_);
         ++round) {
      now_ns_ += 100 * kMs;
      Step(Tick{});
      BeWelcomed();
      if (connected_) {
        Step(Stop(dialled_, kS, "a"));
        Step(Stop(dialled_, kS, "b"));
      }
      if (!processes_.empty()) {
        End(processes_.begin()->first, SIGTERM);
      }
      while (!on_wire_.empty()) {
        Arrive();
      }
    }
    CHECK(processes_.empty());
    CHECK(agent_.fleet().empty());
    CHECK(agent_.link().queue().empty());
    CHECK(unreported_.empty());
  }

  const std::vector<std::string>& history() const { return history_; }
  int64_t delivered() const { return delivered_; }
  int64_t exits() const { return exits_; }
  int64_t lost() const { return lost_; }

 private:
  size_t Below(size_t n) { return random_() % n; }

  void Step(Event event) {
    for (const Effect& effect : agent_.Step(now_ns_, std::move(event))) {
      if (!std::holds_alternative<WriteLog>(effect) && !std::holds_alternative<ReadOn>(effect)) {
        history_.push_back(fmt::format("{} ms: {}", now_ns_ / kMs, Describe(effect)));
      }
      std::visit([this](const auto& e) { Carry(e); }, effect);
    }
    CHECK((connected_ || probing_.empty()));     // nobody is there to be told
    CHECK(agent_.next_deadline_ns() > now_ns_);  // nothing that was due is left undone
    CHECK(on_wire_.size() <= 32);
  }

  void Carry(const Dial& e) {
    CHECK(!open_);
    CHECK(e.connection > dialled_);
    dialled_ = e.connection;
    open_ = true;
    on_wire_.clear();
    for (const v1::WorkerId& worker : e.hello.hello().workers()) {
      CHECK(processes_.contains(worker.device()));
    }
  }
  void Carry(const HangUp& e) {
    CHECK(open_);
    CHECK(e.connection == dialled_);
    open_ = false;
    connected_ = false;
    on_wire_.clear();
  }
  void Carry(const SendToCoordinator& e) {
    CHECK(connected_);
    CHECK(e.connection == dialled_);
    on_wire_.push_back(e.message);
  }
  // Takes a report that the coordinator hears for the first time.
  void Deliver(const v1::NodeReport& report) {
    if (report.has_worker()) {
      return Deliver(report.worker());
    }
    if (report.has_probe() || report.has_silent()) {
      return;
    }
    const v1::WorkerId& id = report.exit().worker();
    ++exits_;
    if (!unreported_.erase({id.device(), id.incarnation()})) {
      CHECK(report.exit().pid() == 0);  // a refusal: it was never started
    }
    CHECK(ended_.insert({id.device(), id.incarnation()}).second);
  }
  void Deliver(const v1::RelayedReport& report) {
    const std::pair key{report.worker().device(), report.worker().incarnation()};
    ++delivered_;
    CHECK(!ended_.contains(key));  // no report after the exit
    if (report.report().has_iteration()) {
      int64_t& last = last_iteration_.try_emplace(key, -1).first->second;
      CHECK(report.report().iteration().iteration() > last);
      last = report.report().iteration().iteration();
    }
  }
  void Carry(const StartWorker& e) {
    CHECK(!processes_.contains(e.worker.device()));
    const bool starts = Below(8) != 0;
    const std::pair key{e.worker.device(), e.worker.incarnation()};
    unreported_.insert(key);
    const WorkerKey worker{key.first, key.second};
    if (starts) {
      FakeProcess process;
      process.id = e.worker;
      processes_.emplace(key.first, std::move(process));
      later_.emplace_back(WorkerStarted{worker, 100});
    } else {
      later_.emplace_back(WorkerStartFailed{worker, absl::NotFoundError("no such program")});
    }
  }
  void Carry(const SignalWorker& e) {
    if (e.signal == SIGKILL && processes_.contains(e.worker.device)) {
      killed_.insert(e.worker.device);
    }
  }
  void Carry(const AcceptSession& e) {
    for (auto& [device, process] : processes_) {
      process.accepted = process.accepted || process.session == e.session;
    }
  }
  void Carry(const CloseSession& e) {
    for (auto& [device, process] : processes_) {
      if (process.session == e.session) {
        process.session.reset();
        process.accepted = false;
        later_.emplace_back(WorkerClosed{e.session});
      }
    }
  }
  void Carry(const StartProbe& e) {
    CHECK(connected_);
    CHECK(probing_.insert(e.order.probe()).second);
    CHECK(probing_.size() <= TestOptions().max_probes);
  }
  void Carry(const StopProbe& e) { CHECK(probing_.erase(e.probe) == 1); }
  template <class Other>
  void Carry(const Other&) {}

  // Orders and news of probes, those of none among them.
  void ProbeEvent() {
    const uint64_t probe = Below(8);
    switch (Below(5)) {
      case 0:
      case 1:
        if (connected_) {
          Step(Probe(dialled_, probe, Below(2) == 0 ? "" : "127.0.0.1:1"));
        }
        return;
      case 2:
        if (connected_) {
          Step(EndOfProbe(dialled_, probe));
        }
        return;
      case 3:
        Step(OpenedNews(probe));
        return;
      default:
        probing_.erase(probe);
        Step(Below(2) == 0 ? MeasuredNews(probe) : FailedNews(probe));
    }
  }

  void CoordinatorEvent() {
    if (Below(2) == 0) {
      BeWelcomed();
    } else if (open_ && Below(2) == 0) {
      connected_ = false;
      open_ = false;
      lost_ += static_cast<int64_t>(on_wire_.size());
      on_wire_.clear();
      Step(CoordinatorClosed{dialled_, absl::UnavailableError("gone")});
    }
  }

  void BeWelcomed() {
    if (open_ && !connected_) {
      connected_ = true;
      Step(Welcome(dialled_));
    }
  }

  void Order() {
    if (!connected_) {
      return;
    }
    const std::string job = Below(2) == 0 ? "a" : "b";
    if (Below(3) == 0) {
      Step(Stop(dialled_, static_cast<int64_t>(Below(1000)) * kMs, job));
    } else {
      std::vector<int32_t> devices;
      for (int32_t device = 0; device <= kDevices; ++device) {  // one that is not there, too
        if (Below(2) == 0) {
          devices.push_back(device);
        }
      }
      Step(Start(dialled_, devices, ++incarnation_, job));
    }
    FlushLater();
  }

  void WorkerEvent() {
    if (processes_.empty()) {
      return;
    }
    FakeProcess& process = std::next(processes_.begin(), static_cast<int64_t>(Below(processes_.size())))->second;
    const v1::WorkerId id = process.id;
    if (!process.session.has_value()) {
      process.session = ++session_;
      Step(HelloFrom(session_, id));
    } else if (process.accepted && Below(6) != 0) {
      const SessionId session = *process.session;
      const int64_t iteration = process.next_iteration++;
      Step(Below(2) == 0 ? IterationFrom(session, id, iteration) : HeartbeatFrom(session, id, iteration));
    } else {
      const SessionId session = *process.session;
      process.session.reset();
      process.accepted = false;
      Step(WorkerClosed{session});
    }
    FlushLater();
  }

  void KillSome() {
    if (!killed_.empty()) {
      End(*killed_.begin(), SIGKILL);
    } else if (!processes_.empty() && Below(3) == 0) {
      End(processes_.begin()->first, Below(2) == 0 ? SIGSEGV : 0);
    }
  }

  void End(int32_t device, int signal) {
    const FakeProcess process = processes_.at(device);
    const bool stream_first = Below(2) == 0;
    if (process.session.has_value() && stream_first) {
      Step(WorkerClosed{*process.session});
    }
    processes_.erase(device);
    killed_.erase(device);
    Step(WorkerExited{{device, process.id.incarnation()}, 100, 0, signal, ""});
    if (process.session.has_value() && !stream_first) {
      if (process.accepted) {
        Step(IterationFrom(*process.session, process.id, process.next_iteration));  // its last words
      }
      Step(WorkerClosed{*process.session});
    }
    FlushLater();
  }

  void StaleEvent() {
    Step(CoordinatorClosed{dialled_ - 1, absl::UnavailableError("old")});
    Step(Start(dialled_ - 1, {0, 1}, 1'000'000));
    Step(WorkerExited{{0, 1'000'000}, 100, 0, SIGKILL, ""});
    Step(WorkerClosed{1'000'000});
    Step(HelloFrom(1'000'001, TestWorker(0, 1'000'000, "a")));
    FlushLater();
  }

  // The oldest message on the wire reaches the coordinator, which answers.
  void Arrive() {
    if (on_wire_.empty()) {
      return;
    }
    const v1::ConnectRequest message = on_wire_.front();
    on_wire_.pop_front();
    uint64_t sequence = message.reports().first_sequence();
    for (const v1::NodeReport& report : message.reports().reports()) {
      if (sequence > taken_) {
        CHECK(sequence == taken_ + 1);
        taken_ = sequence;
        Deliver(report);
      }
      ++sequence;
    }
    Step(CoordinatorSent{dialled_});
    if (message.has_reports() && connected_) {
      v1::ConnectResponse taken;
      taken.mutable_reports_taken()->set_sequence(taken_);
      Step(CoordinatorMessage{dialled_, std::move(taken)});
    }
  }

  // Delivers the adapters' answers after the step, as the runner does.
  void FlushLater() {
    while (!later_.empty()) {
      const Event event = later_.front();
      later_.erase(later_.begin());
      if (const auto* failed = std::get_if<WorkerStartFailed>(&event)) {
        CHECK(!processes_.contains(failed->worker.device));
      }
      Step(event);
    }
  }

  std::mt19937_64 random_;
  Agent agent_;
  int64_t now_ns_ = 0;
  ConnectionId dialled_ = 0;
  bool open_ = false;                       // dialled, and not hung up on or closed
  bool connected_ = false;                  // welcomed, too
  std::deque<v1::ConnectRequest> on_wire_;  // sent, and not yet with the coordinator
  uint64_t taken_ = 0;                      // by the coordinator: number of its last report
  int64_t lost_ = 0;                        // messages, with their streams
  SessionId session_ = 0;
  uint64_t incarnation_ = 0;
  std::map<int32_t, FakeProcess> processes_;
  std::set<int32_t> killed_;
  std::set<uint64_t> probing_;
  std::vector<Event> later_;
  std::set<std::pair<int32_t, uint64_t>> unreported_;  // started, and its exit not yet sent
  std::set<std::pair<int32_t, uint64_t>> ended_;
  std::map<std::pair<int32_t, uint64_t>, int64_t> last_iteration_;
  std::vector<std::string> history_;
  int64_t delivered_ = 0;
  int64_t exits_ = 0;
};

TEST_CASE("random events: nothing is lost, duplicated, reordered or left behind") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  int64_t delivered = 0;
  int64_t exits = 0;
  int64_t lost = 0;
  for (uint64_t run = 0; run < 200; ++run) {
    World world(seed + run);
    for (int i = 0; i < 200; ++i) {
      world.RandomEvent();
    }
    world.Settle();
    delivered += world.delivered();
    exits += world.exits();
    lost += world.lost();
    if (Catch::getResultCapture().lastAssertionPassed()) {
      continue;
    }
    std::string history;
    for (const std::string& line : world.history()) {
      history += line + "\n";
    }
    FAIL("run " << run << ":\n" << history);
  }
  CHECK(delivered > 2000);  // the runs did something
  CHECK(exits > 2000);
  CHECK(lost > 100);
}

}  // namespace
}  // namespace geopipe::agent
