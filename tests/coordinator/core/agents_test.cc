// Agents that come, go, come back and misbehave; watches.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/core/order_log.h"
#include "tests/coordinator/core/federation.h"
#include "tests/coordinator/core/restarts.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

TEST_CASE("a second live agent of one node is refused, the same one may come again") {
  Federation f;
  const SessionId first = f.Register("north", 1);
  f.Advance(2 * kSecond);
  f.Heartbeat(first);
  f.Advance(kSecond / 2);
  f.Register("north", 2);
  CHECK(f.Last<CloseSession>().at(0).status.code() == absl::StatusCode::kUnavailable);  // it may have died just now
  f.Advance(kSecond / 2);
  f.Heartbeat(first);
  f.Advance(kSecond / 2);
  f.Register("north", 2);
  CHECK(f.Last<CloseSession>().at(0).status.code() == absl::StatusCode::kAlreadyExists);
  CHECK(f.Last<CloseSession>().at(0).status.message() ==
        "north/n0 belongs to the agent with pid 101 on host north.example, which registered 3.5 s ago and was heard "
        "from 0.5 s ago; stop that one, or give this one another site or node name");
  f.Register("north", 1);
  REQUIRE(f.Last<CloseSession>().size() == 1);
  CHECK(f.Last<CloseSession>().at(0).session == first);
  CHECK(f.Last<SendToAgent>().at(0).message.has_welcome());
  CHECK(f.broken == "");
}

TEST_CASE("an agent whose host has lost power gets its place back once the coordinator misses the one before") {
  CoordinatorOptions options = Federation::DefaultOptions();
  options.membership.failed_after_ns = 60 * kSecond;
  Federation f(options);
  const SessionId before = f.Register("north", 1);
  f.Heartbeat(before);  // the last one; its stream stays half open
  const auto silence = [&](int64_t ns) {
    for (int64_t passed = 0; passed < ns; passed += kSecond / 10) {
      f.Advance(kSecond / 10);
      f.Step(Tick{});
    }
  };
  int refused = 0;
  for (int64_t passed = 0; passed < 60 * kSecond; passed += 5 * kSecond) {
    silence(5 * kSecond);
    f.Register("north", 2);
    if (f.Last<SendToAgent>().empty()) {
      ++refused;
      CHECK(f.Last<CloseSession>().at(0).status.code() == absl::StatusCode::kUnavailable);
    }
  }
  CHECK(refused >= 10);
  silence(5 * kSecond);
  f.Register("north", 2);
  CHECK(f.Last<SendToAgent>().at(0).message.has_welcome());
  CHECK(f.broken == "");
}

TEST_CASE("an agent that takes no orders has to come again, and is then told what is due") {
  Federation f;
  std::vector<v1::WorkerId> strangers;  // each has to be stopped
  for (size_t i = 0; i < OrderLog::kMaxOrders + 100; ++i) {
    v1::WorkerId& stranger = strangers.emplace_back();
    stranger.set_site("north");
    stranger.set_node("n0");
    stranger.set_job("gone");
    stranger.set_incarnation(100'000 + i);  // given by this coordinator
  }
  const SessionId north = f.Register("north", 1, strangers);
  CHECK(f.Last<SendToAgent>().size() == OrderLog::kMaxOrders + 1);  // and a welcome
  const std::vector<CloseSession> closed = f.Last<CloseSession>();
  REQUIRE(closed.size() == 1);
  CHECK(closed[0].session == north);
  CHECK(closed[0].status.code() == absl::StatusCode::kResourceExhausted);
  CHECK(closed[0].status.message() == "agent north/n0 has left 4096 orders untaken; it has to come again");
  f.Close(north);
  f.Register("north", 1, {strangers.front()});  // the same process
  const std::vector<SendToAgent> sent = f.Last<SendToAgent>();
  REQUIRE(sent.size() == 2);
  CHECK(sent[0].message.welcome().orders_before() == strangers.size());
  CHECK(sent[1].message.stop_workers().incarnation() == 100'000);
  CHECK(sent[1].message.sequence() == strangers.size() + 1);
  CHECK(f.broken == "");
}

v1::AgentHello HelloOf(const std::string& node) {
  v1::AgentHello hello;
  hello.set_version("1.2.3");
  hello.mutable_node()->set_site("north");
  hello.mutable_node()->set_node(node);
  return hello;
}

TEST_CASE("nodes that are gone give way to new ones, and are forgotten after an hour") {
  const MembershipLimits limits{.suspect_after_ns = 3 * kSecond, .failed_after_ns = 5 * kSecond, .max_agents = 3};
  Membership membership("1.2.3", limits);
  int64_t now_ns = kSecond;
  const auto admit = [&](int session, const std::string& node) {
    return membership.Admit(now_ns, session, static_cast<uint64_t>(session), HelloOf(node)).status;
  };
  const auto wait = [&](int64_t ns) {
    for (const int64_t until_ns = now_ns + ns; now_ns < until_ns; now_ns += kSecond) {
      (void)membership.Tick(now_ns);
    }
  };
  for (int i = 1; i <= 1100; ++i) {  // they come and go
    REQUIRE(admit(i, "n" + std::to_string(i)).ok());
    membership.Closed(i);
    wait(6 * kSecond);
    CHECK(membership.nodes().size() <= 3);
  }
  CHECK(membership.Find({"north", "n1100"}) != nullptr);
  CHECK(membership.Find({"north", "n1097"}) == nullptr);
  REQUIRE(admit(2001, "a").ok());
  REQUIRE(admit(2002, "b").ok());
  REQUIRE(admit(2003, "c").ok());
  CHECK(admit(2004, "d").code() == absl::StatusCode::kResourceExhausted);  // all are there
  membership.Closed(2001);
  wait(Membership::kForgottenAfterNs + 10 * kSecond);
  CHECK(membership.Find({"north", "a"}) == nullptr);
}

TEST_CASE("an agent of another version is told both") {
  CoordinatorOptions options = Federation::DefaultOptions();
  options.version = "2.0.0";
  Federation f(options);
  f.Register("north");
  const CloseSession close = f.Last<CloseSession>().at(0);
  CHECK(close.status.code() == absl::StatusCode::kFailedPrecondition);
  CHECK(std::string(close.status.message()).find("1.2.3") != std::string::npos);
  CHECK(std::string(close.status.message()).find("2.0.0") != std::string::npos);
}

TEST_CASE("what breaks the protocol ends the stream") {
  Federation f;
  f.Register("north");
  AgentMessage message{99, {}};
  message.message.set_incarnation(1);
  message.message.mutable_heartbeat();
  f.Step(message);
  CHECK(f.Last<CloseSession>().at(0).status.code() == absl::StatusCode::kInvalidArgument);
  // An agent speaks for its own node only.
  message.session = f.sessions["north"];
  *f.AddReport(message).mutable_worker()->mutable_worker() = MakeWorkerId({"east", "n0", 0}, "tiny", 1);
  f.Step(message);
  CHECK(f.Last<CloseSession>().at(0).status.code() == absl::StatusCode::kInvalidArgument);
}

// Otherwise all that the agent tells later would count as taken.
TEST_CASE("a report whose number does not follow ends the stream, and those that do are taken on the next one") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  const auto tell = [&](uint64_t number, const std::string& what) {
    AgentMessage event{f.sessions["east"], {}};
    event.message.set_incarnation(1);
    v1::RelayedReport& relayed = *f.AddReport(event).mutable_worker();
    *relayed.mutable_worker() = f.IdOf({"east", "n0", 0});
    relayed.mutable_report()->mutable_failure()->set_message(what);
    event.message.mutable_reports()->set_first_sequence(number);
    f.Step(event);
  };
  tell(uint64_t{1} << 62, "it is forged");
  const uint64_t next = f.next_report;
  REQUIRE(f.Last<CloseSession>().size() == 1);
  CHECK(f.Last<CloseSession>()[0].status.message() ==
        fmt::format("agent east/n0 tells its report {} after its report {}; those between are missing",
                    uint64_t{1} << 62, next - 1));
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  f.Register("east", 1, {f.IdOf({"east", "n0", 0})});
  tell(next, "it broke");
  CHECK(f.Last<CloseSession>().empty());
  f.RunFor(2 * kSecond);
  CHECK(f.CauseOf("tiny").find("it broke") != std::string::npos);
  CHECK(f.broken == "");
}

TEST_CASE("a silent agent is suspect, then failed, and its job when nothing goes on without it") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.open.erase(f.sessions["west"]);  // says nothing more
  f.RunFor(4 * kSecond);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  f.open.insert(f.sessions["west"]);
  f.Advance(kSecond);
  f.Step(Tick{});
  CHECK(f.Last<CloseSession>().size() == 1);
  f.RunFor(29 * kSecond);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);  // its worker may still be there
  f.RunFor(2 * kSecond);
  CHECK(f.CauseOf("tiny").find("agent west/n0 (site west) has not been heard from for 36.") == 0);
  CHECK(f.broken == "");
}

TEST_CASE("an agent that comes back with its workers costs nothing, even as a new process") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.Close(f.sessions["east"]);
  f.RunFor(kSecond);
  f.Register("east", 2, {f.IdOf({"east", "n0", 0})});
  for (int64_t i = 0; i < 3; ++i) {
    f.IterateAll(i);
  }
  f.FinishAll();
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_COMPLETED);
  CHECK(f.broken == "");
}

TEST_CASE("reports are acknowledged, and those said again after a break taken once") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  AgentMessage message{f.sessions["east"], {}};
  message.message.set_incarnation(1);
  for (int64_t i = 0; i < 2; ++i) {
    v1::RelayedReport& relayed = *f.AddReport(message).mutable_worker();
    *relayed.mutable_worker() = f.IdOf({"east", "n0", 0});
    relayed.mutable_report()->mutable_heartbeat()->set_iteration(i);
  }
  message.message.mutable_reports()->set_first_sequence(f.next_report - 1);
  f.Step(message);
  REQUIRE(f.Last<SendToAgent>().size() == 1);
  CHECK(f.Last<SendToAgent>().at(0).message.reports_taken().sequence() == f.next_report);

  f.Close(f.sessions["east"]);
  message.session = f.Register("east", 1, {f.IdOf({"east", "n0", 0})});
  v1::RelayedReport& news = *f.AddReport(message).mutable_worker();
  *news.mutable_worker() = f.IdOf({"east", "n0", 0});
  news.mutable_report()->mutable_failure()->set_message("it broke");
  message.message.mutable_reports()->set_first_sequence(f.next_report - 2);
  f.Step(message);
  CHECK(f.Last<SendToAgent>().back().message.reports_taken().sequence() == f.next_report);
  f.RunFor(2 * kSecond);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_FAILED);
  CHECK(f.CauseOf("tiny").find("it broke") != std::string::npos);
}

TEST_CASE("an agent that comes back without its worker fails the job") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.Close(f.sessions["east"]);
  f.Register("east", 2);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);  // its exit, with the signal, may be on the way
  f.RunFor(2 * kSecond);
  CHECK(f.CauseOf("tiny") == "worker east/n0/0 (site east) is gone: its agent came back without it");
}

TEST_CASE("what an agent missed while its stream was down is sent when it returns") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_PLANNING);
  f.Close(f.sessions["east"]);
  f.PlanNow();
  CHECK(f.Commands(v1::WorkerCommand::kPrepare) == 2);
  f.Register("east", 1, {f.IdOf({"east", "n0", 0})});
  CHECK(f.Commands(v1::WorkerCommand::kPrepare) == 1);
  f.PrepareAll();
  f.CommitAll();
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  CHECK(f.broken == "");
}

TEST_CASE("an order to start workers that was lost with the stream is given again, once") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_PROFILING);
  f.Close(f.sessions["east"]);
  f.Register("east", 1);
  int starts = 0;
  for (const SendToAgent& send : f.Last<SendToAgent>()) {
    starts += send.message.has_start_workers() ? 1 : 0;
  }
  CHECK(starts == 1);
  f.HelloAll();
  CHECK(f.Commands(v1::WorkerCommand::kProfile) == 3);
}

TEST_CASE("orders go on with their numbers when the agent process before is heard once more") {
  // Its hello was under way while it died and the next process registered.
  Federation f;
  f.DriveTo(v1::JOB_STATE_PROFILING);
  const auto last_order = [&] {
    uint64_t last = 0;
    for (const SendToAgent& send : f.Last<SendToAgent>()) {
      last = send.session == f.sessions["east"] ? std::max(last, send.message.sequence()) : last;
    }
    return last;
  };
  f.HelloAll();
  const uint64_t taken = last_order();
  REQUIRE(taken > 1);
  const std::vector<v1::WorkerId> workers = {f.IdOf({"east", "n0", 0})};
  const std::vector<v1::WorkerState> states(1);
  for (const uint64_t incarnation : {9, 1}) {
    f.Close(f.sessions["east"]);
    f.Register("east", incarnation, workers, 1, states);
  }
  CHECK(f.Last<SendToAgent>().at(0).message.welcome().orders_before() >= taken);
  f.Step(CancelJob{f.next_call++, "tiny", "enough"});
  CHECK(last_order() > taken);
  CHECK(f.broken == "");
}

TEST_CASE("a worker of an older run is stopped alone, not the newer run beside it") {
  Federation before;
  before.DriveTo(v1::JOB_STATE_RUNNING);
  Federation f(NextLife(), before.Stored());
  f.Register("east", 1, {before.IdOf({"east", "n0", 0}), MakeWorkerId({"east", "n0", 0}, "tiny", 5)});
  REQUIRE(f.Stops() == 1);
  const auto sent = f.Last<SendToAgent>();
  const auto stop = std::ranges::find_if(sent, [](const SendToAgent& send) { return send.message.has_stop_workers(); });
  CHECK(stop->message.stop_workers().incarnation() == 5);
  CHECK(stop->message.stop_workers().devices_size() == 1);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  CHECK(f.broken == "");
}

TEST_CASE("declarations that differ are noted once, and the worse of them is used") {
  Federation f;
  f.Register("north");
  AgentMessage east{50, {}};
  f.open.insert(50);
  east.message.set_incarnation(1);
  v1::AgentHello& hello = *east.message.mutable_hello();
  hello.set_version(Federation::kVersion);
  hello.mutable_node()->set_site("east");
  hello.mutable_node()->set_node("n0");
  hello.mutable_node()->set_devices(1);
  hello.add_links()->set_to_site("north");
  hello.mutable_links(0)->set_latency_ns(30'000'000);
  hello.mutable_links(0)->set_bandwidth_bytes_per_s(2.5e8);
  f.Step(east);
  int warnings = 0;
  for (const LogEntry& entry : f.Last<LogEntry>()) {
    warnings += entry.level == LogLevel::kWarning ? 1 : 0;
  }
  CHECK(warnings == 1);
  f.Step(ListLinks{3});
  const auto links = std::get<v1::ListLinksResponse>(*f.Last<ReplyToCall>().at(0).reply);
  REQUIRE(links.links_size() == 4);  // both directions of east-north and north-west
  CHECK(links.links(0).latency_ns() == 30'000'000);
  CHECK(links.links(0).bandwidth_bytes_per_s() == 1.25e8);
  CHECK_FALSE(links.links(0).shaped());
  CHECK(links.links(1).shaped());
}

TEST_CASE("a watch tells history, then what happens, no faster than it is read, and ends with the job") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.Step(WatchStart{70, "tiny", 0, 6});
  REQUIRE(f.Last<SendToWatcher>().size() == 1);
  CHECK(f.Last<SendToWatcher>().at(0).messages.size() == 5);  // PENDING to RUNNING
  f.IterateAll(0);
  CHECK(f.Last<SendToWatcher>().at(0).messages.at(0).iteration().iteration() == 0);
  f.IterateAll(1);
  CHECK(f.Last<SendToWatcher>().empty());  // no credits left
  f.Step(WatchMore{70, 10});
  CHECK(f.Last<SendToWatcher>().at(0).messages.at(0).iteration().iteration() == 1);
  f.IterateAll(2);
  f.FinishAll();
  CHECK(f.Last<SendToWatcher>().at(0).messages.at(0).transition().state() == v1::JOB_STATE_COMPLETED);
  CHECK(f.Last<EndWatch>().at(0).status.ok());

  f.Step(WatchStart{71, "tiny", 2, 100});
  CHECK(f.Last<SendToWatcher>().at(0).messages.size() == 7);  // six transitions and the last iteration
  CHECK(f.Last<EndWatch>().size() == 1);
  f.Step(WatchStart{72, "nothing", 0, 100});
  CHECK(f.Last<EndWatch>().at(0).status.code() == absl::StatusCode::kNotFound);
}

TEST_CASE("a watch that falls behind what is kept is ended and told where to go on") {
  CoordinatorOptions options = Federation::DefaultOptions();
  options.run.max_iterations_kept = 1;
  Federation f(options);
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.Step(WatchStart{70, "tiny", 0, 5});
  f.IterateAll(0);
  f.IterateAll(1);
  REQUIRE(f.Last<EndWatch>().size() == 1);
  CHECK(f.Last<EndWatch>().at(0).status.code() == absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace geopipe
