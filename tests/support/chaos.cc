#include "tests/support/chaos.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "optimizer/base/splitmix64.h"
#include "optimizer/base/status_macros.h"
#include "proto/wire/control_wire.h"
#include "runtime/base/clock.h"
#include "runtime/base/unique_fd.h"
#include "runtime/rehearsal/link/link_pacer.h"
#include "tests/support/durations.h"
#include "tests/support/survival.h"

namespace geopipe {
namespace {

namespace fs = std::filesystem;
using Kind = ChaosFault::Kind;

constexpr int64_t kTickNs = 100'000'000;
constexpr int64_t kSampleNs = 500'000'000;
constexpr int64_t kReviveNs = kSecond;      // systemd's RestartSec
constexpr int64_t kAnswerNs = 400'000'000;  // a coordinator that is stopped must not stop this program
constexpr int64_t kBeginLimitNs = 90 * kSecond;
constexpr int64_t kLateNs = 300 * kSecond;  // beyond the last fault, for the job to end
constexpr const char* kFiller = "filler";

std::vector<std::pair<size_t, size_t>> Links(size_t sites) {
  std::vector<std::pair<size_t, size_t>> links;
  for (size_t a = 0; a < sites; ++a) {
    for (size_t b = a + 1; b < sites; ++b) {
      links.emplace_back(a, b);
    }
  }
  return links;
}

void Fill(const fs::path& folder) {
  UniqueFd file(open((folder / kFiller).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
  const std::vector<char> zeros(size_t{1} << 16);
  for (size_t bytes = zeros.size(); file.valid() && bytes >= 512;) {
    if (write(file.get(), zeros.data(), bytes) <= 0) {
      bytes /= 2;  // to the last page
    }
  }
}

// Acts to be done later, each at its time.
class Agenda {
 public:
  void At(int64_t at_ns, std::function<void()> act) { acts_.emplace(at_ns, std::move(act)); }
  void Do(int64_t now_ns) {
    while (!acts_.empty() && acts_.begin()->first <= now_ns) {
      const std::function<void()> act = std::move(acts_.begin()->second);
      acts_.erase(acts_.begin());
      act();
    }
  }
  bool empty() const { return acts_.empty(); }

 private:
  std::multimap<int64_t, std::function<void()>> acts_;
};

class Chaos {
 public:
  Chaos(ProcessFederation& federation, Agenda& agenda) : federation_(federation), agenda_(agenda) {}

  // Makes the fault happen. False: it would hit nothing at the moment.
  bool Happen(int64_t now_ns, const ChaosFault& fault) {
    switch (fault.kind) {
      case Kind::kKill:
      case Kind::kStop:
        return Signal(now_ns, fault);
      case Kind::kCut:
        return Cut(now_ns, fault);
      case Kind::kFull:
        for (const fs::path& disk : federation_.DisksOf(fault.target == 0 ? federation_.sites() : fault.target - 1)) {
          Fill(disk);
          agenda_.At(now_ns + fault.duration_ns, [disk] { unlink((disk / kFiller).c_str()); });
        }
        return true;
    }
    return false;
  }

 private:
  std::optional<ProcessInfo> Target(size_t target) const {
    const size_t sites = federation_.sites();
    const size_t site = target == 0 ? 0 : (target - 1) % sites;
    const size_t role = target == 0 ? 0 : 1 + (target - 1) / sites;
    if (role == 2) {
      return federation_.KeeperOf(site);
    }
    if (role == 3) {
      return federation_.WorkerOf(site);
    }
    const int64_t pid = role == 0 ? federation_.coordinator_pid() : federation_.agent_pid(site);
    for (ProcessInfo& process : Descendants(getpid())) {
      if (process.pid == pid) {
        return std::move(process);
      }
    }
    return std::nullopt;
  }

  bool Signal(int64_t now_ns, const ChaosFault& fault) {
    const std::optional<ProcessInfo> process = Target(fault.target);
    if (!process.has_value()) {
      return false;
    }
    federation_.Signal(process->pid, fault.kind == Kind::kKill ? SIGKILL : SIGSTOP);
    if (fault.kind == Kind::kStop) {
      agenda_.At(now_ns + fault.duration_ns, [this, stopped = *process] {
        if (Exists(stopped)) {
          federation_.Signal(stopped.pid, SIGCONT);
        }
      });
    }
    return true;
  }

  // The transmitters of both directions have something else to do.
  bool Cut(int64_t now_ns, const ChaosFault& fault) const {
    const auto [a, b] = Links(federation_.sites())[fault.target];
    for (const auto& [from, to] : {std::pair{a, b}, std::pair{b, a}}) {
      const absl::StatusOr<std::unique_ptr<LinkPacer>> pacer = LinkPacer::Open(federation_.PacerOf(from, to).string());
      if (!pacer.ok()) {
        return false;
      }
      (*pacer)->Occupy(now_ns, fault.duration_ns);
    }
    return true;
  }

  ProcessFederation& federation_;
  Agenda& agenda_;
};

std::string Label(Kind kind) { return std::string(1, "kscf"[static_cast<size_t>(kind)]); }

// Rows of the picture: the job, then processes, links and disks. The row of a fault.
std::vector<std::string> Rows(const std::vector<std::string>& sites) {
  std::vector<std::string> rows;
  for (const Kind kind : {Kind::kKill, Kind::kCut, Kind::kFull}) {
    std::ranges::move(ChaosTargets(kind, sites), std::back_inserter(rows));
  }
  return rows;
}

size_t RowOf(const ChaosFault& fault, const std::vector<std::string>& sites) {
  const size_t processes = ChaosTargets(Kind::kKill, sites).size();
  const size_t links = ChaosTargets(Kind::kCut, sites).size();
  return fault.target + (fault.kind == Kind::kCut ? processes : fault.kind == Kind::kFull ? processes + links : 0);
}

// Recoveries, each from the loss to the next epoch, in ns since training began.
std::vector<std::pair<int64_t, int64_t>> Recoveries(const ChaosRun& run) {
  std::vector<std::pair<int64_t, int64_t>> times;
  for (const v1::RecoverySummary& recovery : run.detail.recoveries()) {
    times.emplace_back(recovery.begun_unix_time_ns() - run.begun_unix_ns,
                       recovery.ended_unix_time_ns() - run.begun_unix_ns);
  }
  return times;
}

}  // namespace

std::vector<std::string> ChaosTargets(Kind kind, const std::vector<std::string>& sites) {
  std::vector<std::string> names;
  if (kind == Kind::kCut) {
    for (const auto& [a, b] : Links(sites.size())) {
      names.push_back(fmt::format("link {}-{}", sites[a], sites[b]));
    }
    return names;
  }
  names.emplace_back(kind == Kind::kFull ? "disk of coordinator" : "coordinator");
  for (const char* what : {"agent", "keeper", "worker"}) {
    for (const std::string& site : sites) {
      if (kind == Kind::kFull) {
        names.push_back(fmt::format("disk of {}", site));
      } else {
        names.push_back(fmt::format("{} {}", what, site));
      }
    }
    if (kind == Kind::kFull) {
      break;
    }
  }
  return names;
}

std::vector<ChaosFault> DrawChaos(uint64_t seed, size_t sites, int64_t span_ns, int64_t every_ns) {
  SplitMix64 random(seed);
  const std::vector<std::string> names(sites);
  std::vector<ChaosFault> faults;
  double at_ns = 0;
  while (true) {
    at_ns -= std::log(1 - random.Uniform()) * static_cast<double>(every_ns);
    if (at_ns >= static_cast<double>(span_ns)) {
      return faults;
    }
    const double which = random.Uniform();
    ChaosFault fault{.kind = which < 0.4   ? Kind::kKill
                             : which < 0.7 ? Kind::kStop
                             : which < 0.9 ? Kind::kCut
                                           : Kind::kFull,
                     .at_ns = static_cast<int64_t>(at_ns)};
    const double longest_s = fault.kind == Kind::kStop ? 19 : 7;
    fault.duration_ns = fault.kind == Kind::kKill ? 0
                        : fault.kind == Kind::kFull
                            ? 10 * kSecond
                            : kSecond + static_cast<int64_t>(random.Uniform() * longest_s * 1e9);
    fault.target = static_cast<size_t>(random.Uniform() * static_cast<double>(ChaosTargets(fault.kind, names).size()));
    faults.push_back(fault);
  }
}

absl::StatusOr<ChaosRun> TrainInChaos(ProcessFederation& federation, const std::string& job, int64_t iterations,
                                      const std::vector<ChaosFault>& faults) {
  const std::string more = fmt::format("  checkpoint: {{path: {}, every: 20, keep: 3, replicate: 1}}\n",
                                       (federation.disk() / "checkpoints").string());
  GP_ASSIGN_OR_RETURN(std::vector<std::string> arguments,
                      PacedJob(federation.folder(), job, federation.site_names(), iterations, more));
  arguments.insert(arguments.begin(), "apply");
  GP_RETURN_IF_ERROR(federation.Geopipectl(std::move(arguments)).status());
  GP_RETURN_IF_ERROR(federation.AwaitIteration(job, 1, kBeginLimitNs));
  ChaosRun run;
  GP_ASSIGN_OR_RETURN(run.detail, federation.control().GetJob(job));
  run.iteration_ns = run.detail.prediction().iteration_ns();
  Clock& clock = Clock::Real();
  const int64_t begun_ns = clock.NowNs();
  run.begun_unix_ns = clock.UnixNowNs();
  ControlClient quick(federation.endpoint(), kAnswerNs);
  Agenda agenda;
  Chaos chaos(federation, agenda);
  bool is_over = false;
  int64_t last_ns = 0;
  for (const ChaosFault& fault : faults) {
    last_ns = std::max(last_ns, fault.at_ns + fault.duration_ns);
    agenda.At(begun_ns + fault.at_ns, [&, fault] {
      if (!is_over && chaos.Happen(clock.NowNs(), fault)) {
        run.faults.push_back(fault);
      }
      agenda.At(clock.NowNs() + kReviveNs, [&] { federation.Revive().IgnoreError(); });
    });
  }
  int64_t sample_ns = 0;
  const int64_t limit_ns = begun_ns + std::max(last_ns, iterations * run.iteration_ns) + kLateNs;
  while (!is_over) {
    const int64_t now_ns = clock.NowNs();
    if (now_ns > limit_ns) {
      return absl::DeadlineExceededError(
          fmt::format("job {} has not ended: {}", job, run.samples.empty() ? 0 : run.samples.back().iterations));
    }
    agenda.Do(now_ns);
    if (now_ns >= sample_ns) {
      sample_ns = now_ns + kSampleNs;
      federation.Revive().IgnoreError();  // an agent that has ended by itself, a coordinator whose disk was full
      const absl::StatusOr<v1::JobDetail> detail = quick.GetJob(job);
      ChaosSample& sample = run.samples.emplace_back(ChaosSample{.at_ns = now_ns - begun_ns, .heard = detail.ok()});
      if (detail.ok()) {
        sample.state = detail->summary().state();
        sample.iterations = detail->summary().iterations_done();
        run.detail = *detail;
        is_over = IsFinal(sample.state);
      }
    }
    clock.SleepUntilNs(now_ns + kTickNs);
  }
  run.wall_ns = clock.NowNs() - begun_ns;
  while (!agenda.empty()) {  // who is stopped goes on, disks are emptied
    agenda.Do(clock.NowNs() + limit_ns);
  }
  if (run.detail.summary().state() != v1::JOB_STATE_COMPLETED) {
    return absl::InternalError(
        fmt::format("job {} {}: {}", job, JobStateName(run.detail.summary().state()), run.detail.summary().cause()));
  }
  GP_ASSIGN_OR_RETURN(run.curve, federation.Curve(job));
  return run;
}

std::string ChaosText(const ChaosRun& run, const std::vector<std::string>& sites, int64_t columns) {
  const int64_t span_ns = run.samples.empty() ? 1 : run.samples.back().at_ns + 1;
  const auto column = [&](int64_t at_ns) {
    return static_cast<size_t>(std::clamp<int64_t>(at_ns * columns / span_ns, 0, columns - 1));
  };
  std::string job(static_cast<size_t>(columns), '.');
  for (const ChaosSample& sample : run.samples) {
    char& cell = job[column(sample.at_ns)];
    cell = sample.heard ? '#' : cell;
  }
  for (const auto& [begun_ns, ended_ns] : Recoveries(run)) {
    std::fill(job.begin() + static_cast<std::ptrdiff_t>(column(begun_ns)),
              job.begin() + static_cast<std::ptrdiff_t>(column(ended_ns)) + 1, 'r');
  }
  std::string text = fmt::format("{:<20}|{}|\n", "job", job);
  const std::vector<std::string> names = Rows(sites);
  std::vector<std::string> rows(names.size(), std::string(static_cast<size_t>(columns), ' '));
  for (const ChaosFault& fault : run.faults) {
    std::string& row = rows[RowOf(fault, sites)];
    for (size_t i = column(fault.at_ns); i <= column(fault.at_ns + fault.duration_ns); ++i) {
      row[i] = i == column(fault.at_ns) ? Label(fault.kind)[0] : row[i] == ' ' ? '-' : row[i];
    }
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    text += fmt::format("{:<20}|{}|\n", names[i], rows[i]);
  }
  return text;
}

std::string ChaosSvg(const ChaosRun& run, const std::vector<std::string>& sites) {
  constexpr double kLeft = 150;
  constexpr double kWidth = 1200;
  constexpr double kRow = 22;
  const std::vector<std::string> names = Rows(sites);
  const double span_ns = run.samples.empty() ? 1 : static_cast<double>(run.samples.back().at_ns + 1);
  const auto x = [&](int64_t at_ns) { return kLeft + kWidth * static_cast<double>(at_ns) / span_ns; };
  const double height = kRow * static_cast<double>(names.size() + 3);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n",
      kLeft + kWidth + 20, height);
  const auto box = [&](double from, double to, size_t row, std::string_view color) {
    svg += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>\n", from,
                       kRow * static_cast<double>(row) + 4, std::max(1.5, to - from), kRow - 6, color);
  };
  const auto label = [&](double at, size_t row, const std::string& words) {
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", at, kRow * static_cast<double>(row) + 16, words);
  };
  label(8, 0, "job");
  for (size_t i = 0; i < run.samples.size(); ++i) {
    const ChaosSample& sample = run.samples[i];
    const int64_t end_ns = i + 1 < run.samples.size() ? run.samples[i + 1].at_ns : sample.at_ns + kSampleNs;
    box(x(sample.at_ns), x(end_ns), 0, sample.heard ? "#1b9e77" : "#bbbbbb");
  }
  for (const auto& [begun_ns, ended_ns] : Recoveries(run)) {
    box(x(begun_ns), std::max(x(begun_ns) + 2, x(ended_ns)), 0, "#d95f02");
  }
  for (size_t i = 0; i < names.size(); ++i) {
    label(8, i + 1, names[i]);
    box(kLeft, kLeft + kWidth, i + 1, i % 2 == 0 ? "#f4f4f4" : "#fafafa");
  }
  for (const ChaosFault& fault : run.faults) {
    constexpr const char* kColors[] = {"#b2182b", "#e6ab02", "#7570b3", "#66a61e"};
    const size_t row = RowOf(fault, sites) + 1;
    const double from = x(fault.at_ns);
    box(from, std::max(from + 4, x(fault.at_ns + fault.duration_ns)), row, kColors[static_cast<size_t>(fault.kind)]);
  }
  for (int64_t minute = 0; static_cast<double>(minute) * 60e9 <= span_ns; minute += 5) {
    label(x(minute * 60 * kSecond), names.size() + 1, fmt::format("{} min", minute));
  }
  label(8, names.size() + 2,
        "job: green trains, orange recovers, grey: the coordinator does not answer; red: killed, yellow: stopped, "
        "violet: "
        "link cut, light green: disk full");
  return svg + "</svg>\n";
}

}  // namespace geopipe
