#include "tests/support/chaos.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>

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

constexpr int64_t kTickNs = 50 * kMs;
constexpr int64_t kSampleNs = 200 * kMs;
constexpr int64_t kReviveNs = kSecond;    // between looks for what has ended
constexpr int64_t kAnswerNs = 400 * kMs;  // a coordinator that is stopped must not stop this program
constexpr int64_t kBeginLimitNs = 90 * kSecond;
constexpr int64_t kSettleNs = 3 * kSecond;
constexpr int64_t kSettleIterations = 2;
constexpr int64_t kSettleLimitNs = 120 * kSecond;  // after a fault is over
constexpr int64_t kLateNs = 300 * kSecond;         // beyond twice the time of all iterations
constexpr int64_t kBackupAgeNs = 60 * kSecond;     // at least, where there is an older one that was before an epoch
constexpr const char* kFiller = "filler";
constexpr const char* kOlder = "the job store was older than this run";

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

Lack LackOf(Kind kind) {
  switch (kind) {
    case Kind::kDescriptors:
      return Lack::kDescriptors;
    case Kind::kFork:
      return Lack::kFork;
    case Kind::kEstale:
      return Lack::kEstale;
    default:
      return Lack::kEio;
  }
}

class Chaos {
 public:
  Chaos(ProcessFederation& federation, std::string job, Agenda& agenda, ChaosRun& run)
      : federation_(federation), job_(std::move(job)), agenda_(agenda), run_(run) {}

  // Makes the fault of the last of the run's outcomes happen. False: it would hit nothing at the moment.
  absl::StatusOr<bool> Happen(int64_t now_ns) {
    const ChaosFault& fault = run_.outcomes.back().fault;
    GP_ASSIGN_OR_RETURN(const bool happened, Do(now_ns, fault));
    if (happened && fault.kills) {
      KillThere(fault);
    }
    return happened;
  }

  // Takes what a later kRestore may bring back.
  absl::Status Backup(int64_t now_ns) {
    GP_ASSIGN_OR_RETURN(const std::string told, federation_.Geopipectl({"backup", "-o", "json"}));
    const size_t begin = told.find('/');
    if (begin == std::string::npos) {
      return absl::InternalError(fmt::format("backup names no file: {}", told));
    }
    const fs::path path = told.substr(begin, told.find('"', begin) - begin);
    const fs::path kept = federation_.folder() / fmt::format("backup-{}", backups_.size());
    std::error_code error;
    if (!fs::copy_file(path, kept, error) || !fs::remove(path, error)) {  // the disk is small
      return absl::InternalError(fmt::format("{} cannot be moved: {}", path.string(), error.message()));
    }
    backups_.push_back({.path = kept, .at_ns = now_ns, .epoch = run_.detail.summary().epoch()});
    return absl::OkStatus();
  }

  // True while the job may have to wait for people, who choose as soon as it asks them.
  bool awaits_choice() const { return choice_.has_value(); }
  void Choose(const v1::JobSummary& summary) {
    if (choice_.has_value() && summary.state() == v1::JOB_STATE_PAUSED &&
        summary.cause().find(kOlder) != std::string::npos &&
        federation_.Geopipectl({"resume", job_, "--from", "newest"}).ok()) {
      run_.outcomes[*choice_].fault.duration_ns = Clock::Real().NowNs() - restored_at_ns_;
      choice_.reset();
    }
  }
  // The job has gone on by itself.
  void NothingToChoose() { choice_.reset(); }

 private:
  struct Kept {
    fs::path path;
    int64_t at_ns = 0;
    uint64_t epoch = 0;
  };

  absl::StatusOr<bool> Do(int64_t now_ns, const ChaosFault& fault) {
    switch (fault.kind) {
      case Kind::kKill:
      case Kind::kStop:
      case Kind::kKeeper:
        return Signal(now_ns, fault);
      case Kind::kCut:
        return Cut(now_ns, fault);
      case Kind::kFull:
        for (const fs::path& disk : federation_.DisksOf(SiteOf(fault))) {
          Fill(disk);
          agenda_.At(now_ns + fault.duration_ns, [disk] { unlink((disk / kFiller).c_str()); });
        }
        return true;
      case Kind::kDescriptors:
      case Kind::kFork:
      case Kind::kEio:
      case Kind::kEstale:
        return Spoil(now_ns, fault);
      case Kind::kRestore:
        return Restore(now_ns);
    }
    return false;
  }

  size_t SiteOf(const ChaosFault& fault) const {
    return IsOfCoordinator(fault) ? federation_.sites() : ChaosSite(fault, federation_.sites());
  }

  std::optional<ProcessInfo> Target(const ChaosFault& fault) const {
    const std::string name = ChaosTargetName(fault, federation_.site_names());
    if (name.starts_with("keeper")) {
      return federation_.KeeperOf(SiteOf(fault));
    }
    if (name.starts_with("worker")) {
      return federation_.WorkerOf(SiteOf(fault));
    }
    const int64_t pid = IsOfCoordinator(fault) ? federation_.coordinator_pid() : federation_.agent_pid(SiteOf(fault));
    for (ProcessInfo& process : Descendants(getpid())) {
      if (process.pid == pid) {
        return std::move(process);
      }
    }
    return std::nullopt;
  }

  void KillThere(const ChaosFault& fault) const {
    if (IsOfCoordinator(fault)) {
      federation_.Signal(federation_.coordinator_pid(), SIGKILL);
    } else if (const std::optional<ProcessInfo> worker = federation_.WorkerOf(SiteOf(fault)); worker.has_value()) {
      federation_.Signal(worker->pid, SIGKILL);
    }
  }

  bool Signal(int64_t now_ns, const ChaosFault& fault) {
    const std::optional<ProcessInfo> process = Target(fault);
    if (!process.has_value()) {
      return false;
    }
    federation_.Signal(process->pid, fault.kind == Kind::kKill ? SIGKILL : SIGSTOP);
    if (fault.kind != Kind::kKill) {
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
    const auto [a, b] = ChaosLinks(federation_.sites())[fault.target];
    for (const auto& [from, to] : {std::pair{a, b}, std::pair{b, a}}) {
      const absl::StatusOr<std::unique_ptr<LinkPacer>> pacer = LinkPacer::Open(federation_.PacerOf(from, to).string());
      if (!pacer.ok()) {
        return false;
      }
      (*pacer)->Occupy(now_ns, fault.duration_ns);
    }
    return true;
  }

  bool Spoil(int64_t now_ns, const ChaosFault& fault) {
    const size_t site = SiteOf(fault);
    const Lack lack = LackOf(fault.kind);
    BadEnvironment& environment = federation_.environment(site);
    const int64_t before = environment.failed(lack);
    environment.Begin(lack, now_ns + fault.duration_ns);
    agenda_.At(now_ns + fault.duration_ns, [this, &environment, lack, before, index = run_.outcomes.size() - 1] {
      environment.End();
      run_.outcomes[index].failed_calls = environment.failed(lack) - before;
    });
    return true;
  }

  absl::StatusOr<bool> Restore(int64_t now_ns) {
    GP_ASSIGN_OR_RETURN(const v1::JobSummary summary, federation_.Summary(job_));
    const absl::Status heard = federation_.control().WatchJob(job_, 0, [&](const v1::WatchJobResponse& event) {
      if (event.has_iteration()) {
        run_.early.push_back(event.iteration());
      }
      return !event.has_iteration() || event.iteration().iteration() + 1 < summary.iterations_done();
    });
    if (!absl::IsCancelled(heard)) {  // as it is when it has heard enough
      return absl::InternalError(fmt::format("the watch of job {} has ended: {}", job_, heard.ToString()));
    }
    // The latest that is not very young, and does not know the present epoch.
    const auto is_older = [&](const Kept& each) {
      return each.epoch < run_.detail.summary().epoch() && now_ns - each.at_ns >= kBackupAgeNs;
    };
    const auto found = std::ranges::find_if(backups_.rbegin(), backups_.rend(), is_older);
    const std::string backup = (found == backups_.rend() ? backups_.front() : *found).path.string();
    restored_at_ns_ = now_ns;
    choice_ = run_.outcomes.size() - 1;
    federation_.KillCoordinator();
    GP_RETURN_IF_ERROR(federation_.RestoreCoordinator(backup));
    GP_RETURN_IF_ERROR(federation_.StartCoordinator());
    return true;
  }

  ProcessFederation& federation_;
  const std::string job_;
  Agenda& agenda_;
  ChaosRun& run_;
  std::vector<Kept> backups_;
  std::optional<size_t> choice_;  // the outcome of the restore whose choice is waited for
  int64_t restored_at_ns_ = 0;
};

// Says what is missing for nothing to be disturbed; empty: nothing is.
std::string Disturbed(const absl::StatusOr<v1::JobDetail>& job, const absl::StatusOr<v1::ListSitesResponse>& sites,
                      size_t count) {
  if (!job.ok() || !sites.ok()) {
    return "the coordinator does not answer";
  }
  if (job->summary().state() != v1::JOB_STATE_RUNNING) {
    return fmt::format("the job is {}: {}; {}", JobStateName(job->summary().state()), job->summary().cause(),
                       job->summary().trouble());
  }
  if (job->recoveries_size() > 0 && job->recoveries().rbegin()->ended_unix_time_ns() == 0) {
    return "a recovery is not over";
  }
  std::ptrdiff_t connected = 0;
  for (const v1::SiteStatus& site : sites->sites()) {
    connected += std::ranges::count_if(site.nodes(), [](const auto& node) { return node.connected(); });
  }
  return std::cmp_equal(connected, count) ? "" : fmt::format("{} of {} agents are connected", connected, count);
}

std::string MissingProcess(const ProcessFederation& federation) {
  for (size_t site = 0; site < federation.sites(); ++site) {
    if (!federation.KeeperOf(site).has_value()) {
      return fmt::format("{} has no keeper", federation.site(site));
    }
    if (!federation.WorkerOf(site).has_value()) {
      return fmt::format("{} has no worker", federation.site(site));
    }
  }
  return "";
}

// Tells since when nothing has been disturbed.
class Settling {
 public:
  // `what`: Disturbed.
  void Look(int64_t now_ns, std::string what, int64_t iterations) {
    if (!what.empty()) {
      Reset(std::move(what));
      return;
    }
    if (!since_ns_.has_value()) {
      what_ = "the job makes no progress";
      since_ns_ = now_ns;
      iterations_ = iterations;
    }
    progress_ = iterations - iterations_;
  }
  void Reset(std::string what) {
    since_ns_.reset();
    what_ = std::move(what);
  }
  bool settled(int64_t now_ns) const {
    return since_ns_.has_value() && now_ns - *since_ns_ >= kSettleNs && progress_ >= kSettleIterations;
  }
  const std::string& what() const { return what_; }

 private:
  std::optional<int64_t> since_ns_;
  std::string what_;
  int64_t iterations_ = 0;
  int64_t progress_ = 0;
};

// A run from the first iteration to the job's end.
class Training {
 public:
  Training(ProcessFederation& federation, const std::string& job, const std::vector<ChaosFault>& faults, ChaosRun& run)
      : federation_(federation),
        job_(job),
        run_(run),
        quick_(federation.endpoint(), kAnswerNs),
        chaos_(federation, job, agenda_, run),
        next_(faults.begin()),
        end_(faults.end()),
        restore_(std::ranges::find(faults, Kind::kRestore, &ChaosFault::kind)) {
    run.begun_unix_ns = clock_.UnixNowNs();
  }

  // Returns when the job is over. Errors: it goes nowhere.
  absl::Status Watch(int64_t limit_ns) {
    int64_t sample_ns = 0;
    int64_t revive_ns = 0;
    while (true) {
      const int64_t now_ns = clock_.NowNs();
      agenda_.Do(now_ns);
      if (now_ns >= revive_ns) {
        federation_.Revive().IgnoreError();  // a coordinator whose disk is full does not start
        revive_ns = now_ns + kReviveNs;
      }
      if (now_ns >= sample_ns) {
        sample_ns = now_ns + kSampleNs;
        if (Look(now_ns)) {
          return absl::OkStatus();
        }
      }
      if (settling_.settled(now_ns)) {
        chaos_.NothingToChoose();
        GP_RETURN_IF_ERROR(BeginNext(now_ns));
      } else if (now_ns - over_ns_ > kSettleLimitNs || now_ns - begun_ns_ > limit_ns) {
        return absl::DeadlineExceededError(
            fmt::format("{} s after the last fault was over: {}", (now_ns - over_ns_) / kSecond, settling_.what()));
      }
      clock_.SleepUntilNs(now_ns + kTickNs);
    }
  }

  // Lets go on who is stopped, and empties the disks.
  void End() {
    run_.wall_ns = clock_.NowNs() - begun_ns_;
    while (!agenda_.empty()) {
      agenda_.Do(std::numeric_limits<int64_t>::max());
    }
  }

 private:
  // Takes a sample, and returns true when the job is over.
  bool Look(int64_t now_ns) {
    const absl::StatusOr<v1::JobDetail> detail = quick_.GetJob(job_);
    ChaosSample& sample = run_.samples.emplace_back(ChaosSample{.at_ns = now_ns - begun_ns_, .heard = detail.ok()});
    if (detail.ok()) {
      sample.state = detail->summary().state();
      sample.iterations = detail->summary().iterations_done();
      run_.detail = *detail;
      chaos_.Choose(detail->summary());
    }
    over_ns_ = chaos_.awaits_choice() ? std::max(over_ns_, now_ns) : over_ns_;
    if (now_ns < over_ns_) {
      settling_.Reset("the fault is not over");
    } else {
      settling_.Look(now_ns, Disturbed(detail, quick_.ListSites(), federation_.sites()), sample.iterations);
    }
    return IsFinal(sample.state);
  }

  // Lets the next fault happen when its time has come.
  absl::Status BeginNext(int64_t now_ns) {
    if (next_ == end_ || now_ns - begun_ns_ < next_->at_ns) {
      return absl::OkStatus();
    }
    if (std::string missing = MissingProcess(federation_); !missing.empty()) {
      settling_.Reset(std::move(missing));
      return absl::OkStatus();
    }
    if (restore_ != end_ && next_ <= restore_) {
      GP_RETURN_IF_ERROR(chaos_.Backup(now_ns));
    }
    settling_.Reset("the fault is not over");
    ChaosFault& fault = run_.outcomes.emplace_back(ChaosOutcome{.fault = *next_++}).fault;
    fault.at_ns = now_ns - begun_ns_;
    over_ns_ = now_ns + fault.duration_ns;
    GP_ASSIGN_OR_RETURN(const bool happened, chaos_.Happen(now_ns));
    if (!happened) {
      run_.outcomes.pop_back();
    }
    return absl::OkStatus();
  }

  Clock& clock_ = Clock::Real();
  const int64_t begun_ns_ = clock_.NowNs();
  ProcessFederation& federation_;
  const std::string job_;
  ChaosRun& run_;
  ControlClient quick_;
  Agenda agenda_;
  Chaos chaos_;
  Settling settling_;
  std::vector<ChaosFault>::const_iterator next_;
  const std::vector<ChaosFault>::const_iterator end_;
  const std::vector<ChaosFault>::const_iterator restore_;
  int64_t over_ns_ = begun_ns_;  // the last fault is over then
};

// Submits a job whose training data and checkpoints are on the disks of the sites.
absl::Status Submit(ProcessFederation& federation, const std::string& job, int64_t iterations) {
  const fs::path data = federation.disk() / "data.txt";  // geopipectl's, and each site's
  fs::copy_file(kSurvivalData, data);
  for (size_t site = 0; site < federation.sites(); ++site) {
    fs::copy_file(kSurvivalData, federation.DisksOf(site).back() / data.filename());
  }
  const std::string more = fmt::format("  checkpoint: {{path: {}, every: 20, keep: 3, replicate: 1}}\n",
                                       (federation.disk() / "checkpoints").string());
  GP_ASSIGN_OR_RETURN(std::vector<std::string> arguments,
                      PacedJob(federation.folder(), job, federation.site_names(), iterations, more, data));
  arguments.insert(arguments.begin(), "apply");
  return federation.Geopipectl(std::move(arguments)).status();
}

}  // namespace

absl::Status TrainInChaos(ProcessFederation& federation, const std::string& job, int64_t iterations,
                          const std::vector<ChaosFault>& faults, ChaosRun& run) {
  GP_RETURN_IF_ERROR(Submit(federation, job, iterations));
  GP_RETURN_IF_ERROR(federation.AwaitIteration(job, 1, kBeginLimitNs));
  GP_ASSIGN_OR_RETURN(run.detail, federation.control().GetJob(job));
  run.iteration_ns = run.detail.prediction().iteration_ns();
  Training training(federation, job, faults, run);
  absl::Status status = training.Watch(2 * iterations * run.iteration_ns + kLateNs);
  training.End();
  const v1::JobSummary& end = run.detail.summary();
  if (status.ok() && end.state() != v1::JOB_STATE_COMPLETED) {
    status = absl::InternalError(fmt::format("job {} {}: {}", job, JobStateName(end.state()), end.cause()));
  }
  if (status.ok()) {
    GP_ASSIGN_OR_RETURN(run.curve, federation.Curve(job));
  }
  CountChaosCosts(run);
  return status;
}

}  // namespace geopipe
