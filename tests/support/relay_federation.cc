#include "tests/support/relay_federation.h"

#include <fmt/format.h>

#include <csignal>
#include <system_error>
#include <utility>

#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/clock.h"

namespace geopipe {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int64_t kStartLimitNs = 30'000'000'000;
constexpr int64_t kCallLimitNs = 30'000'000'000;
constexpr int64_t kStopGraceNs = 5'000'000'000;
constexpr int64_t kLookNs = 10'000'000;  // between two looks at what a command has printed
constexpr size_t kLastWordsBytes = 800;
constexpr size_t kMaxOutputBytes = size_t{64} << 20;

// YAML understands JSON's double-quoted strings.
std::string Quoted(const std::string& text) { return Json(text).dump(); }

std::string LastWords(const fs::path& path) {
  const absl::StatusOr<std::string> tail = ReadFileTail(path, kLastWordsBytes);
  return tail.ok() && !tail->empty() ? fmt::format("; the end of {}:\n{}", path.filename().string(), *tail) : "";
}

absl::StatusOr<Json> Parse(const std::string& text) {
  Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) {
    return absl::InternalError(fmt::format("geopipectl printed something else than JSON: {}", text));
  }
  return json;
}

int64_t Count(const std::string& text, std::string_view part) {
  int64_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) {
    ++count;
  }
  return count;
}

}  // namespace

std::string NumbersOf(const std::vector<Json>& iterations) {
  std::string text;
  for (const Json& iteration : iterations) {
    const Json norm = iteration.value("grad_norm", Json());
    text += fmt::format("{} {} {}\n", iteration.value("iteration", int64_t{-1}), iteration.value("loss", Json()).dump(),
                        norm.dump());
  }
  return text;
}

absl::StatusOr<std::unique_ptr<RelayFederation>> RelayFederation::Start(const RelayFederationOptions& options) {
  GP_ASSIGN_OR_RETURN(TempFolder folder, TempFolder::Create("geopipe-relay-"));
  std::unique_ptr<RelayFederation> federation(new RelayFederation(options, std::move(folder)));
  GP_ASSIGN_OR_RETURN(federation->sites_, TunSites::Create(options.hosts));
  GP_ASSIGN_OR_RETURN(federation->relay_, TunRelay::Start(*federation->sites_, options.link));
  GP_RETURN_IF_ERROR(federation->StartPrograms());
  return federation;
}

RelayFederation::~RelayFederation() {
  // Agents first, both at once: each takes its worker along.
  for (size_t i = 1; i < daemons_.size(); ++i) {
    daemons_[i].Signal(SIGTERM);
  }
  while (!daemons_.empty()) {
    daemons_.back().Terminate(kStopGraceNs);
    daemons_.pop_back();
  }
}

absl::StatusOr<std::string> RelayFederation::Program(const std::string& name) const {
  if (options_.programs.empty()) {
    return SiblingProgram(name);
  }
  return (options_.programs / name).string();
}

absl::StatusOr<std::string> RelayFederation::Launch(const std::string& program, const std::string& name) {
  GP_ASSIGN_OR_RETURN(ReadyPipe ready, ReadyPipe::Create());
  const fs::path log = folder_.path() / (name + ".log");
  ProcessSpec spec;
  GP_ASSIGN_OR_RETURN(spec.program, Program(program));
  spec.args = {"--config", (folder_.path() / (name + ".yaml")).string(), "--ready-fd",
               fmt::format("{}", ready.child_fd()), "--die-with-parent"};
  spec.stdout_path = log;
  spec.stderr_path = log;
  spec.inherited_fds = {ready.child_fd()};
  spec.parent_death_signal = SIGTERM;
  GP_ASSIGN_OR_RETURN(Process process, Process::Start(spec));
  daemons_.push_back(std::move(process));
  absl::StatusOr<std::string> line = ready.ReadLine(daemons_.back(), kStartLimitNs);
  if (!line.ok()) {
    return absl::InternalError(fmt::format("{} ({}) did not get ready: {}{}", program, name,
                                           std::string(line.status().message()), LastWords(log)));
  }
  return line;
}

absl::StatusOr<std::string> RelayFederation::WriteWorkerScript(size_t site) const {
  GP_ASSIGN_OR_RETURN(const std::string relay, SiblingProgram("tun_relay"));
  GP_ASSIGN_OR_RETURN(const std::string worker, Program("geopipe-worker"));
  const fs::path path = folder_.path() / ("worker-of-" + options_.sites[site]);
  GP_RETURN_IF_ERROR(WriteFileAtomically(
      path, fmt::format("#!/bin/sh\nexec '{}' enter {} '{}' \"$@\"\n", relay, sites_->NetworkPath(site), worker)));
  std::error_code error;
  fs::permissions(path, fs::perms::owner_all, error);
  return error ? ErrnoStatus(error.value(), path.string()) : absl::StatusOr<std::string>(path.string());
}

std::string RelayFederation::AgentConfig(size_t site, const std::string& worker) const {
  return fmt::format(
      "site: {}\ncoordinator: {}\nstate_dir: {}\nworker_binary: {}\ndie_with_parent: true\n"
      "orphan_grace: {}\n"
      "devices: {{count: 1, threads: 1, kind: rehearsed, memory: 1GiB}}\n"
      "ucx: {{tls: tcp, net_devices: {}, allow_unprotected: true, private_network: {}}}\n"
      "links:\n- {{to: {}, latency: {}, bandwidth: {}}}\n",
      Quoted(options_.sites[site]), Quoted(endpoint_), Quoted((folder_.path() / options_.sites[site]).string()),
      Quoted(worker), FormatDuration(options_.orphan_grace_ns), TunSites::kDevice, TunSites::kNetwork,
      Quoted(options_.sites[1 - site]), FormatDuration(options_.link.latency_ns),
      FormatBandwidth(options_.link.bandwidth_bytes_per_s));
}

absl::Status RelayFederation::StartPrograms() {
  GP_RETURN_IF_ERROR(MakeFolder(folder_.path() / "coordinator"));
  GP_RETURN_IF_ERROR(WriteFileAtomically(folder_.path() / "coordinator.yaml",
                                         // The agents would probe the links, but they are not where the workers are.
                                         fmt::format("listen: 127.0.0.1:0\nprobe_interval: 0\nstate_dir: {}\n",
                                                     Quoted((folder_.path() / "coordinator").string()))));
  GP_ASSIGN_OR_RETURN(endpoint_, Launch("geopipe-coordinator", "coordinator"));
  for (size_t site = 0; site < options_.sites.size(); ++site) {
    const std::string& name = options_.sites[site];
    GP_RETURN_IF_ERROR(MakeFolder(folder_.path() / name));
    GP_ASSIGN_OR_RETURN(const std::string worker, WriteWorkerScript(site));
    GP_RETURN_IF_ERROR(WriteFileAtomically(folder_.path() / (name + ".yaml"), AgentConfig(site, worker)));
    GP_RETURN_IF_ERROR(Launch("geopipe-agent", name).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<Process> RelayFederation::StartGeopipectl(const std::vector<std::string>& arguments) {
  const std::string name = fmt::format("geopipectl-{}", ++commands_);
  out_ = folder_.path() / (name + ".out");
  err_ = folder_.path() / (name + ".err");
  ProcessSpec spec;
  GP_ASSIGN_OR_RETURN(spec.program, Program("geopipectl"));
  spec.args = arguments;
  spec.stdout_path = out_;
  spec.stderr_path = err_;
  spec.parent_death_signal = SIGTERM;
  return Process::Start(spec);
}

absl::StatusOr<std::string> RelayFederation::Geopipectl(const std::vector<std::string>& arguments, int64_t timeout_ns) {
  GP_ASSIGN_OR_RETURN(Process process, StartGeopipectl(arguments));
  const std::optional<ExitStatus> ended = process.Wait(timeout_ns);
  if (!ended.has_value() || !ended->success()) {
    const std::string how = ended.has_value() ? ended->Description() : "did not end in time";
    return absl::InternalError(fmt::format("geopipectl {} {}{}", arguments.front(), how, LastWords(err_)));
  }
  return ReadFile(out_, kMaxOutputBytes);
}

absl::Status RelayFederation::Follow(const std::string& job, int64_t timeout_ns, const OnIteration& on_iteration,
                                     std::vector<Json>& iterations) {
  GP_ASSIGN_OR_RETURN(Process watch, StartGeopipectl({"watch", job, "-o", "json", "--server", endpoint_}));
  const fs::path out = out_;
  const int64_t deadline_ns = Clock::Real().NowNs() + timeout_ns;
  size_t taken = 0;
  std::string last;  // transition
  while (true) {
    // Asleep until the command ends or the time for a look has come.
    const std::optional<ExitStatus> ended = watch.Wait(kLookNs);
    GP_ASSIGN_OR_RETURN(const std::string text, ReadFile(out, kMaxOutputBytes));
    for (size_t end = text.find('\n', taken); end != std::string::npos; end = text.find('\n', taken)) {
      const std::string line = text.substr(taken, end - taken);
      taken = end + 1;
      GP_ASSIGN_OR_RETURN(Json event, Parse(line));
      if (event.contains("state")) {
        last = line;
      }
      if (event.contains("iteration")) {
        iterations.push_back(std::move(event));
        if (on_iteration) {
          on_iteration(iterations.back());
        }
      }
    }
    if (ended.has_value()) {
      return ended->success() ? absl::OkStatus()
                              : absl::InternalError(fmt::format("job {} did not complete: {}", job, last));
    }
    if (Clock::Real().NowNs() > deadline_ns) {
      return absl::DeadlineExceededError(fmt::format("job {} has not ended: {}", job, last));
    }
  }
}

// Counts the lines in which the dialling worker, that of the first site, says that it has lost or replaced its path.
absl::StatusOr<int64_t> RelayFederation::CountReconnects() const {
  const fs::path log = folder_.path() / options_.sites[0] / "logs" / "worker-0.log";
  if (!fs::exists(log)) {
    return 0;
  }
  GP_ASSIGN_OR_RETURN(const std::string text, ReadFile(log, kMaxOutputBytes));
  return Count(text, "was silent and has been replaced") + Count(text, "connection with rank 1 lost");
}

absl::StatusOr<RelayRun> RelayFederation::Train(std::vector<std::string> arguments, int64_t timeout_ns,
                                                const OnIteration& on_iteration) {
  arguments.insert(arguments.begin(), "apply");
  arguments.insert(arguments.end(), {"-o", "json", "--server", endpoint_});
  GP_ASSIGN_OR_RETURN(const int64_t reconnects, CountReconnects());
  GP_ASSIGN_OR_RETURN(const std::string applied, Geopipectl(arguments, kCallLimitNs));
  GP_ASSIGN_OR_RETURN(const Json job, Parse(applied));
  RelayRun run;
  run.job = job.value("name", "");
  GP_RETURN_IF_ERROR(Follow(run.job, timeout_ns, on_iteration, run.iterations));
  GP_ASSIGN_OR_RETURN(const std::string described,
                      Geopipectl({"describe", run.job, "-o", "json", "--server", endpoint_}, kCallLimitNs));
  GP_ASSIGN_OR_RETURN(run.description, Parse(described));
  GP_ASSIGN_OR_RETURN(run.reconnects, CountReconnects());
  run.reconnects -= reconnects;
  return run;
}

absl::Status RelayFederation::WriteTrace(const std::string& job, const fs::path& path) {
  return Geopipectl({"trace", job, "--output", path.string(), "--server", endpoint_}, kCallLimitNs).status();
}

}  // namespace geopipe
