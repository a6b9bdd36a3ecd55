#include "agent/worker_supervisor.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/files.h"
#include "runtime/base/log.h"
#include "runtime/base/poll.h"
#include "runtime/base/utf8.h"

namespace geopipe::agent {
namespace {

namespace fs = std::filesystem;

int64_t FileSize(const std::string& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  return error ? 0 : static_cast<int64_t>(size);
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
    spec.parent_death_signal = SIGKILL;
  }
  spec.environment.emplace_back("OMP_NUM_THREADS", std::to_string(config.threads));
  spec.environment.emplace_back("OMP_WAIT_POLICY", "passive");
  spec.stdout_path = fmt::format("{}/logs/worker-{}.log", config.state_dir, worker.device());
  spec.stderr_path = spec.stdout_path;
  return spec;
}

absl::StatusOr<std::unique_ptr<WorkerSupervisor>> WorkerSupervisor::Create(const AgentConfig& config,
                                                                           const WorkerSupervisorOptions& options,
                                                                           PostEvent post) {
  GP_RETURN_IF_ERROR(MakeFolder(config.state_dir + "/logs"));
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) {
    return ErrnoStatus(errno, "cannot make an eventfd");
  }
  return std::unique_ptr<WorkerSupervisor>(new WorkerSupervisor(config, options, std::move(post), std::move(wake)));
}

WorkerSupervisor::WorkerSupervisor(const AgentConfig& config, const WorkerSupervisorOptions& options, PostEvent post,
                                   UniqueFd wake)
    : config_(config), options_(options), post_(std::move(post)), wake_(std::move(wake)) {
  watcher_ = std::thread([this] { Watch(); });
}

WorkerSupervisor::~WorkerSupervisor() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  Wake();
  watcher_.join();
}

void WorkerSupervisor::Wake() const {
  const uint64_t one = 1;
  const ssize_t ignored = write(wake_.get(), &one, sizeof(one));  // fails only when it is awake anyway
  (void)ignored;
}

absl::StatusOr<int64_t> WorkerSupervisor::Start(const v1::WorkerId& worker) {
  const ProcessSpec spec = WorkerProcess(config_, worker);
  const std::string log_path = spec.stderr_path.string();
  if (FileSize(log_path) > static_cast<int64_t>(options_.log_bytes)) {
    std::error_code ignored;  // a log that cannot be moved goes on growing; the worker starts all the same
    fs::rename(log_path, log_path + ".1", ignored);
  }
  const int64_t log_start = FileSize(log_path);
  std::lock_guard lock(mutex_);
  if (running_.contains(worker.device())) {
    return absl::FailedPreconditionError(fmt::format("device {} has a running worker", worker.device()));
  }
  GP_ASSIGN_OR_RETURN(Process process, Process::Start(spec));
  const int64_t pid = process.pid();
  running_.emplace(worker.device(), Running{.key = {worker.device(), worker.incarnation()},
                                            .process = std::move(process),
                                            .log_path = log_path,
                                            .log_start = log_start});
  Wake();
  return pid;
}

void WorkerSupervisor::Signal(const WorkerKey& worker, int signal) {
  std::lock_guard lock(mutex_);
  const auto at = running_.find(worker.device);
  if (at != running_.end() && at->second.key == worker) {
    at->second.process.Signal(signal);
  }
}

void WorkerSupervisor::LeaveAll() {
  std::lock_guard lock(mutex_);
  for (auto& [device, running] : running_) {
    running.process.Detach();
  }
}

void WorkerSupervisor::Watch() {
  for (;;) {
    std::vector<pollfd> watched = {{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
    {
      std::lock_guard lock(mutex_);
      if (stopping_) {
        return;
      }
      for (const auto& [device, running] : running_) {
        watched.push_back({.fd = running.process.pidfd(), .events = POLLIN, .revents = 0});
      }
    }
    const int ready = PollFor(watched, watched.size() == 1 ? -1 : options_.log_check_interval_ns);
    if (watched[0].revents != 0) {
      uint64_t count = 0;
      const ssize_t ignored = read(wake_.get(), &count, sizeof(count));
      (void)ignored;
    }
    if (ready == 0) {
      CheckLogs();
    } else if (!ReapEnded()) {
      return;
    }
  }
}

// Posts the end of every worker that has ended. False when nobody takes it any more.
bool WorkerSupervisor::ReapEnded() {
  std::vector<Event> ended;
  {
    std::lock_guard lock(mutex_);
    for (auto at = running_.begin(); at != running_.end();) {
      Running& running = at->second;
      const std::optional<ExitStatus> status = running.process.Wait(0);
      if (!status.has_value()) {
        ++at;
        continue;
      }
      const int64_t own = std::max<int64_t>(FileSize(running.log_path) - running.log_start, 0);
      const absl::StatusOr<std::string> words =
          ReadFileTail(running.log_path, std::min(options_.last_words_bytes, static_cast<size_t>(own)));
      ended.emplace_back(WorkerExited{.worker = running.key,
                                      .pid = running.process.pid(),
                                      .exit_code = status->exit_code,
                                      .signal = status->signal,
                                      .last_words = words.ok() && own > 0 ? ToUtf8(*words) : ""});
      at = running_.erase(at);
    }
  }
  for (Event& event : ended) {
    if (!post_(std::move(event))) {
      return false;
    }
  }
  return true;
}

// A running worker keeps its log open, so the content moves, not the file; what is written between copy and cut is
// lost.
void WorkerSupervisor::CheckLogs() {
  std::lock_guard lock(mutex_);
  for (auto& [device, running] : running_) {
    if (FileSize(running.log_path) <= static_cast<int64_t>(options_.log_bytes)) {
      continue;
    }
    std::error_code error;
    fs::copy_file(running.log_path, running.log_path + ".1", fs::copy_options::overwrite_existing, error);
    if (!error) {
      fs::resize_file(running.log_path, 0, error);
      running.log_start = 0;
    }
    if (error) {
      LogWarning("cannot rotate {}: {}", running.log_path, error.message());
    }
  }
}

}  // namespace geopipe::agent
