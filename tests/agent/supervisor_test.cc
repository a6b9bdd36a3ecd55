#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <fstream>

#include "agent/worker_supervisor.h"
#include "runtime/base/files.h"
#include "runtime/base/inbox.h"
#include "tests/agent/agent_harness.h"

namespace geopipe::agent {
namespace {

// Runs a shell script in the place of the worker program.
class Supervised {
 public:
  explicit Supervised(const std::string& script, const WorkerSupervisorOptions& options = {}) {
    config_ = TestConfig();
    config_.state_dir = folder_.path();
    config_.worker_binary = (folder_.path() / "worker").string();
    std::ofstream(config_.worker_binary) << "#!/bin/sh\n" << script << "\n";
    chmod(config_.worker_binary.c_str(), 0700);
    auto supervisor = WorkerSupervisor::Create(config_, options, [this](Event e) { return inbox_.Push(std::move(e)); });
    REQUIRE(supervisor.ok());
    supervisor_ = *std::move(supervisor);
  }
  ~Supervised() { inbox_.Close(); }

  WorkerSupervisor& supervisor() { return *supervisor_; }
  std::string log() const { return config_.state_dir + "/logs/worker-0.log"; }

  // Waits for it; half a minute is for ever.
  WorkerExited Exit() {
    std::optional<Event> event = inbox_.Pop(std::chrono::seconds(30));
    REQUIRE(event.has_value());
    REQUIRE(std::holds_alternative<WorkerExited>(*event));
    return std::get<WorkerExited>(*event);
  }

 private:
  TempFolder folder_ = *TempFolder::Create("geopipe-supervisor");
  AgentConfig config_;
  Inbox<Event> inbox_{16};
  std::unique_ptr<WorkerSupervisor> supervisor_;
};

TEST_CASE("a worker's command line and environment") {
  AgentConfig config = TestConfig();
  config.worker_binary = "/bin/geopipe-worker";
  config.die_with_parent = GENERATE(false, true);
  config.metrics = GENERATE("", "127.0.0.1:9465", "[::1]:0");
  const std::string host = config.metrics.starts_with('[') ? "[::1]" : "127.0.0.1";
  config.ucx_private_network = GENERATE("", "10.20.0.0/16");
  config.ucx_ports = config.ucx_private_network.empty() ? "" : "47000-47063";
  config.log_level = LogLevel::kWarning;
  config.log_format = LogFormat::kJson;
  const ProcessSpec spec = WorkerProcess(config, TestWorker(1, 77));
  std::string line = spec.program;
  for (const std::string& argument : spec.args) {
    line += " " + argument;
  }
  CHECK(line == std::string("/bin/geopipe-worker --agent unix:/state/agent.sock --site east --node east-0 --device 1 "
                            "--job tiny --incarnation 77 --orphan-grace 30s --log-level warning --log-format json") +
                    (config.ucx_private_network.empty() ? "" : " --private-network 10.20.0.0/16 --ports 47000-47063") +
                    (config.metrics.empty()
                         ? ""
                         : " --metrics " + host + ":0 --metrics-address-file /state/worker-1.metrics.address") +
                    (config.die_with_parent ? " --die-with-parent" : ""));
  CHECK(spec.environment ==
        std::vector<std::pair<std::string, std::string>>{
            {"UCX_TLS", "tcp"}, {"UCX_NET_DEVICES", "lo"}, {"OMP_NUM_THREADS", "3"}, {"OMP_WAIT_POLICY", "passive"}});
  CHECK(spec.stderr_path == "/state/logs/worker-1.log");
  CHECK(spec.parent_death_signal == (config.die_with_parent ? SIGKILL : 0));
}

TEST_CASE("a worker that exits by itself: code, pid and last words") {
  Supervised supervised("echo threads $OMP_NUM_THREADS; echo cannot go on >&2; exit 3");
  const auto pid = supervised.supervisor().Start(TestWorker(0));
  REQUIRE(pid.ok());
  const WorkerExited exited = supervised.Exit();
  CHECK(exited.worker == WorkerKey{0, 7});
  CHECK(exited.pid == *pid);
  CHECK(exited.exit_code == 3);
  CHECK(exited.signal == 0);
  CHECK(exited.last_words == "threads 3\ncannot go on\n");
}

TEST_CASE("a worker killed by a signal") {
  Supervised supervised("exec sleep 600");
  REQUIRE(supervised.supervisor().Start(TestWorker(0)).ok());
  supervised.supervisor().Signal({0, 6}, SIGKILL);  // another incarnation: not this one
  supervised.supervisor().Signal({0, 7}, SIGTERM);
  const WorkerExited exited = supervised.Exit();
  CHECK(exited.signal == SIGTERM);
  CHECK(exited.exit_code == 0);
  supervised.supervisor().Signal({0, 7}, SIGKILL);  // gone: nothing happens
}

TEST_CASE("a device has one worker at a time") {
  Supervised supervised("exec sleep 600");
  REQUIRE(supervised.supervisor().Start(TestWorker(0)).ok());
  const auto second = supervised.supervisor().Start(TestWorker(0, 8));
  CHECK(second.status().code() == absl::StatusCode::kFailedPrecondition);
  supervised.supervisor().Signal({0, 7}, SIGKILL);
  CHECK(supervised.Exit().signal == SIGKILL);
  CHECK(supervised.supervisor().Start(TestWorker(0, 8)).ok());
}

TEST_CASE("last words are the worker's own, not those of the one before on the same log") {
  Supervised supervised("echo incarnation ${12}");
  for (const uint64_t incarnation : {7, 8}) {
    REQUIRE(supervised.supervisor().Start(TestWorker(0, incarnation)).ok());
    CHECK(supervised.Exit().last_words == "incarnation " + std::to_string(incarnation) + "\n");
  }
}

TEST_CASE("a program that cannot be executed is an error with its path") {
  AgentConfig config = TestConfig();
  const TempFolder folder = *TempFolder::Create("geopipe-supervisor");
  config.state_dir = folder.path();
  config.worker_binary = "/nowhere/geopipe-worker";
  auto supervisor = WorkerSupervisor::Create(config, {}, [](const Event&) { return false; });
  REQUIRE(supervisor.ok());
  const auto pid = (*supervisor)->Start(TestWorker(0));
  CHECK(pid.status().code() == absl::StatusCode::kNotFound);
  CHECK_THAT(std::string(pid.status().message()), Catch::Contains("/nowhere/geopipe-worker"));
}

TEST_CASE("a log past its bound is moved aside before the next worker") {
  Supervised supervised("echo 0123456789", {.log_bytes = 8});
  for (int i = 0; i < 3; ++i) {
    REQUIRE(supervised.supervisor().Start(TestWorker(0)).ok());
    CHECK(supervised.Exit().last_words == "0123456789\n");
  }
  CHECK(*ReadFile(supervised.log(), 100) == "0123456789\n");
  CHECK(*ReadFile(supervised.log() + ".1", 100) == "0123456789\n");
}

}  // namespace
}  // namespace geopipe::agent
