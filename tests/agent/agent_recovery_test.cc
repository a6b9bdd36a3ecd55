// Kills agents at any instant, between a model of the coordinator, models of the workers and a real keeper's core.
// Every message travels on its own and may be lost with its stream or its process. Rules: everything numbered arrives,
// in order; an exit is reported, and forgotten only then; orders are carried out; a device has one worker.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>

#include "agent/agent.h"
#include "agent/keeper_core.h"
#include "tests/agent/agent_harness.h"
#include "tests/support/seed.h"

namespace geopipe::agent {
namespace {

using TownKey = std::pair<int32_t, uint64_t>;  // device, incarnation

TownKey TownKeyOf(const v1::WorkerId& id) { return {id.device(), id.incarnation()}; }

constexpr int32_t kTownDevices = 2;

struct Faults {
  bool agents = true;  // killed between any two effects
  bool streams = true;
  bool keepers = true;
  bool coordinators = true;
};

class Town {
 public:
  Town(uint64_t seed, const Faults& faults) : random_(seed), faults_(faults) {
    NewKeeper();
    NewAgent();
  }

  void RandomEvent() {
    now_ns_ += static_cast<int64_t>(Below(30)) * kMs;
    switch (Below(16)) {
      case 0:
        return Order();
      case 1:
      case 2:
      case 3:
        return WorkerActs();
      case 5:
        return KillWorker();
      case 6:
        return Below(4) == 0 ? Fault() : void();
      case 4:
        return ToAgent(Tick{});
      default:
        for (int i = 0; i < 4; ++i) {
          Deliver();
        }
    }
  }

  // Stops all faults and lets everything under way arrive.
  void Settle() {
    faulty_ = false;
    for (int round = 0; round < 4000; ++round) {
      now_ns_ += 20 * kMs;
      ToAgent(Tick{});
      for (auto& [key, worker] : workers_) {
        Attach(worker);
      }
      for (int i = 0; i < 30; ++i) {
        Deliver();
      }
    }
    Expect(registered_, __LINE__);
    Expect(keeper_->running().size() == workers_.size(), __LINE__);
    for (const auto& [key, worker] : workers_) {
      INFO("worker " << key.first << "#" << key.second);
      Expect(worker.attached, __LINE__);
      Expect(worker.unacknowledged.empty(), __LINE__);
      Expect(coordinator_.reports[key] == worker.last_report, __LINE__);
      for (const uint64_t command : coordinator_.commands[key]) {
        Expect(worker.done.contains(command), __LINE__);
      }
    }
    for (const TownKey& key : ended_) {
      Expect(coordinator_.ended.contains(key), __LINE__);
    }
    for (const TownKey& key : coordinator_.living) {
      Expect(workers_.contains(key), __LINE__);
    }
    Expect(table_.ended_size() == 0, __LINE__);
    Expect(agent_->link().queue().empty(), __LINE__);
  }

  int64_t deaths() const { return deaths_; }
  int64_t delivered() const { return delivered_; }

 private:
  struct Worker {
    v1::WorkerId id;
    std::optional<SessionId> session;
    bool attached = false;
    std::map<uint64_t, v1::WorkerReport> unacknowledged;
    uint64_t last_report = 0;
    uint64_t agent = 0;  // whose commands it counts
    uint64_t commands_taken = 0;
    std::set<uint64_t> done;
    std::set<std::pair<uint64_t, uint64_t>> orders;  // by agent and life of the coordinator: done once each
    std::deque<v1::AttachRequest> up;
    std::deque<v1::AttachResponse> down;
  };

  // All of it durable but the orders under way.
  struct Coordinator {
    uint64_t incarnation = 10;
    std::set<TownKey> living;  // ordered, and not heard to have ended
    std::set<TownKey> ended;
    std::map<TownKey, std::vector<uint64_t>> commands;
    std::map<TownKey, uint64_t> reports;        // taken of each worker
    std::map<uint64_t, uint64_t> node_reports;  // taken of each agent process
    // State of this life, kept for one agent process:
    uint64_t agent = 0;
    std::deque<v1::ConnectResponse> orders;  // not taken
    uint64_t last_order = 0;
  };

  void Expect(bool holds, int line) const {
    if (!holds) {
      std::string history;
      for (const std::string& text : history_) {
        history += text + "\n";
      }
      FAIL(fmt::format("line {} after\n{}", line, history));
    }
  }

  size_t Below(size_t n) { return random_() % n; }
  void Note(const std::string& text) {
    history_.push_back(fmt::format("{} ms: {}", now_ns_ / kMs, text));
    if (history_.size() > 400) {
      history_.pop_front();
    }
  }

  // --- The agent's process.

  void NewAgent() {
    AgentOptions options = TestOptions();
    options.incarnation = ++agent_incarnation_;
    options.seed = agent_incarnation_;
    options.known_coordinator = known_coordinator_;
    Note(fmt::format("agent {}", options.incarnation));
    agent_ = std::make_unique<Agent>(TestConfig(), options);
    ConnectToKeeper();
  }

  void KillAgent() {
    ++deaths_;
    BreakCoordinator(false);
    for (auto& [key, worker] : workers_) {
      BreakWorker(worker, false);
    }
    from_keeper_.clear();
    to_keeper_.clear();
    started_.clear();
    NewAgent();
  }

  void ToAgent(Event event) {
    const Effects effects = agent_->Step(now_ns_, std::move(event));
    const bool dies = faulty_ && faults_.agents && Below(300) == 0;
    size_t carried = dies ? Below(effects.size() + 1) : effects.size();
    for (const Effect& effect : effects) {
      if (carried-- == 0) {
        break;
      }
      if (!std::holds_alternative<WriteLog>(effect) && !std::holds_alternative<ReadOn>(effect)) {
        Note(Describe(effect));
      }
      std::visit([this](const auto& e) { Carry(e); }, effect);
    }
    if (dies) {
      KillAgent();
    }
  }

  void Carry(const Dial& e) {
    connection_ = e.connection;
    dialled_ = true;
    registered_ = false;
    to_coordinator_.clear();
    from_coordinator_.clear();
    to_coordinator_.push_back(e.hello);
  }
  void Carry(const HangUp& /*e*/) {
    dialled_ = registered_ = false;
    to_coordinator_.clear();
    from_coordinator_.clear();
  }
  void Carry(const SendToCoordinator& e) {
    Expect(registered_, __LINE__);
    to_coordinator_.push_back(e.message);
  }
  void Carry(const StartWorker& e) {
    v1::KeeperRequest request;
    *request.mutable_start()->mutable_worker() = e.worker;
    request.mutable_start()->set_program("worker");
    request.mutable_start()->set_log_path("log");
    to_keeper_.push_back(std::move(request));
  }
  void Carry(const SignalWorker& e) {
    v1::KeeperRequest request;
    request.mutable_signal()->set_device(e.worker.device);
    request.mutable_signal()->set_incarnation(e.worker.incarnation);
    request.mutable_signal()->set_signal(e.signal);
    to_keeper_.push_back(std::move(request));
  }
  void Carry(const ForgetExit& e) {
    const TownKey key{e.worker.device, e.worker.incarnation};
    Expect(coordinator_.ended.contains(key), __LINE__);  // forgotten only when it has been told
    v1::KeeperRequest request;
    request.mutable_forget()->set_device(key.first);
    request.mutable_forget()->set_incarnation(key.second);
    to_keeper_.push_back(std::move(request));
  }
  void Carry(const SendToWorker& e) {
    if (Worker* worker = OfSession(e.session)) {
      worker->down.push_back(e.message);
    }
  }
  void Carry(const CloseSession& e) {
    Worker* worker = OfSession(e.session);
    if (worker != nullptr) {
      Note(fmt::format("closed: {}", std::string(e.status.message())));
      Expect(!(absl::IsUnauthenticated(e.status)), __LINE__);  // no living worker is unknown
      BreakWorker(*worker, true);
    }
  }
  void Carry(const RememberCoordinator& e) { known_coordinator_ = e.incarnation; }
  template <class Other>
  void Carry(const Other& /*e*/) {}

  // --- The keeper, and the processes of the machine.

  void NewKeeper() {
    const v1::KeeperTable left = table_;
    keeper_ = std::make_unique<KeeperCore>(now_ns_, KeeperCoreOptions{}, left);
    for (const v1::KeptWorker& child : left.running()) {
      if (!workers_.contains(TownKeyOf(child.worker()))) {
        ToKeeper(ChildEnded{{child.worker().device(), child.worker().incarnation()}, kUnknownExitCode, 0, ""});
      }
    }
  }

  void ConnectToKeeper() {
    from_keeper_.clear();
    to_keeper_.clear();
    list_.emplace();
    ToKeeper(AgentConnected{++keeper_connection_});
  }

  void ToKeeper(KeeperEvent first) {
    std::deque<KeeperEvent> events;
    events.push_back(std::move(first));
    while (!events.empty()) {
      const KeeperEvent event = std::move(events.front());
      events.pop_front();
      for (KeeperEffect& effect : keeper_->Step(now_ns_, event)) {
        if (const auto* spawn = std::get_if<Spawn>(&effect)) {
          const v1::WorkerId& id = spawn->start.worker();
          for (const auto& [key, worker] : workers_) {
            Expect(key.first != id.device(), __LINE__);  // one per device
          }
          Expect(ever_.insert(TownKeyOf(id)).second, __LINE__);  // and each once
          ChildStarted started;
          *started.child.mutable_worker() = id;
          started.child.set_pid(100);
          events.emplace_back(std::move(started));
        } else if (const auto* release = std::get_if<ReleaseChild>(&effect)) {
          workers_[{release->worker.device, release->worker.incarnation}].id =
              keeper_->running().at(release->worker.device).worker();
          events.emplace_back(ChildReleased{release->worker});
        } else if (const auto* signal = std::get_if<SignalChild>(&effect)) {
          signalled_.emplace(signal->worker.device, signal->worker.incarnation);
        } else if (const auto* save = std::get_if<SaveTable>(&effect)) {
          table_ = save->table;
        } else if (const auto* tell = std::get_if<TellAgent>(&effect)) {
          if (tell->connection == keeper_connection_) {
            from_keeper_.push_back(tell->news);
          }
        }
      }
    }
  }

  void FromKeeper() {
    const v1::KeeperNews news = from_keeper_.front();
    from_keeper_.pop_front();
    const auto key = [](const v1::WorkerId& id) { return WorkerKey{id.device(), id.incarnation()}; };
    if (news.has_listed()) {
      KeeperListed listed = *std::move(list_);
      list_.reset();
      return ToAgent(std::move(listed));
    }
    if (news.has_running()) {
      if (list_.has_value()) {
        list_->running.push_back({news.running().worker(), news.running().pid()});
        return;
      }
      return ToAgent(WorkerStarted{key(news.running().worker()), news.running().pid()});
    }
    if (news.has_exited()) {
      if (list_.has_value()) {
        list_->ended.push_back(news.exited());
        return;
      }
      return ToAgent(WorkerExited{key(news.exited().worker()), news.exited().pid(), news.exited().exit_code(),
                                  news.exited().signal(), ""});
    }
    ToAgent(WorkerStartFailed{key(news.failed().worker()), absl::InternalError(news.failed().message())});
  }

  // Takes the key by value, because the caller's copy is erased here.
  void End(TownKey key) {
    Worker& worker = workers_.at(key);
    BreakWorker(worker, true);
    workers_.erase(key);
    signalled_.erase(key);
    ended_.insert(key);
    Note(fmt::format("{}#{} ends", key.first, key.second));
    ToKeeper(ChildEnded{{key.first, key.second}, 0, SIGKILL, ""});
  }

  void KillWorker() {
    if (!signalled_.empty() && workers_.contains(*signalled_.begin())) {
      End(*signalled_.begin());
    } else if (faulty_ && !workers_.empty() && Below(20) == 0) {
      End(workers_.begin()->first);
    }
  }

  // --- Workers.

  Worker* OfSession(SessionId session) {
    for (auto& [key, worker] : workers_) {
      if (worker.session == session) {
        return &worker;
      }
    }
    return nullptr;
  }

  // `told`: the agent hears of it.
  void BreakWorker(Worker& worker, bool told) {
    if (worker.session.has_value()) {
      const SessionId session = *worker.session;
      worker.session.reset();
      worker.attached = false;
      worker.up.clear();
      worker.down.clear();
      if (told) {
        closed_.push_back(session);
      }
    }
  }

  void Say(Worker& worker, const v1::WorkerReport& report) {
    v1::AttachRequest message;
    *message.mutable_worker() = worker.id;
    *message.mutable_report() = report;
    message.set_commands_taken(worker.attached ? worker.commands_taken : 0);
    worker.up.push_back(std::move(message));
  }

  void Attach(Worker& worker) {
    if (worker.session.has_value() || !closed_.empty() || !agent_->fleet().listed()) {
      return;
    }
    worker.session = ++session_;
    v1::WorkerReport hello;
    hello.mutable_hello()->mutable_status()->set_epoch(worker.last_report);
    hello.mutable_hello()->set_agent_incarnation(worker.agent);
    hello.mutable_hello()->set_commands_taken(worker.commands_taken);
    Say(worker, hello);
    for (const auto& [sequence, report] : worker.unacknowledged) {
      Say(worker, report);
    }
  }

  void Report(Worker& worker) {
    v1::WorkerReport report;
    report.set_sequence(++worker.last_report);
    report.mutable_iteration()->set_iteration(static_cast<int64_t>(worker.last_report));
    worker.unacknowledged.emplace(worker.last_report, report);
    if (worker.session.has_value()) {
      Say(worker, report);
    }
  }

  void WorkerActs() {
    if (workers_.empty()) {
      return;
    }
    Worker& worker = std::next(workers_.begin(), static_cast<int64_t>(Below(workers_.size())))->second;
    if (!worker.session.has_value()) {
      Attach(worker);
    } else if (Below(4) == 0) {
      v1::WorkerReport beat;
      beat.mutable_heartbeat()->mutable_status()->set_epoch(1);
      Say(worker, beat);
    } else {
      Report(worker);
    }
  }

  void Hear(const TownKey& key, Worker& worker) {
    const v1::AttachResponse message = worker.down.front();
    worker.down.pop_front();
    if (worker.agent != message.agent_incarnation()) {
      worker.agent = message.agent_incarnation();
      worker.commands_taken = 0;
    }
    worker.attached = true;
    Expect(coordinator_.reports[key] >= message.reports_taken(), __LINE__);  // dropped only when the coordinator has it
    std::erase_if(worker.unacknowledged, [&](const auto& entry) { return entry.first <= message.reports_taken(); });
    if (!message.has_command() || message.sequence() <= worker.commands_taken) {
      return;
    }
    Expect(message.sequence() == worker.commands_taken + 1, __LINE__);  // none is missing
    worker.commands_taken = message.sequence();
    if (message.command().has_stop()) {
      signalled_.insert(key);
      return;
    }
    worker.done.insert(message.command().epoch());
    // One order is handed on once by one agent process.
    const uint64_t orderer = worker.agent * 1000 + static_cast<uint64_t>(message.command().commit().start_iteration());
    Expect(worker.orders.emplace(orderer, message.command().epoch()).second, __LINE__);
  }

  // --- The coordinator.

  void Order() {
    if (!faulty_) {
      return;
    }
    Coordinator& c = coordinator_;
    const auto device = static_cast<int32_t>(Below(kTownDevices));
    const auto living =
        std::find_if(c.living.begin(), c.living.end(), [&](const TownKey& k) { return k.first == device; });
    if (living == c.living.end()) {
      const TownKey key{device, ++worker_incarnation_};
      c.living.insert(key);
      OrderStart(key);
    } else if (Below(6) == 0) {
      v1::ConnectResponse order;
      order.mutable_stop_workers()->set_job("tiny");
      order.mutable_stop_workers()->add_devices(device);
      order.mutable_stop_workers()->set_incarnation(living->second);
      order.mutable_stop_workers()->set_grace_ns(kS);
      SendOrder(std::move(order));
    } else {
      c.commands[*living].push_back(++command_);
      OrderCommand(*living, command_);
    }
  }

  void OrderStart(const TownKey& key) {
    v1::ConnectResponse order;
    order.mutable_start_workers()->set_job("tiny");
    order.mutable_start_workers()->add_devices(key.first);
    order.mutable_start_workers()->set_incarnation(key.second);
    SendOrder(std::move(order));
  }

  void OrderCommand(const TownKey& key, uint64_t command) {
    v1::ConnectResponse order;
    *order.mutable_command()->mutable_worker() = TestWorker(key.first, key.second);
    order.mutable_command()->mutable_command()->set_epoch(command);
    order.mutable_command()->mutable_command()->mutable_commit()->set_start_iteration(
        static_cast<int64_t>(coordinator_.incarnation));
    SendOrder(std::move(order));
  }

  void SendOrder(v1::ConnectResponse order) {
    if (coordinator_.agent == 0) {
      return;  // ordered when an agent says hello
    }
    order.set_sequence(++coordinator_.last_order);
    coordinator_.orders.push_back(order);
    if (registered_) {
      from_coordinator_.push_back(std::move(order));
    }
  }

  void OnHello(uint64_t agent, const v1::AgentHello& hello) {
    Coordinator& c = coordinator_;
    Expect(hello.worker_states_size() == hello.workers_size(), __LINE__);
    registered_ = true;
    from_coordinator_.push_back(Welcome(0, 500 * kMs, c.incarnation, 5 * kS).message);
    if (c.agent == agent && hello.coordinator_incarnation() == c.incarnation) {
      while (!c.orders.empty() && c.orders.front().sequence() <= hello.orders_taken()) {
        c.orders.pop_front();
      }
      for (const v1::ConnectResponse& order : c.orders) {
        from_coordinator_.push_back(order);
      }
      return;
    }
    // Another agent process, or another life of this coordinator: what is missing is ordered again.
    c.agent = agent;
    c.orders.clear();
    c.last_order = 0;
    std::set<TownKey> told;
    for (const v1::WorkerId& id : hello.workers()) {
      told.insert(TownKeyOf(id));
    }
    for (const TownKey& key : c.living) {
      if (!told.contains(key)) {
        OrderStart(key);
      }
      for (const uint64_t command : c.commands[key]) {
        const auto at = workers_.find(key);
        if (at == workers_.end() || !at->second.done.contains(command)) {  // as its status would tell
          OrderCommand(key, command);
        }
      }
    }
  }

  void Arrive() {
    const v1::ConnectRequest message = to_coordinator_.front();
    to_coordinator_.pop_front();
    Coordinator& c = coordinator_;
    if (message.has_hello()) {
      return OnHello(message.incarnation(), message.hello());
    }
    while (!c.orders.empty() && c.orders.front().sequence() <= message.orders_taken()) {
      c.orders.pop_front();
    }
    uint64_t& taken = c.node_reports[message.incarnation()];
    uint64_t sequence = message.reports().first_sequence();
    for (const v1::NodeReport& report : message.reports().reports()) {
      if (sequence > taken) {
        Expect(sequence == taken + 1, __LINE__);
        taken = sequence;
        Take(report);
      }
      ++sequence;
    }
    v1::ConnectResponse answer;
    answer.mutable_reports_taken()->set_sequence(taken);
    from_coordinator_.push_back(std::move(answer));
    to_agent_sent_ = true;
  }

  void Take(const v1::NodeReport& report) {
    if (report.has_worker()) {
      const TownKey key = TownKeyOf(report.worker().worker());
      const uint64_t number = report.worker().report().sequence();
      uint64_t& last = coordinator_.reports[key];
      if (number > last) {
        Expect(number == last + 1, __LINE__);  // none lost
        Expect(!(coordinator_.ended.contains(key)), __LINE__);
        last = number;
        ++delivered_;
      }
    } else if (report.has_exit()) {
      const TownKey key = TownKeyOf(report.exit().worker());
      coordinator_.ended.insert(key);
      coordinator_.living.erase(key);
    }
  }

  void BreakCoordinator(bool told) {
    if (dialled_) {
      dialled_ = registered_ = false;
      to_coordinator_.clear();
      from_coordinator_.clear();
      to_agent_sent_ = false;
      if (told) {
        ToAgent(CoordinatorClosed{connection_, absl::UnavailableError("gone")});
      }
    }
  }

  // --- What happens between them.

  void Fault() {
    if (!faulty_) {
      return;
    }
    const size_t which = Below(12);
    if (which < 5 && faults_.streams) {
      if (Below(2) == 0) {
        BreakCoordinator(true);
      } else if (!workers_.empty()) {
        BreakWorker(workers_.begin()->second, true);
      }
    } else if (which == 5 && faults_.keepers) {
      NewKeeper();
      ConnectToKeeper();
    } else if (which == 6 && faults_.coordinators) {
      ++coordinator_.incarnation;
      coordinator_.agent = 0;
      coordinator_.orders.clear();
      BreakCoordinator(true);
    } else if (which == 7 && faults_.agents) {
      KillAgent();
    }
  }

  // One message of one of the streams.
  void Deliver() {
    switch (Below(6)) {
      case 0:
        if (!to_coordinator_.empty()) {
          Arrive();
          if (std::exchange(to_agent_sent_, false)) {
            ToAgent(CoordinatorSent{connection_});
          }
        }
        return;
      case 1:
        if (!from_coordinator_.empty()) {
          v1::ConnectResponse message = from_coordinator_.front();
          from_coordinator_.pop_front();
          if (faulty_ && Below(8) == 0) {
            ToAgent(CoordinatorMessage{connection_, message});  // comes twice
          }
          if (registered_) {
            ToAgent(CoordinatorMessage{connection_, std::move(message)});
          }
        }
        return;
      case 2:
        if (!to_keeper_.empty()) {
          v1::KeeperRequest request = to_keeper_.front();
          to_keeper_.pop_front();
          ToKeeper(AgentAsked{keeper_connection_, std::move(request)});
        }
        return;
      case 3:
        if (!from_keeper_.empty()) {
          FromKeeper();
        }
        return;
      case 4:
        if (!closed_.empty()) {
          const SessionId session = closed_.front();
          closed_.pop_front();
          return ToAgent(WorkerClosed{session});
        }
        for (auto& [key, worker] : workers_) {
          if (!worker.up.empty() && Below(2) == 0) {
            WorkerMessage message{*worker.session, worker.up.front()};
            worker.up.pop_front();
            return ToAgent(std::move(message));
          }
        }
        return;
      default:
        for (auto& [key, worker] : workers_) {
          if (!worker.down.empty() && Below(2) == 0) {
            return Hear(key, worker);
          }
        }
        return KillWorker();
    }
  }

  std::mt19937_64 random_;
  const Faults faults_;
  bool faulty_ = true;
  int64_t now_ns_ = 0;
  std::unique_ptr<Agent> agent_;
  uint64_t agent_incarnation_ = 0;
  uint64_t known_coordinator_ = 0;  // on disk

  Coordinator coordinator_;
  uint64_t worker_incarnation_ = 0;
  uint64_t command_ = 0;
  ConnectionId connection_ = 0;
  bool dialled_ = false;
  bool registered_ = false;
  bool to_agent_sent_ = false;
  std::deque<v1::ConnectRequest> to_coordinator_;
  std::deque<v1::ConnectResponse> from_coordinator_;

  std::unique_ptr<KeeperCore> keeper_;
  v1::KeeperTable table_;  // on disk
  KeeperConnection keeper_connection_ = 0;
  std::deque<v1::KeeperRequest> to_keeper_;
  std::deque<v1::KeeperNews> from_keeper_;
  std::optional<KeeperListed> list_;
  std::deque<Event> started_;

  std::map<TownKey, Worker> workers_;  // the machine's processes
  std::set<TownKey> ever_;
  std::set<TownKey> ended_;
  std::set<TownKey> signalled_;
  SessionId session_ = 0;
  std::deque<SessionId> closed_;  // and the agent has not heard

  std::deque<std::string> history_;
  int64_t deaths_ = 0;
  int64_t delivered_ = 0;
};

TEST_CASE("agents are killed at any instant: no report, exit, order or worker is lost") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  int64_t deaths = 0;
  int64_t delivered = 0;
  for (uint64_t run = 0; run < 60; ++run) {
    Town town(seed + run, {.agents = run % 5 != 0, .streams = run % 3 != 0, .keepers = run % 2 == 0});
    for (int i = 0; i < 3000; ++i) {
      town.RandomEvent();
    }
    town.Settle();
    deaths += town.deaths();
    delivered += town.delivered();
  }
  CHECK(deaths > 300);
  CHECK(delivered > 2000);
}

}  // namespace
}  // namespace geopipe::agent
