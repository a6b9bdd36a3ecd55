#include "tests/support/process_federation.h"

#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "proto/wire/control_wire.h"
#include "runtime/base/clock.h"

namespace geopipe {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kStartLimitNs = 30'000'000'000;
constexpr int64_t kCallLimitNs = 60'000'000'000;  // after a stop the coordinator first takes in what has piled up
constexpr int64_t kCommandLimitNs = 300'000'000'000;
constexpr int64_t kLookNs = 20'000'000;
constexpr const char* kUnshare = "/usr/bin/unshare";
constexpr size_t kLastWordsBytes = 800;
constexpr size_t kMaxOutputBytes = size_t{64} << 20;

// YAML understands JSON's double-quoted strings.
std::string Quoted(const std::string& text) { return nlohmann::json(text).dump(); }

std::string LastWords(const fs::path& path) {
  const absl::StatusOr<std::string> tail = ReadFileTail(path, kLastWordsBytes);
  return tail.ok() && !tail->empty() ? fmt::format("; the end of {}:\n{}", path.filename().string(), *tail) : "";
}

std::string TextOf(const fs::path& path) {
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxOutputBytes);
  return text.ok() ? *text : "";
}

bool Mentions(const ProcessInfo& process, const std::string& text) {
  return std::ranges::any_of(process.arguments,
                             [&](const std::string& argument) { return argument.find(text) != std::string::npos; });
}

}  // namespace

absl::StatusOr<int64_t> AwaitNs(const std::string& what, int64_t timeout_ns,
                                const std::function<absl::StatusOr<bool>()>& look) {
  const int64_t deadline_ns = Clock::Real().NowNs() + timeout_ns;
  while (true) {
    GP_ASSIGN_OR_RETURN(const bool done, look());
    const int64_t now_ns = Clock::Real().NowNs();
    if (done) {
      return now_ns;
    }
    if (now_ns >= deadline_ns) {
      return absl::DeadlineExceededError(fmt::format("{} has not come within {}", what, FormatDuration(timeout_ns)));
    }
    Clock::Real().SleepUntilNs(now_ns + kLookNs);
  }
}

absl::StatusOr<std::unique_ptr<ProcessFederation>> ProcessFederation::Start(const ProcessFederationOptions& options) {
  // Keepers outlive their agents; they and their workers then become children of this process, which ends them.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  GP_ASSIGN_OR_RETURN(TempFolder folder, TempFolder::Create("geopipe-federation-"));
  std::unique_ptr<ProcessFederation> federation(new ProcessFederation(options, std::move(folder)));
  GP_RETURN_IF_ERROR(federation->MountDisks());
  GP_RETURN_IF_ERROR(federation->MakeEnvironments());
  GP_RETURN_IF_ERROR(federation->StartCoordinator());
  GP_RETURN_IF_ERROR(federation->WriteConfigurations());
  for (size_t site = 0; site < federation->sites(); ++site) {
    GP_RETURN_IF_ERROR(federation->StartAgent(site));
  }
  return federation;
}

ProcessFederation::~ProcessFederation() {
  // Agents first: none starts a keeper that is killed here again.
  for (size_t site = 0; site < sites(); ++site) {
    KillAgent(site);
  }
  KillCoordinator();
  std::vector<pid_t> left;  // keepers and workers: children of this process, or about to be
  for (const ProcessInfo& process : Descendants(getpid())) {
    if (Mentions(process, folder_.path().string())) {
      left.push_back(static_cast<pid_t>(process.pid));
      kill(left.back(), SIGKILL);
    }
  }
  const int64_t deadline_ns = Clock::Real().NowNs() + kStartLimitNs;
  while (!left.empty() && Clock::Real().NowNs() < deadline_ns) {
    std::erase_if(left, [](pid_t pid) { return waitpid(pid, nullptr, WNOHANG) == pid; });
    Clock::Real().SleepUntilNs(Clock::Real().NowNs() + kLookNs);
  }
  for (const fs::path& path : mounts_) {
    umount2(path.c_str(), MNT_DETACH);
  }
}

bool CanHaveOwnDisks() {
  ProcessSpec spec;
  spec.program = kUnshare;
  spec.args = {"--mount", "--propagation", "private", "true"};
  absl::StatusOr<Process> process = Process::Start(spec);
  return process.ok() && process->Wait(kStartLimitNs).value_or(ExitStatus{.exit_code = 1}).success();
}

absl::StatusOr<ProcessFederation::Daemon> ProcessFederation::Launch(const std::string& program, const std::string& name,
                                                                    size_t site, std::vector<std::string> arguments,
                                                                    bool own_disk) const {
  GP_ASSIGN_OR_RETURN(ReadyPipe ready, ReadyPipe::Create());
  ProcessSpec spec;
  GP_ASSIGN_OR_RETURN(spec.program, SiblingProgram(program));
  spec.args = std::move(arguments);
  if (own_disk) {
    spec.args.insert(spec.args.begin(), {"--mount", "--propagation", "private", "sh", "-c",
                                         R"(mount --bind "$0" "$1" && shift && exec "$@")", DiskOf(name).string(),
                                         disk().string(), spec.program});
    spec.program = kUnshare;
  }
  spec.args.insert(spec.args.end(), {"--ready-fd", fmt::format("{}", ready.child_fd())});
  spec.stdout_path = LogPath(name);
  spec.stderr_path = LogPath(name);
  spec.inherited_fds = {ready.child_fd()};
  spec.parent_death_signal = SIGKILL;
  if (options_.bad_environments) {
    spec.environment = environments_[site]->Variables();
  }
  GP_ASSIGN_OR_RETURN(Process process, Process::Start(spec));
  return Daemon{std::move(process), std::move(ready)};
}

absl::StatusOr<std::string> ProcessFederation::AwaitReady(Daemon& daemon, const std::string& name) const {
  absl::StatusOr<std::string> line = daemon.ready.ReadLine(daemon.process, kStartLimitNs);
  if (!line.ok()) {
    return absl::InternalError(fmt::format("{} did not get ready: {}{}", name, std::string(line.status().message()),
                                           LastWords(LogPath(name))));
  }
  return line;
}

absl::Status ProcessFederation::StartCoordinator() {
  const std::string listen = endpoint_.empty() ? "127.0.0.1:0" : endpoint_;
  std::vector<std::string> arguments{"--listen", listen, "--state-dir", (folder_.path() / "coordinator").string()};
  if (options_.restarts_per_hour > 0) {
    const fs::path config = folder_.path() / "coordinator.yaml";
    GP_RETURN_IF_ERROR(WriteFileAtomically(
        config, fmt::format("state_dir: {}\nlimits: {{restarts_per_hour: {}}}\n",
                            Quoted((folder_.path() / "coordinator").string()), options_.restarts_per_hour)));
    arguments.insert(arguments.end(), {"--config", config.string()});
  }
  GP_ASSIGN_OR_RETURN(coordinator_, Launch("geopipe-coordinator", "coordinator", sites(), std::move(arguments)));
  GP_ASSIGN_OR_RETURN(endpoint_, AwaitReady(*coordinator_, "coordinator"));
  control_ = std::make_unique<ControlClient>(endpoint_, kCallLimitNs);  // the old one would wait before it dials again
  return absl::OkStatus();
}

std::string ProcessFederation::AgentConfig(size_t site) const {
  std::string text = fmt::format(
      "site: {}\nnode: '0'\ncoordinator: {}\nstate_dir: {}\norphan_grace: {}\n"
      "devices: {{count: {}, threads: 1, kind: rehearsed, memory: 1GiB{}}}\nlinks:\n",
      Quoted(options_.sites[site]), Quoted(options_.proxied ? proxies_[site]->endpoint() : endpoint_),
      Quoted((folder_.path() / options_.sites[site]).string()), FormatDuration(options_.orphan_grace_ns),
      options_.devices, options_.figures.empty() ? "" : ", " + options_.figures);
  if (options_.own_program) {
    text.insert(text.find("devices:"), fmt::format("worker_binary: {}\n", Quoted(program().string())));
  }
  if (options_.bad_environments) {
    text.insert(text.find("devices:"),
                fmt::format("pass_environment: [LD_PRELOAD, {}]\n", BadEnvironmentPage::kVariable));
  }
  for (size_t to = 0; to < sites(); ++to) {
    if (to != site) {
      text += fmt::format("- {{to: {}, latency: {}, bandwidth: {}, shape: true, pacer_path: {}}}\n",
                          Quoted(options_.sites[to]), FormatDuration(options_.latency_ns),
                          FormatBandwidth(options_.bandwidth_bytes_per_s), Quoted(PacerOf(site, to).string()));
    }
  }
  return text;
}

absl::Status ProcessFederation::RestoreCoordinator(const std::string& backup) const {
  ProcessSpec spec;
  GP_ASSIGN_OR_RETURN(spec.program, SiblingProgram("geopipe-coordinator"));
  spec.args = {"--state-dir", (folder_.path() / "coordinator").string(), "--restore", backup};
  spec.stdout_path = spec.stderr_path = LogPath("restore");
  GP_ASSIGN_OR_RETURN(Process process, Process::Start(spec));
  const std::optional<ExitStatus> ended = process.Wait(kStartLimitNs);
  return ended.has_value() && ended->success()
             ? absl::OkStatus()
             : absl::InternalError(fmt::format("the store is not restored{}", LastWords(LogPath("restore"))));
}

absl::Status ProcessFederation::WriteConfigurations() {
  if (options_.own_program) {
    GP_ASSIGN_OR_RETURN(const std::string worker, SiblingProgram("geopipe-worker"));
    fs::create_symlink(worker, program());
  }
  const uint16_t port = static_cast<uint16_t>(std::stoi(endpoint_.substr(endpoint_.rfind(':') + 1)));
  for (size_t site = 0; site < sites(); ++site) {
    if (options_.proxied) {
      GP_ASSIGN_OR_RETURN(std::unique_ptr<HalfOpenProxy> proxy, HalfOpenProxy::Start(port));
      proxies_.push_back(std::move(proxy));
    }
    GP_RETURN_IF_ERROR(MakeFolder(folder_.path() / options_.sites[site]));
    GP_RETURN_IF_ERROR(MakeFolder(DiskOf(options_.sites[site])));
    GP_RETURN_IF_ERROR(MakeFolder(disk()));
    GP_RETURN_IF_ERROR(WriteFileAtomically(folder_.path() / (options_.sites[site] + ".yaml"), AgentConfig(site)));
  }
  return absl::OkStatus();
}

absl::Status ProcessFederation::LaunchAgent(size_t site) {
  const std::string& name = options_.sites[site];
  GP_ASSIGN_OR_RETURN(agents_[site],
                      Launch("geopipe-agent", name, site, {"--config", (folder_.path() / (name + ".yaml")).string()},
                             options_.own_disks));
  return absl::OkStatus();
}

absl::Status ProcessFederation::AwaitAgent(size_t site) {
  return AwaitReady(*agents_[site], options_.sites[site]).status();
}

absl::Status ProcessFederation::StartAgent(size_t site) {
  GP_RETURN_IF_ERROR(LaunchAgent(site));
  return AwaitAgent(site);
}

// A Process kills and reaps its child when it goes.
void ProcessFederation::KillCoordinator() { coordinator_.reset(); }
void ProcessFederation::KillAgent(size_t site) { agents_[site].reset(); }

std::optional<ProcessInfo> ProcessFederation::KeeperOf(size_t site) const {
  const std::string state_dir = (folder_.path() / options_.sites[site]).string();
  for (ProcessInfo& process : Descendants(getpid())) {
    const auto& arguments = process.arguments;
    const auto keeper = std::ranges::find(arguments, "--keeper");
    if (keeper != arguments.end() && keeper + 1 != arguments.end() && *(keeper + 1) == state_dir) {
      return std::move(process);
    }
  }
  return std::nullopt;
}

fs::path ProcessFederation::PacerOf(size_t from, size_t to) const {
  const auto& [near, far] = std::minmax(from, to);
  return folder_.path() / fmt::format("pacer-{}-{}-{}", near, far, from < to ? "up" : "down");
}

std::vector<fs::path> ProcessFederation::DisksOf(size_t site) const {
  if (site == sites()) {
    return {folder_.path() / "coordinator"};
  }
  return {folder_.path() / options_.sites[site], DiskOf(options_.sites[site])};
}

absl::Status ProcessFederation::MountDisks() {
  for (size_t site = 0; options_.disk_bytes > 0 && site <= sites(); ++site) {
    for (const fs::path& path : DisksOf(site)) {
      GP_RETURN_IF_ERROR(MakeFolder(path));
      const std::string size = fmt::format("size={}", options_.disk_bytes);
      if (mount("tmpfs", path.c_str(), "tmpfs", 0, size.c_str()) != 0) {
        return absl::UnavailableError(
            fmt::format("{} cannot be a disk of its own: {}", path.string(), std::strerror(errno)));
      }
      mounts_.push_back(path);
    }
  }
  return absl::OkStatus();
}

absl::Status ProcessFederation::MakeEnvironments() {
  for (size_t site = 0; options_.bad_environments && site <= sites(); ++site) {
    const std::string name = site == sites() ? "coordinator" : options_.sites[site];
    std::vector<fs::path> disks = DisksOf(site);
    if (options_.disk_bytes == 0) {
      disks.clear();  // they are this machine's
    }
    GP_ASSIGN_OR_RETURN(std::unique_ptr<BadEnvironment> environment,
                        BadEnvironment::Create(folder_.path() / fmt::format("environment-{}", name), disks));
    environments_.push_back(std::move(environment));
  }
  return absl::OkStatus();
}

absl::Status ProcessFederation::Revive() {
  if (!coordinator_.has_value() || coordinator_->process.Wait(0).has_value()) {
    coordinator_.reset();
    GP_RETURN_IF_ERROR(StartCoordinator());
  }
  for (size_t site = 0; site < sites(); ++site) {
    if (!agents_[site].has_value() || agents_[site]->process.Wait(0).has_value()) {
      agents_[site].reset();
      GP_RETURN_IF_ERROR(LaunchAgent(site));
    }
  }
  return absl::OkStatus();
}

absl::Status ProcessFederation::LoseSite(size_t site) {
  const std::string home = (folder_.path() / options_.sites[site]).string();
  const int64_t agent = agent_pid(site);
  kill(static_cast<pid_t>(agent), SIGSTOP);  // it would tell of the others' ends
  std::vector<ProcessInfo> processes = Descendants(getpid());
  std::erase_if(processes, [&](const ProcessInfo& process) {
    return process.pid != agent && !Mentions(process, home) && !Mentions(process, home + "/");
  });
  for (const ProcessInfo& process : processes) {
    kill(static_cast<pid_t>(process.pid), SIGKILL);
  }
  KillAgent(site);
  std::error_code error;
  if (options_.own_disks) {
    fs::remove_all(DiskOf(options_.sites[site]), error);
    GP_RETURN_IF_ERROR(MakeFolder(DiskOf(options_.sites[site])));
  }
  fs::remove_all(home, error);
  return MakeFolder(home);
}

void ProcessFederation::Signal(int64_t pid, int signal) const { kill(static_cast<pid_t>(pid), signal); }

std::optional<ProcessInfo> ProcessFederation::WorkerOf(size_t site, int32_t device) const {
  for (ProcessInfo& process : Descendants(getpid())) {
    const auto flag = std::ranges::find(process.arguments, "--device");
    if (process.Runs("geopipe-worker") && Mentions(process, (folder_.path() / options_.sites[site]).string() + "/") &&
        flag != process.arguments.end() && flag + 1 != process.arguments.end() &&
        *(flag + 1) == fmt::format("{}", device)) {
      return std::move(process);
    }
  }
  return std::nullopt;
}

std::string ProcessFederation::Log(const std::string& name) const { return TextOf(LogPath(name)); }

std::string ProcessFederation::WorkerLog(size_t site) const {
  return TextOf(folder_.path() / options_.sites[site] / "logs" / "worker-0.log");
}

absl::Status ProcessFederation::CopyLogs(const fs::path& to) const {
  GP_RETURN_IF_ERROR(MakeFolder(to));
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_.path())) {
    if (entry.path().extension() == ".log") {
      fs::copy_file(entry.path(), to / entry.path().filename(), fs::copy_options::overwrite_existing, error);
    }
  }
  for (const std::string& site : options_.sites) {
    fs::copy(folder_.path() / site / "logs", to / site,
             fs::copy_options::recursive | fs::copy_options::overwrite_existing, error);
  }
  return error ? absl::InternalError(fmt::format("logs cannot be copied to {}: {}", to.string(), error.message()))
               : absl::OkStatus();
}

absl::StatusOr<std::string> ProcessFederation::Geopipectl(std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"--server", endpoint_});
  return RunGeopipectl(std::move(arguments));
}

absl::StatusOr<std::string> ProcessFederation::RunGeopipectl(std::vector<std::string> arguments) {
  const std::string name = fmt::format("geopipectl-{}", ++commands_);
  const fs::path out = folder_.path() / (name + ".out");
  const fs::path err = folder_.path() / (name + ".err");
  ProcessSpec spec;
  GP_ASSIGN_OR_RETURN(spec.program, SiblingProgram("geopipectl"));
  const std::string verb = arguments.front();
  spec.args = std::move(arguments);
  spec.stdout_path = out;
  spec.stderr_path = err;
  spec.parent_death_signal = SIGKILL;
  GP_ASSIGN_OR_RETURN(Process process, Process::Start(spec));
  const std::optional<ExitStatus> ended = process.Wait(kCommandLimitNs);
  if (!ended.has_value() || !ended->success()) {
    return absl::InternalError(fmt::format(
        "geopipectl {} {}{}", verb, ended.has_value() ? ended->Description() : "did not end in time", LastWords(err)));
  }
  return ReadFile(out, kMaxOutputBytes);
}

absl::StatusOr<v1::JobSummary> ProcessFederation::Summary(const std::string& job) const {
  GP_ASSIGN_OR_RETURN(const v1::ListJobsResponse response, control_->ListJobs());
  const auto found = std::ranges::find(response.jobs(), job, &v1::JobSummary::name);
  if (found == response.jobs().end()) {
    return absl::NotFoundError(fmt::format("the coordinator knows no job {}", job));
  }
  return *found;
}

absl::StatusOr<bool> ProcessFederation::AllConnected() const {
  GP_ASSIGN_OR_RETURN(const v1::ListSitesResponse response, control_->ListSites());
  size_t connected = 0;
  for (const v1::SiteStatus& site : response.sites()) {
    for (const v1::NodeStatus& node : site.nodes()) {
      connected += node.connected() ? 1 : 0;
    }
  }
  return connected == sites();
}

absl::StatusOr<std::vector<v1::IterationSummary>> ProcessFederation::Curve(const std::string& name, int64_t run) const {
  std::vector<v1::IterationSummary> curve;
  const auto add = [&curve](const v1::WatchJobResponse& event) {
    if (event.has_iteration()) {
      curve.push_back(event.iteration());
    }
    return true;
  };
  GP_RETURN_IF_ERROR(control_->WatchJob(name, 0, add, nullptr, run));
  return curve;
}

absl::Status ProcessFederation::AwaitState(const std::string& name, v1::JobState state, int64_t timeout_ns) const {
  const auto look = [&]() -> absl::StatusOr<bool> {
    GP_ASSIGN_OR_RETURN(const v1::JobSummary job, Summary(name));
    if (job.state() != state && IsFinal(job.state())) {
      return absl::InternalError(fmt::format("job {} is {}: {}", name, JobStateName(job.state()), job.cause()));
    }
    return job.state() == state;
  };
  return AwaitNs(fmt::format("{} of job {}", JobStateName(state), name), timeout_ns, look).status();
}

absl::Status ProcessFederation::AwaitIteration(const std::string& name, int64_t done, int64_t timeout_ns) const {
  const auto look = [&]() -> absl::StatusOr<bool> {
    GP_ASSIGN_OR_RETURN(const v1::JobSummary job, Summary(name));
    if (job.iterations_done() < done && IsFinal(job.state())) {
      return absl::InternalError(fmt::format("job {} is {}: {}", name, JobStateName(job.state()), job.cause()));
    }
    return job.iterations_done() >= done;
  };
  return AwaitNs(fmt::format("iteration {} of job {}", done, name), timeout_ns, look).status();
}

}  // namespace geopipe
