// Checks that idle means idle: measures processor time of every process and thread of a run that mostly waits, 200 ms
// from site to site. Two runs of the overlap job: modelled, where the executor computes nothing and so all it uses is
// beside computing; and paced real arithmetic. Exits 1 when something uses more than it may:
//
//   worker       all threads but the executor together   5 % of one processor
//   worker       the executor, modelled run              2 %
//   agent, coordinator                                   2 % each
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "runtime/base/clock.h"
#include "runtime/base/files.h"
#include "runtime/base/process.h"
#include "tests/integration/processes.h"

namespace geopipe {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kStartTimeoutNs = 120 * kSecondNs;
constexpr int64_t kWindowNs = 15 * kSecondNs;
constexpr double kMaxOfWorker = 0.05;
constexpr double kMaxOfExecutor = 0.02;
constexpr double kMaxOfOthers = 0.02;
constexpr const char* kCosts =
    "devices: 2\nmicro_batches: 16\nforward_s: 0.01\nbackward_s: 0.02\nmessage_bytes: 65536\n"
    "links:\n- {from_chunk: 0, latency_s: 0.2, bandwidth_Bps: 1.25e8, link: east-west}\n";

// Processor time of each thread, by its name (and number, where several have the same).
using ThreadTimes = std::map<std::string, int64_t>;

std::string FirstLine(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

ThreadTimes TimesOf(int64_t pid) {
  ThreadTimes times;
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", pid), error)) {
    int64_t on_cpu_ns = 0;
    std::istringstream(FirstLine(task.path() / "schedstat")) >> on_cpu_ns;
    times[fmt::format("{} {}", FirstLine(task.path() / "comm"), task.path().filename().string())] = on_cpu_ns;
  }
  return times;
}

std::string RoleOf(const ProcessInfo& process) {
  for (const char* program : {"geopipe-coordinator", "geopipe-agent", "geopipe-worker"}) {
    if (process.Runs(program)) {
      return program + sizeof("geopipe-") - 1;
    }
  }
  return "";
}

absl::Status WaitForIterations(const std::filesystem::path& out, Process& playground, int64_t count) {
  const int64_t deadline_ns = Clock::Real().NowNs() + kStartTimeoutNs;
  while (Clock::Real().NowNs() < deadline_ns) {
    GP_ASSIGN_OR_RETURN(const std::string text, ReadFile(out, 1 << 20));
    int64_t seen = 0;
    for (size_t at = text.find("iteration "); at != std::string::npos; at = text.find("iteration ", at + 1)) {
      ++seen;
    }
    if (seen >= count) {
      return absl::OkStatus();
    }
    if (playground.Wait(100'000'000).has_value()) {
      return absl::UnavailableError(fmt::format("the playground ended early:\n{}", text));
    }
  }
  return absl::DeadlineExceededError("no iterations");
}

// Prints a line and says whether the share is within its bound.
bool Judge(const std::string& role, const std::string& threads, int64_t used_ns, int64_t wall_ns, double most) {
  const double share = static_cast<double>(used_ns) / static_cast<double>(wall_ns);
  const bool good = share <= most;
  fmt::print("  {:<12} {:<28} {:>6.2f} %  (at most {:.0f} %){}\n", role, threads, 100 * share, 100 * most,
             good ? "" : "  TOO MUCH");
  return good;
}

// Measures over a window of a run that goes on.
bool Measure(int64_t playground_pid, bool modelled) {
  const std::vector<ProcessInfo> processes = Descendants(playground_pid);
  std::map<int64_t, ThreadTimes> before;
  for (const ProcessInfo& process : processes) {
    before[process.pid] = TimesOf(process.pid);
  }
  const int64_t begin_ns = Clock::Real().NowNs();
  Clock::Real().SleepUntilNs(begin_ns + kWindowNs);
  bool good = true;
  for (const ProcessInfo& process : processes) {
    const std::string role = RoleOf(process);
    if (role.empty()) {
      continue;
    }
    int64_t executor_ns = 0;
    int64_t others_ns = 0;
    const ThreadTimes after = TimesOf(process.pid);
    const int64_t wall_ns = Clock::Real().NowNs() - begin_ns;
    for (const auto& [thread, time_ns] : after) {
      (thread.starts_with("executor ") ? executor_ns : others_ns) += time_ns - before[process.pid][thread];
    }
    if (role == "worker") {
      good &= Judge(role, "all but the executor", others_ns, wall_ns, kMaxOfWorker);
      if (modelled) {
        good &= Judge(role, "executor, computing nothing", executor_ns, wall_ns, kMaxOfExecutor);
      }
    } else {
      good &= Judge(role, "all", executor_ns + others_ns, wall_ns, kMaxOfOthers);
    }
  }
  return good;
}

absl::StatusOr<bool> RunOnce(const std::filesystem::path& folder, bool modelled) {
  const std::filesystem::path out = folder / (modelled ? "modelled.out" : "paced.out");
  GP_RETURN_IF_ERROR(WriteFileAtomically(folder / "costs.yaml", kCosts));
  ProcessSpec spec;
  spec.program = std::string(GEOPIPE_BINARY_DIR) + "/bin/geopipectl";
  spec.args = {"playground",
               "--job",
               std::string(GEOPIPE_SOURCE_DIR) + "/deploy/examples/overlap.yaml",
               "--case",
               (folder / "costs.yaml").string(),
               "--output",
               folder.string()};
  if (modelled) {
    spec.args.insert(spec.args.end(), {"--backend", "modelled"});
  } else {
    spec.args.emplace_back("--pace");
  }
  spec.stdout_path = out;
  spec.stderr_path = folder / "err";
  GP_ASSIGN_OR_RETURN(Process playground, Process::Start(spec));
  GP_RETURN_IF_ERROR(WaitForIterations(out, playground, 2));
  fmt::print("{}, {} s in mid-run:\n", modelled ? "modelled" : "paced arithmetic", kWindowNs / kSecondNs);
  const bool good = Measure(playground.pid(), modelled);
  playground.Signal(2);
  playground.Wait(10 * kSecondNs);
  return good;
}

absl::StatusOr<bool> RunAll() {
  GP_ASSIGN_OR_RETURN(const TempFolder folder, TempFolder::Create("geopipe-idle-"));
  GP_ASSIGN_OR_RETURN(const bool modelled, RunOnce(folder.path(), true));
  GP_ASSIGN_OR_RETURN(const bool paced, RunOnce(folder.path(), false));
  return modelled && paced;
}

}  // namespace
}  // namespace geopipe

int main() {
  const absl::StatusOr<bool> good = geopipe::RunAll();
  if (!good.ok()) {
    fmt::print(stderr, "error: {}\n", std::string(good.status().message()));
    return 1;
  }
  return *good ? 0 : 1;
}
