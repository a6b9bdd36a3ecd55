#include "agent/worker_supervisor.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <string_view>
#include <utility>

#include "agent/keeper.h"
#include "agent/kept/worker_log.h"
#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/clock.h"
#include "runtime/base/files.h"
#include "runtime/base/log.h"
#include "runtime/base/packet_socket.h"
#include "runtime/base/poll.h"

namespace geopipe::agent {
namespace {

constexpr int64_t kConnectIntervalNs = 10'000'000;
constexpr int64_t kStartIntervalNs = 1'000'000'000;
constexpr int64_t kListPatienceNs = 5'000'000'000;  // then a keeper that says nothing is complained of

// An agent's environment may hold what is no worker's business, such as credentials.
bool IsPassedOn(const AgentConfig& config, std::string_view name) {
  constexpr std::array<std::string_view, 13> kNames{
      "PATH",       "HOME",         "USER",         "LOGNAME",       "TMPDIR",      "TZ", "LANG", "LD_LIBRARY_PATH",
      "LD_PRELOAD", "ASAN_OPTIONS", "LSAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"};
  constexpr std::array<std::string_view, 18> kFamilies{"LC_",   "CUDA_", "CUDNN_", "CUBLAS",  "NVIDIA_", "NCCL_",
                                                       "UCX_",  "UCC_",  "RDMAV_", "IBV_",    "MLX5_",   "OMP_",
                                                       "GOMP_", "KMP_",  "DNNL_",  "ONEDNN_", "MALLOC_", "GEOPIPE_"};
  return std::ranges::find(kNames, name) != kNames.end() ||
         std::ranges::any_of(kFamilies, [&](std::string_view family) { return name.starts_with(family); }) ||
         std::ranges::find(config.pass_environment, name) != config.pass_environment.end();
}

v1::KeeperRequest StartRequest(const AgentConfig& config, const StartWorker& order, size_t log_bytes) {
  ProcessSpec spec = WorkerProcess(config, order.worker);
  AddPassedEnvironment(config, spec);
  v1::KeeperRequest request;
  v1::KeeperStart& start = *request.mutable_start();
  *start.mutable_worker() = order.worker;
  start.set_run_incarnation(order.run);
  start.set_program(spec.program);
  start.mutable_args()->Assign(spec.args.begin(), spec.args.end());
  const auto add = [&start](std::string_view name, std::string_view value) {
    v1::KeeperVariable& variable = *start.add_environment();
    variable.set_name(std::string(name));
    variable.set_value(std::string(value));
  };
  for (const auto& [name, value] : spec.environment) {
    add(name, value);
  }
  start.set_log_path(spec.stderr_path.string());
  start.set_log_bytes(static_cast<int64_t>(log_bytes));
  start.set_takes_memory(true);
  return request;
}

WorkerExited ExitedEvent(const v1::WorkerExit& exit) {
  return {.worker = {exit.worker().device(), exit.worker().incarnation()},
          .pid = exit.pid(),
          .exit_code = exit.exit_code(),
          .signal = exit.signal(),
          .last_words = exit.last_words()};
}

}  // namespace

ProcessSpec DataPlaneProcess(const AgentConfig& config) {
  ProcessSpec spec;
  spec.program = config.worker_binary;
  spec.args = {"--log-level", std::string(LogLevelName(config.log_level)), "--log-format",
               std::string(LogFormatName(config.log_format))};
  if (!config.ucx_private_network.empty()) {
    spec.args.insert(spec.args.end(), {"--private-network", config.ucx_private_network});
  }
  if (!config.ucx_ports.empty()) {
    spec.args.insert(spec.args.end(), {"--ports", config.ucx_ports});
  }
  spec.environment = {{"UCX_TLS", config.ucx_tls}, {"UCX_NET_DEVICES", config.ucx_net_devices}};
  return spec;
}

void AddPassedEnvironment(const AgentConfig& config, ProcessSpec& spec) {
  const std::vector<std::pair<std::string, std::string>> own = std::move(spec.environment);
  spec.environment.clear();
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    const bool is_set = std::ranges::find(own, name, &std::pair<std::string, std::string>::first) != own.end();
    if (name.size() < text.size() && !is_set && IsPassedOn(config, name)) {
      spec.environment.emplace_back(name, text.substr(name.size() + 1));
    }
  }
  spec.environment.insert(spec.environment.end(), own.begin(), own.end());
  spec.inherits_environment = false;
}

void AddGpus(const AgentConfig& config, const std::string& gpus, ProcessSpec& spec) {
  if (!config.gpu_library.empty()) {
    spec.args.insert(spec.args.end(), {"--gpu-library", config.gpu_library});
  }
  if (!gpus.empty()) {
    // CUDA's own order is by speed; ordinals are to be those that nvidia-smi shows.
    spec.environment.emplace_back("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    spec.environment.emplace_back("CUDA_VISIBLE_DEVICES", gpus);
  }
}

ProcessSpec WorkerProcess(const AgentConfig& config, const v1::WorkerId& worker) {
  ProcessSpec spec = DataPlaneProcess(config);
  spec.args.insert(spec.args.begin(),
                   {"--agent", "unix:" + config.SocketPath(), "--site", config.site, "--node", config.node, "--device",
                    std::to_string(worker.device()), "--job", worker.job(), "--incarnation",
                    std::to_string(worker.incarnation()), "--orphan-grace", FormatDuration(config.orphan_grace_ns)});
  if (!config.metrics.empty()) {
    const bool v6 = config.metrics.starts_with('[');
    spec.args.insert(spec.args.end(), {"--metrics", v6 ? "[::1]:0" : "127.0.0.1:0", "--metrics-address-file",
                                       config.WorkerMetricsAddressPath(worker.device())});
  }
  if (config.die_with_parent) {
    spec.args.emplace_back("--die-with-parent");
  }
  spec.environment.emplace_back("OMP_NUM_THREADS", std::to_string(config.threads));
  spec.environment.emplace_back("OMP_WAIT_POLICY", "passive");
  AddGpus(config, config.GpuOf(worker.device()), spec);
  spec.stdout_path = fmt::format("{}/logs/worker-{}.log", config.state_dir, worker.device());
  spec.stderr_path = spec.stdout_path;
  return spec;
}

ProcessSpec KeeperProcess(const AgentConfig& config, const std::string& program) {
  ProcessSpec spec;
  spec.program = program;
  spec.args = {"--keeper",      config.state_dir,
               "--log-level",   std::string(LogLevelName(config.log_level)),
               "--log-format",  std::string(LogFormatName(config.log_format)),
               "--leave-grace", FormatDuration(config.leave_grace_ns)};
  if (config.die_with_parent) {
    spec.args.emplace_back("--die-with-parent");
    spec.parent_death_signal = SIGKILL;
  }
  spec.stdout_path = config.state_dir + "/logs/keeper.log";
  spec.stderr_path = spec.stdout_path;
  spec.own_process_group = false;  // the process makes a session of its own
  return spec;
}

absl::StatusOr<std::unique_ptr<WorkerSupervisor>> WorkerSupervisor::Create(const AgentConfig& config,
                                                                           WorkerSupervisorOptions options,
                                                                           PostEvent post) {
  GP_RETURN_IF_ERROR(MakeFolder(config.state_dir + "/logs"));
  if (options.keeper_program.empty()) {
    GP_ASSIGN_OR_RETURN(options.keeper_program, SiblingProgram("geopipe-agent"));
  }
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) {
    return ErrnoStatus(errno, "cannot make an eventfd");
  }
  return std::unique_ptr<WorkerSupervisor>(
      new WorkerSupervisor(config, std::move(options), std::move(post), std::move(wake)));
}

WorkerSupervisor::WorkerSupervisor(const AgentConfig& config, WorkerSupervisorOptions options, PostEvent post,
                                   UniqueFd wake)
    : config_(config), options_(std::move(options)), post_(std::move(post)), wake_(std::move(wake)) {
  thread_ = std::thread([this] { Run(); });
}

WorkerSupervisor::~WorkerSupervisor() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  Wake();
  thread_.join();
}

void WorkerSupervisor::Wake() const {
  const uint64_t one = 1;
  const ssize_t ignored = write(wake_.get(), &one, sizeof(one));  // fails only when it is awake anyway
  (void)ignored;
}

bool WorkerSupervisor::stopping() {
  const std::lock_guard lock(mutex_);
  return stopping_;
}

void WorkerSupervisor::Carry(const StartWorker& start) {
  v1::KeeperRequest request = StartRequest(config_, start, options_.log_bytes);
  if (request.ByteSizeLong() > kMaxKeeperPacketBytes) {
    LogError(
        "the agent's environment is too large for a worker: {} bytes and at most {} are passed on; the worker gets "
        "nothing of it",
        request.ByteSizeLong(), kMaxKeeperPacketBytes);
    const ProcessSpec spec = WorkerProcess(config_, start.worker);
    google::protobuf::RepeatedPtrField<v1::KeeperVariable>& environment =
        *request.mutable_start()->mutable_environment();
    environment.DeleteSubrange(0, environment.size() - static_cast<int>(spec.environment.size()));
  }
  Request(std::move(request));
}

void WorkerSupervisor::Carry(const SignalWorker& signal) {
  v1::KeeperRequest request;
  request.mutable_signal()->set_device(signal.worker.device);
  request.mutable_signal()->set_incarnation(signal.worker.incarnation);
  request.mutable_signal()->set_signal(signal.signal);
  Request(std::move(request));
}

void WorkerSupervisor::Carry(const ForgetExit& forget) {
  v1::KeeperRequest request;
  request.mutable_forget()->set_device(forget.worker.device);
  request.mutable_forget()->set_incarnation(forget.worker.incarnation);
  Request(std::move(request));
}

void WorkerSupervisor::Request(v1::KeeperRequest request) {
  const std::lock_guard lock(mutex_);
  if (connected_) {
    requests_.push_back(std::move(request));
    Wake();
  }
}

void WorkerSupervisor::Run() {
  while (!stopping()) {
    const absl::StatusOr<UniqueFd> fd = ConnectPackets(config_.KeeperSocketPath());
    if (!fd.ok()) {
      StartKeeper();
      pollfd wake{.fd = wake_.get(), .events = POLLIN, .revents = 0};
      PollFor({&wake, 1}, kConnectIntervalNs);
      continue;
    }
    {
      const std::lock_guard lock(mutex_);
      connected_ = true;
    }
    list_.emplace();
    pongs_ = is_told_ = false;
    unanswered_since_ns_.reset();
    OfferMemory();
    Talk(fd->get());
    const std::lock_guard lock(mutex_);
    connected_ = false;
    requests_.clear();  // the core asks again for what is missing in the next list
    if (!stopping_) {
      LogWarning("lost the keeper of the workers");
    }
  }
  if (keeper_.has_value() && !config_.die_with_parent) {
    keeper_->Detach();
  }
  keeper_.reset();  // else it is killed, and the workers with it
}

// Starts a keeper unless one is starting or was started a moment ago.
void WorkerSupervisor::StartKeeper() {
  const std::string log = config_.state_dir + "/logs/keeper.log";
  if (keeper_.has_value()) {
    const std::optional<ExitStatus> ended = keeper_->Wait(0);
    if (!ended.has_value()) {
      return;
    }
    LogWarning("the keeper of the workers {}; see {}", ended->Description(), log);
    keeper_.reset();
  }
  const int64_t now_ns = Clock::Real().NowNs();
  if (now_ns < next_start_ns_) {
    return;
  }
  next_start_ns_ = now_ns + kStartIntervalNs;
  MoveLogAside(log, static_cast<int64_t>(options_.log_bytes));
  absl::StatusOr<Process> keeper = Process::Start(KeeperProcess(config_, options_.keeper_program));
  if (!keeper.ok()) {
    LogError("cannot start the keeper of the workers: {}; trying again", std::string(keeper.status().message()));
    return;
  }
  keeper_ = *std::move(keeper);
}

void WorkerSupervisor::Talk(int fd) {
  int64_t complain_ns = Clock::Real().NowNs() + kListPatienceNs;
  while (!stopping() && Ping(fd) && SendRequests(fd)) {
    bool waiting = false;  // for room
    {
      const std::lock_guard lock(mutex_);
      waiting = !requests_.empty();
    }
    std::array<pollfd, 2> watched{
        pollfd{.fd = wake_.get(), .events = POLLIN, .revents = 0},
        pollfd{.fd = fd, .events = static_cast<int16_t>(waiting ? POLLIN | POLLOUT : POLLIN), .revents = 0}};
    const int64_t ping_ns = std::max<int64_t>(0, next_ping_ns_ - Clock::Real().NowNs());
    const int ready = PollFor(watched, list_.has_value() ? std::min(kListPatienceNs, ping_ns) : ping_ns);
    if (watched[0].revents != 0) {
      uint64_t count = 0;
      const ssize_t ignored = read(wake_.get(), &count, sizeof(count));
      (void)ignored;
    }
    if (ready == 0 && list_.has_value() && Clock::Real().NowNs() >= complain_ns) {
      complain_ns += kListPatienceNs;
      LogWarning("the keeper of the workers does not answer on {}", config_.KeeperSocketPath());
    }
    if (watched[1].revents != 0 && !Hear(fd)) {
      return;
    }
  }
}

// A keeper of an earlier version never answers, and is left alone.
bool WorkerSupervisor::Ping(int fd) {
  const int64_t now_ns = Clock::Real().NowNs();
  if (now_ns < next_ping_ns_) {
    return true;
  }
  next_ping_ns_ = now_ns + options_.ping_interval_ns;
  std::erase_if(held_, [&](const auto& entry) {
    return entry.second.ended_ns.has_value() && now_ns - *entry.second.ended_ns >= options_.held_memory_ns;
  });
  if (!pongs_) {
    return true;
  }
  const int64_t since_ns = unanswered_since_ns_.value_or(now_ns);
  // This process may itself have been stopped between two pings, and a pong may be there, unread.
  if (now_ns - since_ns >= options_.keeper_silent_after_ns && Hear(fd) && unanswered_since_ns_.has_value()) {
    const int64_t pid = PeerPid(fd);
    LogError("the keeper of the workers (pid {}) has not answered for {:.1f} s: it is stopped or stuck, and is killed",
             pid, static_cast<double>(now_ns - since_ns) * 1e-9);
    if (pid > 0) {
      kill(static_cast<pid_t>(pid), SIGKILL);
    }
    return false;
  }
  unanswered_since_ns_ = since_ns;
  v1::KeeperRequest request;
  request.mutable_ping()->set_sequence(++pings_);
  Request(std::move(request));
  return true;
}

void WorkerSupervisor::OfferMemory() {
  for (const auto& [device, held] : held_) {
    v1::KeeperRequest request;
    request.mutable_held()->set_device(device);
    request.mutable_held()->set_job(held.job);
    request.mutable_held()->set_fd(held.memory.get());
    Request(std::move(request));
  }
}

// The worker has the memory under the number that the keeper has told.
void WorkerSupervisor::Hold(const v1::KeptWorker& child) {
  const auto known = held_.find(child.worker().device());
  if (known != held_.end() && known->second.incarnation == child.worker().incarnation()) {
    return;
  }
  if (known != held_.end()) {
    held_.erase(known);  // the worker has it, or it was dropped
  }
  UniqueFd memory = child.memory_fd() == 0 ? UniqueFd() : OpenStateMemory(child.pid(), child.memory_fd());
  if (memory.valid()) {
    held_.emplace(child.worker().device(), Held{.job = child.worker().job(),
                                                .incarnation = child.worker().incarnation(),
                                                .memory = std::move(memory),
                                                .ended_ns = {}});
  }
}

// Sends the waiting requests until one must wait. False when the connection is lost.
bool WorkerSupervisor::SendRequests(int fd) {
  const std::lock_guard lock(mutex_);
  for (; !requests_.empty(); requests_.pop_front()) {
    const PacketResult result = TrySendPacket(fd, requests_.front().SerializeAsString());
    if (result != PacketResult::kDone) {
      return result == PacketResult::kWait;
    }
  }
  return true;
}

// Posts all news that are there. False when the connection is lost, or `post_` takes no more events.
bool WorkerSupervisor::Hear(int fd) {
  std::string packet;
  for (;;) {
    const PacketResult result = TryReceivePacket(fd, kMaxKeeperPacketBytes, packet);
    if (result != PacketResult::kDone) {
      return result == PacketResult::kWait;
    }
    v1::KeeperNews news;
    if (!news.ParseFromString(packet)) {
      LogWarning("passed over a malformed packet of the keeper ({} bytes)", packet.size());
    } else if (!OnNews(std::move(news))) {
      return false;
    }
  }
}

// Posts an event. False when `post_` takes no more: then the supervisor stops.
bool WorkerSupervisor::Post(Event event) {
  if (post_(std::move(event))) {
    return true;
  }
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  return false;
}

bool WorkerSupervisor::OnNews(v1::KeeperNews news) {
  unanswered_since_ns_.reset();  // it is there
  switch (news.news_case()) {
    case v1::KeeperNews::kPong:
      return true;
    case v1::KeeperNews::kRunning: {
      v1::KeptWorker& child = *news.mutable_running();
      Hold(child);
      if (list_.has_value()) {
        list_->running.push_back({std::move(*child.mutable_worker()), child.pid()});
        return true;
      }
      return Post(WorkerStarted{{child.worker().device(), child.worker().incarnation()}, child.pid()});
    }
    case v1::KeeperNews::kExited:
      if (const auto held = held_.find(news.exited().worker().device());
          held != held_.end() && held->second.incarnation == news.exited().worker().incarnation()) {
        held->second.ended_ns = Clock::Real().NowNs();
        if (news.exited().exit_code() == 0 && news.exited().signal() == 0) {
          held_.erase(held);  // told to stop: nobody goes on from its state
        }
      }
      if (list_.has_value()) {
        list_->ended.push_back(std::move(*news.mutable_exited()));
        return true;
      }
      return Post(ExitedEvent(news.exited()));
    case v1::KeeperNews::kFailed:
      return Post(WorkerStartFailed{
          {news.failed().worker().device(), news.failed().worker().incarnation()},
          absl::Status(static_cast<absl::StatusCode>(news.failed().code()), news.failed().message())});
    case v1::KeeperNews::kLeaving: {
      // No keeper is started in its place for some time, for it may end before the machine does.
      constexpr int64_t kMarginNs = int64_t{120} * 1'000'000'000;
      const int64_t within_ns = std::clamp<int64_t>(news.leaving().within_ns(), 0, AgentConfig::kMaxLeaveGraceNs);
      next_start_ns_ = Clock::Real().NowNs() + within_ns + kMarginNs;
      leaves_ = is_told_ = true;
      LogWarning("the keeper of the workers was told to end: this node goes down");
      return Post(NodeLeaves{within_ns});
    }
    case v1::KeeperNews::kListed: {
      pongs_ = news.listed().pongs();
      if (!is_told_ && std::exchange(leaves_, false)) {
        LogInfo("another keeper of the workers is there: this node stays");
        if (!Post(NodeLeaves{})) {
          return false;
        }
      }
      KeeperListed listed = list_.has_value() ? *std::move(list_) : KeeperListed();
      list_.reset();
      return Post(std::move(listed));
    }
    case v1::KeeperNews::NEWS_NOT_SET:
      return true;  // of a later version
  }
  return true;
}

}  // namespace geopipe::agent
