// The agent's end of the keeper, and the keeper itself as a process of its own.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "agent/keeper.h"
#include "agent/kept/keeper_table.h"
#include "agent/worker_supervisor.h"
#include "runtime/base/clock.h"
#include "runtime/base/files.h"
#include "runtime/base/inbox.h"
#include "runtime/base/packet_socket.h"
#include "runtime/base/process.h"
#include "tests/agent/agent_harness.h"
#include "tests/support/sanitized.h"

namespace geopipe::agent {
namespace {

// A node's state folder, with a shell script in the place of the worker program.
class Node {
 public:
  explicit Node(const std::string& script) {
    config_ = TestConfig();
    config_.state_dir = folder_.path();
    config_.worker_binary = (folder_.path() / "worker").string();
    InstallScript(script);
  }
  // Kills what has outlived the agents of the test.
  ~Node() {
    if (config_.die_with_parent) {
      return;
    }
    for (const int64_t pid : pids) {
      kill(static_cast<pid_t>(pid), SIGKILL);
    }
    if (const int64_t keeper = KeeperPid(); keeper > 0) {
      kill(static_cast<pid_t>(keeper), SIGKILL);
    }
  }

  // Puts a file in the place of the worker program as packages do: beside it, and renamed.
  void Install(const std::filesystem::path& from) const {
    const std::string beside = config_.worker_binary + ".new";
    std::filesystem::copy_file(from, beside, std::filesystem::copy_options::overwrite_existing);
    std::filesystem::rename(beside, config_.worker_binary);
  }
  void InstallScript(const std::string& script) const {
    const std::string file = config_.worker_binary + ".script";
    std::ofstream(file) << "#!/bin/sh\n" << script << "\n";
    chmod(file.c_str(), 0700);
    Install(file);
  }

  AgentConfig& config() { return config_; }
  std::string log() const { return config_.state_dir + "/logs/worker-0.log"; }
  std::string keeper_log() const { return config_.state_dir + "/logs/keeper.log"; }

  // Process id of the keeper that was started last; 0: none was.
  int64_t KeeperPid() const {
    const absl::StatusOr<std::string> log = ReadFile(keeper_log(), 1 << 20);
    const size_t begin = log.ok() ? log->rfind("keeper of ") : std::string::npos;
    const size_t at = begin == std::string::npos ? begin : log->find("(pid ", begin);
    return at == std::string::npos ? 0 : std::stoll(log->substr(at + 5));
  }

  std::vector<int64_t> pids;  // of workers, to be ended with the test

 private:
  TempFolder folder_ = *TempFolder::Create("geopipe-supervisor");
  AgentConfig config_;
};

// One agent's supervisor.
class Supervised {
 public:
  explicit Supervised(Node& node, const WorkerSupervisorOptions& options = {}) : node_(node) {
    auto supervisor =
        WorkerSupervisor::Create(node.config(), options, [this](Event e) { return inbox_.Push(std::move(e)); });
    REQUIRE(supervisor.ok());
    supervisor_ = *std::move(supervisor);
    first_list_ = Next<KeeperListed>();
  }
  ~Supervised() { inbox_.Close(); }

  WorkerSupervisor* operator->() { return supervisor_.get(); }
  const KeeperListed& first_list() const { return first_list_; }

  // Waits for the next event; half a minute is for ever.
  template <class T>
  T Next() {
    std::optional<Event> event = inbox_.Pop(std::chrono::seconds(30));
    REQUIRE(event.has_value());
    REQUIRE(std::holds_alternative<T>(*event));
    return std::get<T>(*std::move(event));
  }

  int64_t Start(uint64_t incarnation = 7, const std::string& job = "tiny", uint64_t run = 0, int32_t device = 0) {
    supervisor_->Carry(StartWorker{TestWorker(device, incarnation, job), run});
    const auto started = Next<WorkerStarted>();
    CHECK(started.worker == WorkerKey{device, incarnation});
    node_.pids.push_back(started.pid);
    return started.pid;
  }

 private:
  Node& node_;
  Inbox<Event> inbox_{16};
  KeeperListed first_list_;
  std::unique_ptr<WorkerSupervisor> supervisor_;
};

void KillWorker(Supervised& supervised, uint64_t incarnation, int32_t device = 0) {
  supervised->Carry(SignalWorker{{device, incarnation}, SIGKILL});
  CHECK(supervised.Next<WorkerExited>().worker == WorkerKey{device, incarnation});
}

bool Lives(int64_t pid) { return kill(static_cast<pid_t>(pid), 0) == 0; }

template <class Holds>
void WaitUntil(Holds holds) {
  const int64_t deadline_ns = Clock::Real().NowNs() + 30 * kS;
  while (!holds()) {
    REQUIRE(Clock::Real().NowNs() < deadline_ns);
    Clock::Real().SleepUntilNs(Clock::Real().NowNs() + 5 * kMs);
  }
}

// Waits until the process is gone, as a zombie, too. A keeper of an agent that has left is a child of this process.
void WaitForEnd(int64_t pid) {
  WaitUntil([&] {
    waitpid(static_cast<pid_t>(pid), nullptr, WNOHANG);
    return !Lives(pid);
  });
}

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
}

TEST_CASE("a worker of a GPU sees that one alone, and the library that its agent was told of") {
  AgentConfig config = TestConfig();
  config.gpu_library = "/tests/libgpu.so";
  using Environment = std::vector<std::pair<std::string, std::string>>;
  const auto gpu_of = [&](int32_t device) {
    const Environment all = WorkerProcess(config, TestWorker(device, 77)).environment;
    return Environment(all.begin() + 4, all.end());
  };
  CHECK(gpu_of(1).empty());
  config.device.kind = "cuda";
  CHECK(gpu_of(1) == Environment{{"CUDA_DEVICE_ORDER", "PCI_BUS_ID"}, {"CUDA_VISIBLE_DEVICES", "1"}});
  config.gpu_ordinals = {3, 5};
  CHECK(gpu_of(1) == Environment{{"CUDA_DEVICE_ORDER", "PCI_BUS_ID"}, {"CUDA_VISIBLE_DEVICES", "5"}});
  config.gpu_ordinals.clear();
  config.gpu_uuids = {"GPU-0a", "GPU-0b"};
  CHECK(gpu_of(0) == Environment{{"CUDA_DEVICE_ORDER", "PCI_BUS_ID"}, {"CUDA_VISIBLE_DEVICES", "GPU-0a"}});
  const std::vector<std::string> args = WorkerProcess(config, TestWorker(0, 77)).args;
  CHECK(std::vector<std::string>(args.end() - 2, args.end()) ==
        std::vector<std::string>{"--gpu-library", "/tests/libgpu.so"});
}

TEST_CASE("a worker that exits by itself: code, pid and last words, and no zombie") {
  Node node("echo threads $OMP_NUM_THREADS; echo cannot go on >&2; exit 3");
  Supervised supervised(node);
  const int64_t pid = supervised.Start();
  const auto exited = supervised.Next<WorkerExited>();
  CHECK(exited.worker == WorkerKey{0, 7});
  CHECK(exited.pid == pid);
  CHECK(exited.exit_code == 3);
  CHECK(exited.signal == 0);
  CHECK(exited.last_words == "threads 3\ncannot go on\n");
  CHECK_FALSE(Lives(pid));
}

TEST_CASE("a worker killed by a signal") {
  Node node("exec sleep 600");
  Supervised supervised(node);
  supervised.Start();
  supervised->Carry(SignalWorker{{0, 6}, SIGKILL});  // another incarnation: not this one
  supervised->Carry(SignalWorker{{0, 7}, SIGTERM});
  const auto exited = supervised.Next<WorkerExited>();
  CHECK(exited.signal == SIGTERM);
  CHECK(exited.exit_code == 0);
  supervised->Carry(SignalWorker{{0, 7}, SIGKILL});  // gone: nothing happens
}

TEST_CASE("a device has one worker at a time, and an order that comes twice is done once") {
  Node node("exec sleep 600");
  Supervised supervised(node);
  const int64_t pid = supervised.Start();
  CHECK(supervised.Start() == pid);
  supervised->Carry(StartWorker{TestWorker(0, 8)});
  CHECK(supervised.Next<WorkerStartFailed>().status.code() == absl::StatusCode::kFailedPrecondition);
  supervised->Carry(SignalWorker{{0, 7}, SIGKILL});
  CHECK(supervised.Next<WorkerExited>().signal == SIGKILL);
  supervised->Carry(StartWorker{TestWorker(0)});  // it has ended, and is not started again
  CHECK(supervised.Next<WorkerExited>().signal == SIGKILL);
  supervised.Start(8);
}

TEST_CASE("last words are the worker's own, not those of the one before on the same log") {
  Node node("echo incarnation ${12}");
  Supervised supervised(node);
  for (const uint64_t incarnation : {7, 8}) {
    supervised.Start(incarnation);
    CHECK(supervised.Next<WorkerExited>().last_words == "incarnation " + std::to_string(incarnation) + "\n");
  }
}

TEST_CASE("a program that cannot be executed is an error with its path") {
  Node node("");
  node.config().worker_binary = "/nowhere/geopipe-worker";
  Supervised supervised(node);
  supervised->Carry(StartWorker{TestWorker(0)});
  const absl::Status status = supervised.Next<WorkerStartFailed>().status;
  CHECK(status.code() == absl::StatusCode::kNotFound);
  CHECK_THAT(std::string(status.message()), Catch::Contains("/nowhere/geopipe-worker"));
}

TEST_CASE("a log past its bound is moved aside before the next worker") {
  Node node("echo 0123456789");
  Supervised supervised(node, {.log_bytes = 8, .keeper_program = ""});
  for (const uint64_t incarnation : {7, 8, 9}) {
    supervised.Start(incarnation);
    CHECK(supervised.Next<WorkerExited>().last_words == "0123456789\n");
  }
  CHECK(*ReadFile(node.log(), 100) == "0123456789\n");
  CHECK(*ReadFile(node.log() + ".1", 100) == "0123456789\n");
}

TEST_CASE("workers outlive their agent, and the next one hears what runs and what has ended") {
  Node node("trap 'exit 5' TERM; echo ready; while :; do sleep 0.01; done");
  int64_t pid = 0;
  {
    Supervised first(node);
    CHECK(first.first_list().running.empty());
    pid = first.Start();
  }
  {
    Supervised second(node);
    REQUIRE(second.first_list().running.size() == 1);
    CHECK(second.first_list().running[0].pid == pid);
    CHECK(second.first_list().running[0].worker.job() == "tiny");
    CHECK(second.first_list().ended.empty());
  }
  WaitUntil([&] { return ReadFile(node.log(), 100).value_or("").starts_with("ready"); });
  kill(static_cast<pid_t>(pid), SIGTERM);  // while nobody but the keeper is there
  WaitForEnd(pid);
  for (int agent = 0; agent < 2; ++agent) {
    Supervised next(node);
    CHECK(next.first_list().running.empty());
    REQUIRE(next.first_list().ended.size() == 1);
    CHECK(next.first_list().ended[0].exit_code() == 5);
    CHECK(next.first_list().ended[0].pid() == pid);
    CHECK(next.first_list().ended[0].worker().job() == "tiny");
    if (agent == 1) {
      next->Carry(ForgetExit{{0, 7}});
      next.Start(8);  // after it, in order
      next->Carry(SignalWorker{{0, 8}, SIGKILL});
      next.Next<WorkerExited>();
      next->Carry(ForgetExit{{0, 8}});
      next->Carry(StartWorker{TestWorker(1, 9)});
      next.Next<WorkerStarted>();
      next->Carry(SignalWorker{{1, 9}, SIGKILL});
      next.Next<WorkerExited>();
    }
  }
  const Supervised last(node);
  REQUIRE(last.first_list().ended.size() == 1);
  CHECK(last.first_list().ended[0].worker().incarnation() == 9);
}

TEST_CASE("a keeper that is killed is followed by another, which knows the workers and how those ended that had") {
  const bool agent_lives = GENERATE(true, false);
  Node node("[ ${12} = 6 ] && exit 4; exec sleep 600");
  auto supervised = std::make_unique<Supervised>(node);
  supervised->Start(6);
  CHECK(supervised->Next<WorkerExited>().exit_code == 4);
  const int64_t pid = supervised->Start();
  const int64_t keeper = node.KeeperPid();
  REQUIRE(keeper > 0);
  if (!agent_lives) {
    supervised.reset();
  }
  kill(static_cast<pid_t>(keeper), SIGKILL);
  KeeperListed list;
  if (agent_lives) {
    list = supervised->Next<KeeperListed>();
  } else {
    supervised = std::make_unique<Supervised>(node);
    list = supervised->first_list();
  }
  CHECK(node.KeeperPid() != keeper);
  REQUIRE(list.running.size() == 1);
  CHECK(list.running[0].pid == pid);
  CHECK(Lives(pid));
  REQUIRE(list.ended.size() == 1);
  CHECK(list.ended[0].exit_code() == 4);
  (*supervised)->Carry(SignalWorker{{0, 7}, SIGTERM});
  const auto exited = supervised->Next<WorkerExited>();
  CHECK(exited.pid == pid);
  CHECK(exited.exit_code == kUnknownExitCode);
  CHECK(exited.signal == 0);
}

// The table of such a keeper is a pipe here, which nobody reads: it waits in the middle of writing it.
TEST_CASE("a worker whose keeper is killed before the table names it does not run, and the next keeper starts it") {
  Node node("echo ran; exec sleep 600");
  Supervised supervised(node);
  const int64_t keeper = node.KeeperPid();
  const std::string table = KeeperTablePath(node.config().state_dir);
  REQUIRE(mkfifo(table.c_str(), 0600) == 0);
  supervised->Carry(StartWorker{TestWorker(0)});
  const std::string children = fmt::format("/proc/{}/task/{}/children", keeper, keeper);
  WaitUntil([&] { return !ReadFile(children, 100).value_or("").empty(); });
  const int64_t pid = std::stoll(*ReadFile(children, 100));
  kill(static_cast<pid_t>(keeper), SIGKILL);
  WaitForEnd(pid);
  CHECK(*ReadFile(node.log(), 100) == "");
  REQUIRE(unlink(table.c_str()) == 0);
  const auto list = supervised.Next<KeeperListed>();
  CHECK(list.running.empty());
  CHECK(list.ended.empty());
  CHECK(supervised.Start() != pid);
  WaitUntil([&] { return ReadFile(node.log(), 100).value_or("") == "ran\n"; });
}

TEST_CASE("a worker whose start cannot be written to the table is not started, and the reason is told") {
  Node node("echo ran");
  Supervised supervised(node);
  const std::string table = KeeperTablePath(node.config().state_dir);
  REQUIRE(mkdir(table.c_str(), 0700) == 0);
  supervised->Carry(StartWorker{TestWorker(0)});
  CHECK_THAT(std::string(supervised.Next<WorkerStartFailed>().status.message()), Catch::Contains("keeper.table"));
  CHECK(ReadFile(node.log(), 100).value_or("") == "");
  REQUIRE(rmdir(table.c_str()) == 0);
  supervised.Start(8);  // when there is room again
  WaitUntil([&] { return ReadFile(node.log(), 100).value_or("") == "ran\n"; });
}

TEST_CASE("a worker that ended while there was no keeper is told without a code") {
  Node node("exec sleep 600");
  int64_t pid = 0;
  {
    Supervised supervised(node);
    pid = supervised.Start();
  }
  kill(static_cast<pid_t>(node.KeeperPid()), SIGKILL);
  WaitForEnd(node.KeeperPid());
  kill(static_cast<pid_t>(pid), SIGKILL);
  WaitForEnd(pid);
  const Supervised next(node);
  CHECK(next.first_list().running.empty());
  REQUIRE(next.first_list().ended.size() == 1);
  CHECK(next.first_list().ended[0].exit_code() == kUnknownExitCode);
  CHECK(next.first_list().ended[0].signal() == 0);
}

TEST_CASE("a keeper that is to die with its agent takes the workers with it") {
  Node node("exec sleep 600");
  node.config().die_with_parent = true;
  int64_t pid = 0;
  int64_t keeper = 0;
  {
    Supervised supervised(node);
    pid = supervised.Start();
    keeper = node.KeeperPid();
    CHECK(Lives(keeper));
  }
  WaitForEnd(keeper);
  WaitForEnd(pid);
}

TEST_CASE("a keeper whose folder is gone leaves when its worker has ended, and what stands there now alone") {
  Node node("exec sleep 600");
  const std::string state = node.config().state_dir;
  const std::string away = state + ".away";
  const int64_t pid = std::make_unique<Supervised>(node)->Start();
  const int64_t keeper = node.KeeperPid();
  std::filesystem::rename(state, away);
  std::filesystem::create_directory(state);
  std::ofstream(KeeperSocketPath(state)) << "another's";
  kill(static_cast<pid_t>(pid), SIGKILL);
  WaitForEnd(keeper);
  CHECK(std::filesystem::exists(KeeperSocketPath(state)));
  CHECK_FALSE(std::filesystem::exists(KeeperTablePath(state)));
  CHECK_THAT(*ReadFile(away + "/logs/keeper.log", 1 << 20), Catch::Contains("the state folder is gone"));
  std::filesystem::remove_all(away);
}

TEST_CASE("of the agent's environment a worker gets what concerns it, and what its agent is told to pass") {
  setenv("SECRET_TOKEN", "of the agent alone", 1);
  setenv("UCX_TCP_TUNED", "by the site", 1);
  setenv("SITE_CACHE", "/cache", 1);
  Node node("env; echo ready; exec sleep 600");
  node.config().pass_environment = {"SITE_CACHE", "NOT_SET"};
  Supervised supervised(node);
  supervised.Start();
  WaitUntil([&] { return ReadFile(node.log(), 1 << 16).value_or("").ends_with("\nready\n"); });
  const std::string log = "\n" + *ReadFile(node.log(), 1 << 16);
  CHECK_THAT(log, Catch::Contains("\nUCX_TCP_TUNED=by the site\n") && Catch::Contains("\nSITE_CACHE=/cache\n") &&
                      Catch::Contains("\nPATH=") && Catch::Contains("\nOMP_WAIT_POLICY=passive\n") &&
                      !Catch::Contains("SECRET_TOKEN") && !Catch::Contains("NOT_SET"));
}

// Seconds of a processor that the process has used.
double ProcessorSeconds(int64_t pid) {
  const std::string stat = *ReadFile(fmt::format("/proc/{}/stat", pid), 4096);
  std::istringstream fields(stat.substr(stat.rfind(')') + 1));
  std::string skipped;
  for (int i = 0; i < 11; ++i) {
    fields >> skipped;
  }
  double user = 0;
  double system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

TEST_CASE("a keeper that has no descriptor for an agent does not spin, and takes it when there is one") {
  Node node("exec sleep 600");
  auto supervised = std::make_unique<Supervised>(node);
  supervised->Start();
  const auto keeper = static_cast<pid_t>(node.KeeperPid());
  supervised.reset();
  rlimit before{};
  REQUIRE(prlimit(keeper, RLIMIT_NOFILE, nullptr, &before) == 0);
  const rlimit none{.rlim_cur = 3, .rlim_max = before.rlim_max};
  REQUIRE(prlimit(keeper, RLIMIT_NOFILE, &none, nullptr) == 0);
  {
    const absl::StatusOr<UniqueFd> waiting = ConnectPackets(KeeperSocketPath(node.config().state_dir));
    REQUIRE(waiting.ok());
    const double used = ProcessorSeconds(keeper);
    Clock::Real().SleepUntilNs(Clock::Real().NowNs() + 500 * kMs);
    CHECK(ProcessorSeconds(keeper) - used < 0.03);
  }
  REQUIRE(prlimit(keeper, RLIMIT_NOFILE, &before, nullptr) == 0);
  Supervised next(node);
  CHECK(next.first_list().running.size() == 1);
}

// Its own, that of its table, and ThreadSanitizer's.
constexpr std::ptrdiff_t kKeeperThreads = kThreadSanitized ? 3 : 2;

TEST_CASE("what a keeper does not understand changes nothing, and a new connection takes over") {
  Node node("exec sleep 600");
  Supervised supervised(node);
  const int64_t pid = supervised.Start();
  const int64_t keeper = node.KeeperPid();
  struct stat info {};
  REQUIRE(stat(KeeperSocketPath(node.config().state_dir).c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
  {
    const absl::StatusOr<UniqueFd> other = ConnectPackets(KeeperSocketPath(node.config().state_dir));
    REQUIRE(other.ok());
    for (const std::string& packet : {std::string("\xff\xff\xff\xff"), std::string(kMaxKeeperPacketBytes + 1, 'x'),
                                      std::string("\x0a\x00", 2), std::string("\x12\x04\x08\x00\x18\x7f", 6)}) {
      PacketResult result = PacketResult::kWait;
      while ((result = TrySendPacket(other->get(), packet)) == PacketResult::kWait) {
        Clock::Real().SleepUntilNs(Clock::Real().NowNs() + kMs);
      }
    }
    const auto list = supervised.Next<KeeperListed>();  // its connection was closed, and it has made another
    REQUIRE(list.running.size() == 1);
    CHECK(list.running[0].pid == pid);
  }
  CHECK(Lives(pid));
  CHECK(Lives(keeper));
  CHECK(node.KeeperPid() == keeper);
  std::ptrdiff_t descriptors = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", keeper))) {
    ++descriptors;
  }
  const std::filesystem::directory_iterator threads(fmt::format("/proc/{}/task", keeper));
  CHECK(std::distance(threads, std::filesystem::directory_iterator()) == kKeeperThreads);
  CHECK(descriptors <= 10);  // standard ones, lock, listener, agent, pidfd, memory: none of this process's
}

// A worker that says what it finds in the memory that it is given, puts its incarnation there, and on SIGTERM fails, or
// stops where it was told to.
constexpr const char* kRememberingWorker =
    "for fd; do :; done; memory=/proc/$$/fd/$fd; trap 'exit $code' TERM; code=0; [ ${12} = 9 ] && code=3\n"
    "echo ${12} found $(cat $memory) by ${19}; echo ${12} > $memory; echo ${12} is ready\n"
    "while :; do sleep 0.01; done";

// Waits until the worker is through with its memory. What it found there.
std::string Found(const Node& node, uint64_t incarnation) {
  WaitUntil([&] {
    return ReadFile(node.log(), 1 << 16).value_or("").find(fmt::format("{} is ready\n", incarnation)) !=
           std::string::npos;
  });
  const std::string log = *ReadFile(node.log(), 1 << 16);
  const std::string begin = fmt::format("{} found ", incarnation);
  const size_t at = log.find(begin) + begin.size();
  return log.substr(at, log.find('\n', at) - at);
}

TEST_CASE("what a worker keeps in its memory outlives it for the next one of its job, unless it was told to stop") {
  Node node(kRememberingWorker);
  Supervised supervised(node);
  const auto end = [&](uint64_t incarnation, int signal) {
    supervised->Carry(SignalWorker{{0, incarnation}, signal});
    const auto exited = supervised.Next<WorkerExited>();
    return exited.signal == 0 ? exited.exit_code : -exited.signal;
  };
  supervised.Start(7);
  CHECK(Found(node, 7) == "by --kept-memory-fd");
  CHECK(end(7, SIGKILL) == -SIGKILL);
  supervised.Start(8);
  CHECK(Found(node, 8) == "7 by --kept-memory-fd");
  CHECK(end(8, SIGKILL) == -SIGKILL);
  supervised.Start(9);
  CHECK(Found(node, 9) == "8 by --kept-memory-fd");
  CHECK(end(9, SIGTERM) == 3);
  supervised.Start(10);
  CHECK(Found(node, 10) == "9 by --kept-memory-fd");
  CHECK(end(10, SIGTERM) == 0);
  supervised.Start(11);
  CHECK(Found(node, 11) == "by --kept-memory-fd");
  CHECK(end(11, SIGKILL) == -SIGKILL);
  supervised.Start(12, "other");
  CHECK(Found(node, 12) == "by --kept-memory-fd");
}

TEST_CASE("a keeper that follows another takes the memory of the workers over, too") {
  Node node(kRememberingWorker);
  Supervised supervised(node);
  supervised.Start(7);
  CHECK(Found(node, 7) == "by --kept-memory-fd");
  for (const uint64_t incarnation : {8, 9}) {  // taken over and handed on, and then again
    const int64_t keeper = node.KeeperPid();
    kill(static_cast<pid_t>(keeper), SIGKILL);
    REQUIRE(supervised.Next<KeeperListed>().running.size() == 1);
    REQUIRE(node.KeeperPid() != keeper);
    supervised->Carry(SignalWorker{{0, incarnation - 1}, SIGKILL});
    CHECK(supervised.Next<WorkerExited>().exit_code == kUnknownExitCode);
    supervised.Start(incarnation);
    CHECK(Found(node, incarnation) == fmt::format("{} by --kept-memory-fd", incarnation - 1));
  }
}

TEST_CASE("workers of a run run the program that it began with, and those of another job what is installed") {
  Node node("echo ${12} is old; exec sleep 600");
  Supervised supervised(node);
  const auto await = [&](const std::string& said) {
    WaitUntil([&] { return ReadFile(node.log(), 1 << 16).value_or("").ends_with(said + "\n"); });
  };
  supervised.Start(7, "tiny", 1);
  await("7 is old");
  node.InstallScript("echo ${12} is new; exec sleep 600");
  for (const uint64_t incarnation : {8, 9}) {
    KillWorker(supervised, incarnation - 1);
    supervised.Start(incarnation, "tiny", 1);
    await(fmt::format("{} is old", incarnation));
  }
  KillWorker(supervised, 9);
  supervised.Start(10, "tiny", 2);  // the job has begun another run
  await("10 is new");
  KillWorker(supervised, 10);
  supervised.Start(11, "other", 3);
  await("11 is new");
}

ino_t InodeOf(const std::string& path) {
  struct stat info {};
  REQUIRE(stat(path.c_str(), &info) == 0);
  return info.st_ino;
}

ino_t ProgramOf(int64_t pid) { return InodeOf(fmt::format("/proc/{}/exe", pid)); }

// The GPU library that the process was given; 0: none.
ino_t LibraryOf(int64_t pid) {
  for (const auto& fd : std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", pid))) {
    std::error_code error;
    if (std::filesystem::read_symlink(fd, error).string().find("libgeopipe_cuda.so") != std::string::npos) {
      return InodeOf(fd.path().string());
    }
  }
  return 0;
}

TEST_CASE("a keeper that follows another takes program and GPU library of a run over from a worker that runs") {
  const std::string idle = GEOPIPE_BINARY_DIR "/bin/idle_worker";
  Node node("");
  node.Install(idle);
  const std::string library = node.config().state_dir + "/libgeopipe_cuda.so";
  const auto install_library = [&] {
    std::ofstream(library + ".new").flush();
    std::filesystem::rename(library + ".new", library);
    return InodeOf(library);
  };
  const ino_t library_before = install_library();
  const ino_t before = InodeOf(node.config().worker_binary);
  std::ofstream(node.config().state_dir + "/sibling").flush();
  chmod((node.config().state_dir + "/sibling").c_str(), 0700);
  Supervised supervised(node);
  supervised.Start(7, "tiny", 1);
  const int64_t other = supervised.Start(7, "tiny", 1, 1);
  CHECK(LibraryOf(other) == library_before);
  node.Install(idle);
  const ino_t after = InodeOf(node.config().worker_binary);
  const ino_t library_after = install_library();
  REQUIRE(after != before);
  REQUIRE(library_after != library_before);
  for (const uint64_t incarnation : {8, 9}) {  // taken over, and then again
    const auto keeper = static_cast<pid_t>(node.KeeperPid());
    kill(keeper, SIGKILL);
    REQUIRE(supervised.Next<KeeperListed>().running.size() == 2);
    REQUIRE(node.KeeperPid() != keeper);
    KillWorker(supervised, incarnation - 1);
    const int64_t worker = supervised.Start(incarnation, "tiny", 1);
    CHECK(ProgramOf(worker) == before);
    CHECK(LibraryOf(worker) == library_before);
    WaitUntil([&] {
      return ReadFile(node.log(), 1 << 16)
          .value_or("")
          .ends_with(fmt::format("{} beside {}/sibling\n", node.config().worker_binary, node.config().state_dir));
    });
  }
  SECTION("another job's worker runs what is installed") {
    KillWorker(supervised, 9);
    const int64_t worker = supervised.Start(10, "other", 2);
    CHECK(ProgramOf(worker) == after);
    CHECK(LibraryOf(worker) == library_after);
    CHECK(ProgramOf(other) == before);
  }
  SECTION("nothing is left where no worker of the run outlives the keeper") {
    KillWorker(supervised, 9);
    KillWorker(supervised, 7, 1);
    kill(static_cast<pid_t>(node.KeeperPid()), SIGKILL);
    supervised.Next<KeeperListed>();
    CHECK(ProgramOf(supervised.Start(10, "tiny", 1)) == after);
  }
}

TEST_CASE("a program that is mended is the one that the next worker of the run runs, where none came up before") {
  Node node("exit 127");
  Supervised supervised(node);
  supervised.Start(7, "tiny", 1);
  CHECK(supervised.Next<WorkerExited>().exit_code == 127);
  node.InstallScript("echo mended; exec sleep 600");
  supervised.Start(8, "tiny", 1);
  WaitUntil([&] { return ReadFile(node.log(), 100).value_or("") == "mended\n"; });
}

// The end of a worker that was killed under a keeper that did not see it: the next one lists it, or, as a killed
// process takes its time to be gone, tells it.
void CheckEnds(Supervised& supervised, const KeeperListed& list) {
  REQUIRE(list.running.size() + list.ended.size() == 1);
  CHECK((list.running.empty() ? list.ended[0].exit_code() : supervised.Next<WorkerExited>().exit_code) ==
        kUnknownExitCode);
}

TEST_CASE("memory of a worker that dies together with its keeper comes back from the agent") {
  Node node(kRememberingWorker);
  Supervised supervised(node);
  const int64_t worker = supervised.Start(7);
  CHECK(Found(node, 7) == "by --kept-memory-fd");
  const auto keeper = static_cast<pid_t>(node.KeeperPid());
  kill(keeper, SIGSTOP);  // it sees nothing of the worker's end
  kill(static_cast<pid_t>(worker), SIGKILL);
  kill(keeper, SIGKILL);
  CheckEnds(supervised, supervised.Next<KeeperListed>());
  supervised.Start(8);
  CHECK(Found(node, 8) == "7 by --kept-memory-fd");
}

TEST_CASE("a keeper that is told to end says so, ends its workers when its grace is over, and gets no successor soon") {
  Node node("exec sleep 600");
  node.config().leave_grace_ns = 300 * kMs;
  Supervised supervised(node);
  supervised.Start(7);
  const int64_t keeper = node.KeeperPid();
  kill(static_cast<pid_t>(keeper), SIGHUP);  // a terminal's: nothing
  kill(static_cast<pid_t>(keeper), SIGTERM);
  const std::optional<int64_t> within_ns = supervised.Next<NodeLeaves>().within_ns;
  REQUIRE(within_ns.has_value());
  CHECK(*within_ns <= 300 * kMs);
  CHECK(supervised.Next<WorkerExited>().signal == SIGTERM);
  WaitUntil([&] { return !Lives(keeper); });
  // A keeper that somebody starts says that the node stays.
  CHECK(node.KeeperPid() == keeper);
  absl::StatusOr<Process> other = Process::Start(KeeperProcess(node.config(), *SiblingProgram("geopipe-agent")));
  REQUIRE(other.ok());
  CHECK_FALSE(supervised.Next<NodeLeaves>().within_ns.has_value());
  CHECK(supervised.Next<KeeperListed>().ended.size() == 1);
}

TEST_CASE("a keeper that is stopped is killed, and the next one has its workers and what they keep") {
  Node node(kRememberingWorker);
  Supervised supervised(node, {.ping_interval_ns = 20 * kMs, .keeper_silent_after_ns = 200 * kMs});
  const int64_t worker = supervised.Start(7);
  CHECK(Found(node, 7) == "by --kept-memory-fd");
  const int64_t keeper = node.KeeperPid();
  kill(static_cast<pid_t>(keeper), SIGSTOP);
  if (GENERATE(false, true)) {
    kill(static_cast<pid_t>(worker), SIGKILL);
    CheckEnds(supervised, supervised.Next<KeeperListed>());
  } else {
    const auto list = supervised.Next<KeeperListed>();
    REQUIRE(list.running.size() == 1);
    CHECK(list.running[0].pid == worker);
    CHECK(Lives(worker));
    supervised->Carry(SignalWorker{{0, 7}, SIGKILL});
    supervised.Next<WorkerExited>();
  }
  WaitForEnd(keeper);
  CHECK(node.KeeperPid() != keeper);
  supervised.Start(8);
  CHECK(Found(node, 8) == "7 by --kept-memory-fd");
}

TEST_CASE("a worker that has closed its memory leaves none, whatever has its number since") {
  const std::string other = GENERATE("exec 3</dev/null", "exec 3<>$0", "");
  Node node(
      fmt::format("for fd; do :; done; echo ${{12}} has $(cat /proc/$$/fd/$fd); echo ${{12}} > /proc/$$/fd/$fd\n"
                  "eval \"exec $fd<&-\"; [ -z '{0}' ] || eval \"$(echo '{0}' | sed s/3/$fd/)\"\n"
                  "echo ${{12}} is ready; exec sleep 600",
                  other));
  std::make_unique<Supervised>(node)->Start(7);  // an agent that has seen it would hold it
  WaitUntil([&] { return ReadFile(node.log(), 1000).value_or("").ends_with("7 is ready\n"); });
  kill(static_cast<pid_t>(node.KeeperPid()), SIGKILL);
  Supervised supervised(node);
  REQUIRE(supervised.first_list().running.size() == 1);
  CHECK_THAT(*ReadFile(node.keeper_log(), 1 << 20), Catch::Contains("cannot take over the memory of the worker"));
  supervised->Carry(SignalWorker{{0, 7}, SIGKILL});
  supervised.Next<WorkerExited>();
  supervised.Start(8);
  WaitUntil([&] { return ReadFile(node.log(), 1000).value_or("").ends_with("8 is ready\n"); });
  CHECK(*ReadFile(node.log(), 1000) == "7 has\n7 is ready\n8 has\n8 is ready\n");
}

}  // namespace
}  // namespace geopipe::agent
