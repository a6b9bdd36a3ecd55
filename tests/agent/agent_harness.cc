#include "tests/agent/agent_harness.h"

#include <fmt/format.h>

#include <utility>

namespace geopipe::agent {
namespace {

std::string KeyText(int32_t device, uint64_t incarnation) { return fmt::format("{}#{}", device, incarnation); }

std::string DescribeReport(const v1::WorkerReport& report) {
  switch (report.report_case()) {
    case v1::WorkerReport::kHello:
      return "hello";
    case v1::WorkerReport::kIteration:
      return fmt::format("iteration {}", report.iteration().iteration());
    case v1::WorkerReport::kHeartbeat:
      return fmt::format("beat {}", report.heartbeat().iteration());
    default:
      return fmt::format("report {}", static_cast<int>(report.report_case()));
  }
}

std::string DescribeNodeReport(const v1::NodeReport& report) {
  if (report.has_worker()) {
    const v1::WorkerId& worker = report.worker().worker();
    return fmt::format("{} {}", KeyText(worker.device(), worker.incarnation()),
                       DescribeReport(report.worker().report()));
  }
  if (report.has_probe()) {
    const v1::ProbeReport& probe = report.probe();
    return fmt::format("probe {} {}", probe.probe(),
                       probe.has_opened()     ? "opened"
                       : probe.has_measured() ? "measured"
                                              : "failed");
  }
  if (report.has_silent()) {
    const v1::WorkerId& worker = report.silent().worker();
    return fmt::format("{} silent {} ms", KeyText(worker.device(), worker.incarnation()),
                       report.silent().silent_ns() / kMs);
  }
  const v1::WorkerExit& exit = report.exit();
  return fmt::format("{} exit {}/{}{}{}", KeyText(exit.worker().device(), exit.worker().incarnation()),
                     exit.exit_code(), exit.signal(), exit.last_words().empty() ? "" : ": ", exit.last_words());
}

std::string DescribeUp(const v1::ConnectRequest& message) {
  if (message.has_heartbeat()) {
    return "heartbeat";
  }
  std::string text;
  for (const v1::NodeReport& report : message.reports().reports()) {
    text += fmt::format("{}{}", text.empty() ? "" : " + ", DescribeNodeReport(report));
  }
  return text;
}

struct Describer {
  std::string operator()(const Dial& e) const {
    std::string living;
    for (const v1::WorkerId& worker : e.hello.hello().workers()) {
      living += fmt::format("{}{}", living.empty() ? "" : " ", KeyText(worker.device(), worker.incarnation()));
    }
    return fmt::format("dial {} [{}]", e.connection, living);
  }
  std::string operator()(const HangUp& e) const { return fmt::format("hangup {}", e.connection); }
  std::string operator()(const SendToCoordinator& e) const {
    return fmt::format("send {} {}", e.connection, DescribeUp(e.message));
  }
  std::string operator()(const StartWorker& e) const {
    return fmt::format("start {}{}", KeyText(e.worker.device(), e.worker.incarnation()),
                       e.run == 0 ? "" : fmt::format(" of run {}", e.run));
  }
  std::string operator()(const SignalWorker& e) const {
    return fmt::format("signal {} {}", KeyText(e.worker.device, e.worker.incarnation), e.signal);
  }
  std::string operator()(const ForgetExit& e) const {
    return fmt::format("forget {}", KeyText(e.worker.device, e.worker.incarnation));
  }
  std::string operator()(const ReadOn& e) const { return fmt::format("read on {}", e.session); }
  std::string operator()(const RememberCoordinator& e) const { return fmt::format("remember {}", e.incarnation); }
  std::string operator()(const AcceptSession& e) const { return fmt::format("accept {}", e.session); }
  std::string operator()(const SendToWorker& e) const {
    if (!e.message.has_command()) {
      return fmt::format("beat {} taken {}", e.session, e.message.reports_taken());
    }
    const v1::WorkerCommand& command = e.message.command();
    const char* what = command.has_stop()      ? "stop"
                       : command.has_prepare() ? "prepare"
                       : command.has_commit()  ? "commit"
                                               : "profile";
    return fmt::format("command {} {}", e.session, what);
  }
  std::string operator()(const CloseSession& e) const {
    return fmt::format("close {} {}", e.session, absl::StatusCodeToString(e.status.code()));
  }
  std::string operator()(const StartProbe& e) const {
    return fmt::format("probe {}{}{}{}{}", e.order.probe(), e.order.address().empty() ? "" : " dials ",
                       e.order.address(), e.pacer_path.empty() ? "" : " pacer ", e.pacer_path);
  }
  std::string operator()(const StopProbe& e) const { return fmt::format("stop probe {}", e.probe); }
  std::string operator()(const Announce&) const { return "announce"; }
  std::string operator()(const WriteLog&) const { return "log"; }
  std::string operator()(const Exit& e) const {
    return e.status.ok() ? "exit" : fmt::format("exit {}", absl::StatusCodeToString(e.status.code()));
  }
};

CoordinatorMessage From(ConnectionId connection, v1::ConnectResponse message) {
  return {connection, std::move(message)};
}

WorkerMessage From(SessionId session, const v1::WorkerId& worker) {
  WorkerMessage event{.session = session, .message = {}};
  *event.message.mutable_worker() = worker;
  return event;
}

}  // namespace

AgentConfig TestConfig() {
  AgentConfig config;
  config.site = "east";
  config.node = "east-0";
  config.state_dir = "/state";
  config.devices = 2;
  config.threads = 3;
  config.device.memory_bytes = int64_t{1} << 30;
  config.links = {
      {.to = "west", .latency_ns = 20 * kMs, .bandwidth_bytes_per_s = 1e8, .shape = true, .pacer_path = ""}};
  return config;
}

AgentOptions TestOptions() {
  AgentOptions options;
  options.incarnation = 42;
  options.seed = 1;
  options.version = "1.2.3";
  options.gather_ns = 0;
  options.known_coordinator = 9;
  options.fleet.attach_timeout_ns = 40 * kS;
  options.fleet.drain_timeout_ns = kS;
  return options;
}

v1::WorkerId TestWorker(int32_t device, uint64_t incarnation, const std::string& job) {
  v1::WorkerId id;
  id.set_site("east");
  id.set_node("east-0");
  id.set_device(device);
  id.set_job(job);
  id.set_incarnation(incarnation);
  return id;
}

CoordinatorMessage Welcome(ConnectionId connection, int64_t heartbeat_ns, uint64_t incarnation,
                           int64_t silent_after_ns) {
  v1::ConnectResponse message;
  message.mutable_welcome()->set_coordinator_incarnation(incarnation);
  message.mutable_welcome()->set_silent_after_ns(silent_after_ns);
  message.mutable_welcome()->set_heartbeat_interval_ns(heartbeat_ns);
  return From(connection, std::move(message));
}

CoordinatorMessage Start(ConnectionId connection, std::vector<int32_t> devices, uint64_t incarnation,
                         const std::string& job) {
  v1::ConnectResponse message;
  v1::StartWorkers& start = *message.mutable_start_workers();
  start.set_job(job);
  start.set_incarnation(incarnation);
  start.mutable_devices()->Assign(devices.begin(), devices.end());
  return From(connection, std::move(message));
}

CoordinatorMessage Stop(ConnectionId connection, int64_t grace_ns, const std::string& job,
                        const std::vector<int32_t>& devices, uint64_t incarnation) {
  v1::ConnectResponse message;
  message.mutable_stop_workers()->set_job(job);
  message.mutable_stop_workers()->set_grace_ns(grace_ns);
  message.mutable_stop_workers()->set_reason("finished");
  message.mutable_stop_workers()->mutable_devices()->Assign(devices.begin(), devices.end());
  message.mutable_stop_workers()->set_incarnation(incarnation);
  return From(connection, std::move(message));
}

CoordinatorMessage Command(ConnectionId connection, const v1::WorkerId& worker, v1::WorkerCommand command) {
  v1::ConnectResponse message;
  *message.mutable_command()->mutable_worker() = worker;
  *message.mutable_command()->mutable_command() = std::move(command);
  return From(connection, std::move(message));
}

CoordinatorMessage Numbered(uint64_t sequence, CoordinatorMessage order) {
  order.message.set_sequence(sequence);
  return order;
}

CoordinatorMessage Taken(ConnectionId connection, uint64_t sequence) {
  v1::ConnectResponse message;
  message.mutable_reports_taken()->set_sequence(sequence);
  return From(connection, std::move(message));
}

CoordinatorMessage Probe(ConnectionId connection, uint64_t probe, const std::string& address, bool shaped) {
  v1::ConnectResponse message;
  v1::ProbeLink& order = *message.mutable_probe_link();
  order.set_probe(probe);
  order.set_to_site("west");
  order.set_address(address);
  order.set_latency_ns(20 * kMs);
  order.set_bandwidth_bytes_per_s(1e8);
  order.set_shaped(shaped);
  order.set_limit_ns(10 * kS);
  order.set_budget_ns(3 * kS);
  return From(connection, std::move(message));
}

CoordinatorMessage EndOfProbe(ConnectionId connection, uint64_t probe) {
  v1::ConnectResponse message;
  message.mutable_end_probe()->set_probe(probe);
  return From(connection, std::move(message));
}

ProbeNews OpenedNews(uint64_t probe) {
  ProbeNews news;
  news.report.set_probe(probe);
  news.report.mutable_opened()->set_address("127.0.0.1:1");
  return news;
}

ProbeNews MeasuredNews(uint64_t probe) {
  ProbeNews news;
  news.report.set_probe(probe);
  news.report.mutable_measured()->mutable_outbound()->set_latency_ns(20 * kMs);
  return news;
}

ProbeNews FailedNews(uint64_t probe) {
  ProbeNews news;
  news.report.set_probe(probe);
  news.report.mutable_failed()->set_message("no");
  return news;
}

WorkerMessage HelloFrom(SessionId session, const v1::WorkerId& worker) {
  WorkerMessage event = From(session, worker);
  event.message.mutable_report()->mutable_hello()->set_version("1.2.3");
  return event;
}

WorkerMessage NumberingHelloFrom(SessionId session, const v1::WorkerId& worker, uint64_t agent,
                                 uint64_t commands_taken) {
  WorkerMessage event = HelloFrom(session, worker);
  v1::WorkerHello& hello = *event.message.mutable_report()->mutable_hello();
  hello.mutable_status()->set_phase(v1::WORKER_PHASE_IDLE);
  hello.set_agent_incarnation(agent);
  hello.set_commands_taken(commands_taken);
  return event;
}

WorkerMessage Numbered(uint64_t sequence, WorkerMessage event, uint64_t commands_taken) {
  event.message.mutable_report()->set_sequence(sequence);
  event.message.set_commands_taken(commands_taken);
  return event;
}

KeeperListed Listed(const std::vector<v1::WorkerId>& running, const std::vector<v1::WorkerExit>& ended) {
  KeeperListed listed;
  for (const v1::WorkerId& worker : running) {
    listed.running.push_back({worker, 100 + worker.device()});
  }
  listed.ended = ended;
  return listed;
}

v1::WorkerExit ExitOf(const v1::WorkerId& worker, int signal) {
  v1::WorkerExit exit;
  *exit.mutable_worker() = worker;
  exit.set_pid(100 + worker.device());
  exit.set_signal(signal);
  return exit;
}

WorkerMessage IterationFrom(SessionId session, const v1::WorkerId& worker, int64_t iteration) {
  WorkerMessage event = From(session, worker);
  event.message.mutable_report()->mutable_iteration()->set_iteration(iteration);
  return event;
}

WorkerMessage HeartbeatFrom(SessionId session, const v1::WorkerId& worker, int64_t iteration) {
  WorkerMessage event = From(session, worker);
  event.message.mutable_report()->mutable_heartbeat()->set_iteration(iteration);
  return event;
}

std::string Describe(const Effect& effect) { return std::visit(Describer{}, effect); }

std::vector<std::string> Describe(const Effects& effects) {
  std::vector<std::string> lines;
  for (const Effect& effect : effects) {
    if (!std::holds_alternative<WriteLog>(effect) && !std::holds_alternative<ReadOn>(effect)) {
      lines.push_back(Describe(effect));
    }
  }
  return lines;
}

}  // namespace geopipe::agent
