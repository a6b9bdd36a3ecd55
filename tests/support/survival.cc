#include "tests/support/survival.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>
#include <optional>

#include "optimizer/base/quantities.h"
#include "optimizer/base/splitmix64.h"
#include "optimizer/base/status_macros.h"
#include "proto/wire/control_wire.h"
#include "runtime/base/clock.h"
#include "tests/support/durations.h"
#include "tests/support/relay_federation.h"

namespace geopipe {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMicroBatchSize = 2;
constexpr int64_t kSequenceLength = 32;

// Work of an iteration on each device.
struct PacedWork {
  int64_t micro_batches = 8;
  double forward_s = 0.015;
  double backward_s = 0.03;
  double latency_s = 0.02;  // of each link
};
constexpr int64_t kJobLimitNs = 90 * kSecond;
constexpr int64_t kAdoptLimitNs = 60 * kSecond;
constexpr int64_t kNoticeLimitNs = 30 * kSecond;

std::string JobText(const std::string& name, const std::vector<std::string>& sites, const PacedWork& work,
                    const std::string& more = "", const fs::path& data = kSurvivalData) {
  return fmt::format(
      "apiVersion: geopipe/v1\n"
      "kind: TrainingJob\n"
      "metadata: {{name: {}}}\n"
      "spec:\n"
      "  model: {{hidden_size: 32, intermediate_size: 64, num_hidden_layers: 6, num_attention_heads: 4,\n"
      "    num_key_value_heads: 2, vocab_size: 258, max_position_embeddings: 32}}\n"
      "  data: {{format: text, path: [{}], tokenizer: byte}}\n"
      "  training: {{iterations: {}, tokens_per_iteration: {}, learning_rate: 5.0e-3, warmup_iterations: 4,\n"
      "    grad_clip: 1.0}}\n"
      "  precision: fp32\n"
      "  search: {{micro_batch_size: [{}], sequence_length: [{}], schedule: geopipe}}\n"
      "  placement: {{sites: [{}]}}\n"
      "  recovery: memory\n{}",
      name, data.string(), kPlannedIterations, work.micro_batches * kMicroBatchSize * kSequenceLength, kMicroBatchSize,
      kSequenceLength, fmt::join(sites, ", "), more);
}

std::string CostsText(const std::vector<std::string>& sites, const PacedWork& work) {
  std::string text =
      fmt::format("devices: {}\nmicro_batches: {}\nforward_s: {}\nbackward_s: {}\nmessage_bytes: 8192\nlinks:\n",
                  sites.size(), work.micro_batches, work.forward_s, work.backward_s);
  for (size_t site = 0; site + 1 < sites.size(); ++site) {
    text += fmt::format("- {{from_chunk: {}, latency_s: {}, bandwidth_Bps: 1.25e8, link: {}-{}}}\n", site,
                        work.latency_s, sites[site], sites[site + 1]);
  }
  return text;
}

std::string Line(int64_t iteration, double loss, double grad_norm) {
  return fmt::format("{} {:a} {:a}\n", iteration, loss, grad_norm);
}

// Arguments of `geopipectl apply`.
absl::StatusOr<std::vector<std::string>> WriteJob(const fs::path& folder, const std::string& job,
                                                  const std::vector<std::string>& sites, const PacedWork& work,
                                                  int64_t iterations, const std::string& more = "",
                                                  const fs::path& data = kSurvivalData) {
  const fs::path path = folder / (job + ".job.yaml");
  const fs::path costs = folder / (job + ".costs.yaml");
  GP_RETURN_IF_ERROR(WriteFileAtomically(path, JobText(job, sites, work, more, data)));
  GP_RETURN_IF_ERROR(WriteFileAtomically(costs, CostsText(sites, work)));
  return std::vector<std::string>{"-f",           path.string(),  "--case",
                                  costs.string(), "--iterations", fmt::format("{}", iterations)};
}

// A line after `from` that holds `begin` and, behind it, `end`.
bool HasLine(const std::string& log, size_t from, const std::string& begin, const std::string& end) {
  for (size_t at = log.find(begin, from); at != std::string::npos; at = log.find(begin, at + 1)) {
    if (log.substr(at, log.find('\n', at) - at).find(end) != std::string::npos) {
      return true;
    }
  }
  return false;
}

// Returns when what was killed is back.
absl::StatusOr<int64_t> KillAndStart(ProcessFederation& federation, const Victims& victims) {
  std::vector<int64_t> pids;
  if (victims.coordinator) {
    pids.push_back(federation.coordinator_pid());
  }
  for (const size_t site : victims.agents) {
    pids.push_back(federation.agent_pid(site));
  }
  for (const size_t site : victims.keepers) {
    const std::optional<ProcessInfo> keeper = federation.KeeperOf(site);
    if (!keeper.has_value()) {
      return absl::NotFoundError(fmt::format("site {} has no keeper", federation.site(site)));
    }
    pids.push_back(keeper->pid);
  }
  for (const int64_t pid : pids) {
    federation.Signal(pid, SIGKILL);
  }
  if (victims.coordinator) {
    federation.KillCoordinator();  // reaps it
  }
  for (const size_t site : victims.agents) {
    federation.KillAgent(site);
  }
  // Agents first: they dial until the coordinator is there.
  int64_t back_ns = Clock::Real().NowNs();
  for (const size_t site : victims.agents) {
    GP_RETURN_IF_ERROR(federation.LaunchAgent(site));
  }
  if (victims.coordinator) {
    GP_RETURN_IF_ERROR(federation.StartCoordinator());
    back_ns = Clock::Real().NowNs();
  }
  for (const size_t site : victims.agents) {
    GP_RETURN_IF_ERROR(federation.AwaitAgent(site));
  }
  return back_ns;
}

// Waits until the coordinator has heard of an iteration from all ranks that it had not heard of before.
absl::StatusOr<int64_t> AwaitAdoption(const ProcessFederation& federation, const std::string& job) {
  std::optional<int64_t> before;
  return AwaitNs(fmt::format("the adoption of job {}", job), kAdoptLimitNs, [&]() -> absl::StatusOr<bool> {
    GP_ASSIGN_OR_RETURN(const v1::JobSummary summary, federation.Summary(job));
    if (IsFinal(summary.state())) {
      return true;
    }
    before = before.value_or(summary.iterations_done());
    GP_ASSIGN_OR_RETURN(const bool connected, federation.AllConnected());
    return connected && summary.state() == v1::JOB_STATE_RUNNING && summary.iterations_done() > *before;
  });
}

}  // namespace

absl::StatusOr<std::vector<std::string>> PacedJob(const fs::path& folder, const std::string& job,
                                                  const std::vector<std::string>& sites, int64_t iterations,
                                                  const std::string& more, const fs::path& data) {
  GP_ASSIGN_OR_RETURN(std::vector<std::string> arguments,
                      WriteJob(folder, job, sites, PacedWork(), iterations, more, data));
  arguments.emplace_back("--pace");
  return arguments;
}

absl::Status SubmitPaced(ProcessFederation& federation, const std::string& job, int64_t iterations) {
  GP_ASSIGN_OR_RETURN(std::vector<std::string> arguments,
                      PacedJob(federation.folder(), job, federation.site_names(), iterations));
  arguments.insert(arguments.begin(), "apply");
  return federation.Geopipectl(std::move(arguments)).status();
}

absl::Status SubmitLong(ProcessFederation& federation, const std::string& job, int64_t iterations) {
  const PacedWork work{.micro_batches = 20'000, .forward_s = 1e-5, .backward_s = 2e-5, .latency_s = 1e-4};
  GP_ASSIGN_OR_RETURN(std::vector<std::string> arguments,
                      WriteJob(federation.folder(), job, federation.site_names(), work, iterations));
  arguments.insert(arguments.begin(), "apply");
  arguments.insert(arguments.end(), {"--backend", "modelled"});
  return federation.Geopipectl(std::move(arguments)).status();
}

absl::Status SubmitSlow(ProcessFederation& federation, const std::string& job, int64_t iterations) {
  const PacedWork work{.forward_s = 0.25, .backward_s = 0.5};
  GP_ASSIGN_OR_RETURN(std::vector<std::string> arguments,
                      WriteJob(federation.folder(), job, federation.site_names(), work, iterations));
  arguments.insert(arguments.begin(), "apply");
  arguments.emplace_back("--pace");
  return federation.Geopipectl(std::move(arguments)).status();
}

std::string NumbersOf(const std::vector<v1::IterationSummary>& curve) {
  std::string text;
  for (const v1::IterationSummary& iteration : curve) {
    text += Line(iteration.iteration(), iteration.loss(), iteration.grad_norm());
  }
  return text;
}

absl::StatusOr<std::string> NumbersAlone(ProcessFederation& federation, int64_t iterations) {
  const fs::path path = federation.folder() / "alone.yaml";
  GP_RETURN_IF_ERROR(WriteFileAtomically(path, JobText("alone", {"alone"}, PacedWork())));
  GP_ASSIGN_OR_RETURN(const std::string output,
                      federation.RunGeopipectl({"playground", "--job", path.string(), "--sites", "1", "--iterations",
                                                fmt::format("{}", iterations), "--output", federation.folder().string(),
                                                "-o", "json"}));
  const nlohmann::json summary = nlohmann::json::parse(output, nullptr, false);
  if (!summary.is_object() || !summary.contains("iterations")) {
    return absl::InternalError(fmt::format("the playground printed something else than a summary: {}", output));
  }
  std::string text;
  for (const nlohmann::json& iteration : summary["iterations"]) {
    text += Line(iteration.value("iteration", int64_t{-1}), iteration.value("loss", 0.0),
                 iteration.value("grad_norm", 0.0));
  }
  return text;
}

absl::StatusOr<int64_t> BegunUnixNs(const ProcessFederation& federation, const std::string& job) {
  GP_ASSIGN_OR_RETURN(const v1::JobDetail detail, federation.control().GetJob(job));
  for (const v1::JobTransition& transition : detail.transitions()) {
    if (transition.state() == v1::JOB_STATE_PROFILING) {
      return transition.unix_time_ns();
    }
  }
  return absl::NotFoundError(fmt::format("the workers of job {} were never started", job));
}

absl::Status CheckWhole(const std::vector<v1::IterationSummary>& curve, int64_t iterations) {
  for (int64_t i = 0; i < std::ssize(curve); ++i) {
    if (curve[i].iteration() != i || curve[i].incomplete() || !curve[i].has_loss()) {
      return absl::DataLossError(fmt::format("line {} of the curve tells iteration {}{}", i, curve[i].iteration(),
                                             curve[i].incomplete() ? ", incomplete" : ""));
    }
  }
  return std::ssize(curve) == iterations
             ? absl::OkStatus()
             : absl::DataLossError(fmt::format("the curve has {} of {} iterations", curve.size(), iterations));
}

absl::StatusOr<KilledRun> TrainUnderKills(ProcessFederation& federation, const std::string& job, int64_t iterations,
                                          const std::vector<Victims>& kills, uint64_t seed) {
  SplitMix64 random(seed);
  KilledRun run;
  GP_RETURN_IF_ERROR(SubmitPaced(federation, job, iterations));
  GP_RETURN_IF_ERROR(federation.AwaitIteration(job, 2, kJobLimitNs));
  GP_ASSIGN_OR_RETURN(const v1::JobDetail detail, federation.control().GetJob(job));
  const int64_t begin_ns = Clock::Real().NowNs();
  const int64_t span_ns = (iterations - 4) * detail.prediction().iteration_ns();
  const auto slot_ns = static_cast<double>(span_ns) / static_cast<double>(std::max<size_t>(1, kills.size()));
  for (size_t kill = 0; kill < kills.size(); ++kill) {
    // A random instant of its share of the run; where the last adoption took longer than that, of the next tenth of
    // one.
    const auto due_ns = begin_ns + static_cast<int64_t>(slot_ns * (static_cast<double>(kill) + random.Uniform()));
    const auto soon_ns = Clock::Real().NowNs() + static_cast<int64_t>(0.1 * slot_ns * random.Uniform());
    Clock::Real().SleepUntilNs(std::max(due_ns, soon_ns));
    GP_ASSIGN_OR_RETURN(const v1::JobSummary summary, federation.Summary(job));
    if (IsFinal(summary.state())) {
      return absl::FailedPreconditionError(fmt::format("job {} is {} after {} of {} kills: {}", job,
                                                       JobStateName(summary.state()), kill, kills.size(),
                                                       summary.cause()));
    }
    GP_ASSIGN_OR_RETURN(const int64_t back_ns, KillAndStart(federation, kills[kill]));
    GP_ASSIGN_OR_RETURN(const int64_t adopted_ns, AwaitAdoption(federation, job));
    run.adopted_ns.push_back(adopted_ns - back_ns);
  }
  GP_RETURN_IF_ERROR(federation.AwaitState(job, v1::JOB_STATE_COMPLETED, span_ns + kJobLimitNs));
  GP_ASSIGN_OR_RETURN(run.curve, federation.Curve(job));
  return run;
}

absl::StatusOr<LongAbsences> TrainUnderLongAbsences(ProcessFederation& federation, const std::string& job,
                                                    int64_t iterations, int64_t away_ns) {
  GP_RETURN_IF_ERROR(SubmitSlow(federation, job, iterations));
  GP_RETURN_IF_ERROR(federation.AwaitIteration(job, 1, kJobLimitNs));
  federation.KillAgent(1);
  Clock::Real().SleepUntilNs(Clock::Real().NowNs() + away_ns);
  GP_RETURN_IF_ERROR(federation.StartAgent(1));
  GP_RETURN_IF_ERROR(federation.AwaitIteration(job, 2, kJobLimitNs));
  GP_RETURN_IF_ERROR(federation.Geopipectl({"pause", job}).status());
  GP_RETURN_IF_ERROR(federation.AwaitState(job, v1::JOB_STATE_PAUSED, kJobLimitNs));
  federation.KillAgent(1);
  Clock::Real().SleepUntilNs(Clock::Real().NowNs() + away_ns);
  LongAbsences absences;
  GP_ASSIGN_OR_RETURN(absences.resumed, federation.Geopipectl({"resume", job}));
  GP_RETURN_IF_ERROR(federation.StartAgent(1));
  GP_RETURN_IF_ERROR(federation.AwaitState(job, v1::JOB_STATE_COMPLETED, kJobLimitNs));
  GP_ASSIGN_OR_RETURN(absences.curve, federation.Curve(job));
  return absences;
}

absl::StatusOr<HalfOpenNoticed> SwallowStreams(ProcessFederation& federation, const std::vector<size_t>& sites) {
  struct Notice {
    std::string log;
    std::string begin;  // of the line that says so
    std::string end;
    int64_t* longest_ns;
    size_t from;  // byte of the log
    bool seen = false;
  };
  HalfOpenNoticed noticed;
  std::vector<Notice> notices;
  const size_t told = federation.Log("coordinator").size();
  for (const size_t site : sites) {
    const std::string& name = federation.site(site);
    notices.push_back({name, "lost the coordinator: nothing was heard from it", "", &noticed.by_agent_ns,
                       federation.Log(name).size()});
    notices.push_back({"coordinator", fmt::format("agent {}/0 has not been heard from", name), ": failed",
                       &noticed.by_coordinator_ns, told});
  }
  const int64_t begin_ns = Clock::Real().NowNs();
  for (const size_t site : sites) {
    federation.proxy(site).Swallow();
  }
  const auto look = [&]() -> absl::StatusOr<bool> {
    for (Notice& notice : notices) {
      if (!notice.seen && HasLine(federation.Log(notice.log), notice.from, notice.begin, notice.end)) {
        notice.seen = true;
        *notice.longest_ns = std::max(*notice.longest_ns, Clock::Real().NowNs() - begin_ns);
      }
    }
    return std::ranges::all_of(notices, &Notice::seen);
  };
  GP_RETURN_IF_ERROR(AwaitNs("that both ends of half-open streams notice", kNoticeLimitNs, look).status());
  return noticed;
}

absl::StatusOr<OrphanEnd> CutWorkerOff(int64_t orphan_grace_ns) {
  const std::string job = "orphan";
  RelayFederationOptions options;
  options.link = {.latency_ns = 20 * kMs, .bandwidth_bytes_per_s = 1.25e8};
  options.orphan_grace_ns = orphan_grace_ns;
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<RelayFederation> federation, RelayFederation::Start(options));
  GP_ASSIGN_OR_RETURN(const TempFolder folder, TempFolder::Create("geopipe-orphan-"));
  GP_ASSIGN_OR_RETURN(std::vector<std::string> arguments,
                      PacedJob(folder.path(), job, {options.sites.begin(), options.sites.end()}, kPlannedIterations));
  arguments.insert(arguments.begin(), "apply");
  arguments.insert(arguments.end(), {"--server", federation->endpoint()});
  GP_RETURN_IF_ERROR(federation->Geopipectl(arguments, kJobLimitNs).status());
  ControlClient control(federation->endpoint(), kNoticeLimitNs);
  v1::JobDetail lost;
  const auto await = [&](const std::string& what, const auto& done) {
    return AwaitNs(what, kJobLimitNs, [&]() -> absl::StatusOr<bool> {
      GP_ASSIGN_OR_RETURN(lost, control.GetJob(job));
      return done();
    });
  };
  GP_RETURN_IF_ERROR(await("iteration 2", [&] { return lost.summary().iterations_done() >= 2; }).status());
  std::vector<ProcessInfo> workers;
  for (const std::string& site : options.sites) {
    for (const ProcessInfo& process : Descendants(getpid())) {
      const auto flag = std::ranges::find(process.arguments, "--site");
      if (process.Runs("geopipe-worker") && flag + 1 < process.arguments.end() && *(flag + 1) == site) {
        workers.push_back(process);
      }
    }
  }
  if (workers.size() != 2) {
    return absl::InternalError(fmt::format("there are {} workers instead of 2", workers.size()));
  }

  const int64_t begin_ns = Clock::Real().NowNs();
  federation->relay().Cut(10 * kJobLimitNs);
  federation->agent(0).Signal(SIGSTOP);
  GP_ASSIGN_OR_RETURN(const int64_t end_ns, AwaitNs("the end of a worker that is cut off", kJobLimitNs,
                                                    [&] { return absl::StatusOr<bool>(!Exists(workers[0])); }));
  OrphanEnd end;
  end.lived_ns = end_ns - begin_ns;
  end.peer_lived = Exists(workers[1]);
  GP_ASSIGN_OR_RETURN(const v1::JobDetail detail, control.GetJob(job));
  end.state_at_end = detail.summary().state();
  federation->agent(0).Signal(SIGCONT);
  GP_RETURN_IF_ERROR(await("the loss", [&] { return lost.recoveries_size() > 0; }).status());
  end.cause = lost.recoveries(0).cause();
  return end;
}

void StopFor(int64_t pid, int64_t duration_ns) {
  kill(static_cast<pid_t>(pid), SIGSTOP);
  Clock::Real().SleepUntilNs(Clock::Real().NowNs() + duration_ns);
  kill(static_cast<pid_t>(pid), SIGCONT);
}

absl::StatusOr<LossyRun> TrainUnderLosses(ProcessFederation& federation, const std::string& job, int64_t iterations,
                                          const std::vector<Loss>& losses) {
  GP_RETURN_IF_ERROR(SubmitPaced(federation, job, iterations));
  LossyRun run;
  for (const Loss& loss : losses) {
    GP_ASSIGN_OR_RETURN(const v1::JobSummary before, federation.Summary(job));
    GP_RETURN_IF_ERROR(federation.AwaitIteration(job, before.iterations_done() + 2, kJobLimitNs));
    const std::optional<ProcessInfo> worker = federation.WorkerOf(loss.site);
    if (!worker.has_value()) {
      return absl::NotFoundError(fmt::format("site {} has no worker", federation.site(loss.site)));
    }
    LossOutcome& outcome = run.outcomes.emplace_back();
    const int64_t begin_ns = Clock::Real().NowNs();
    federation.Signal(worker->pid, loss.signal);
    v1::JobDetail detail;
    const auto await = [&](const std::string& what, const auto& done) {
      return AwaitNs(fmt::format("{} after signal {} of {}", what, loss.signal, federation.site(loss.site)),
                     kJobLimitNs, [&]() -> absl::StatusOr<bool> {
                       GP_ASSIGN_OR_RETURN(detail, federation.control().GetJob(job));
                       if (IsFinal(detail.summary().state())) {
                         return absl::InternalError(fmt::format(
                             "the job is {}: {}", JobStateName(detail.summary().state()), detail.summary().cause()));
                       }
                       return done();
                     });
    };
    const auto lost = [&] { return detail.recoveries_size() == std::ssize(run.outcomes); };
    const auto runs = [&] { return lost() && detail.recoveries().rbegin()->ended_unix_time_ns() > 0; };
    GP_ASSIGN_OR_RETURN(const int64_t noticed_ns, await("a loss", lost));
    GP_ASSIGN_OR_RETURN(const int64_t running_ns, await("RUNNING", runs));
    const int64_t done = detail.summary().iterations_done();
    GP_ASSIGN_OR_RETURN(const int64_t trained_ns,
                        await("an iteration", [&] { return detail.summary().iterations_done() > done; }));
    outcome.noticed_ns = noticed_ns - begin_ns;
    outcome.running_ns = running_ns - begin_ns;
    outcome.trained_ns = trained_ns - begin_ns;
    outcome.recovery = *detail.recoveries().rbegin();
  }
  GP_RETURN_IF_ERROR(federation.AwaitState(job, v1::JOB_STATE_COMPLETED, kJobLimitNs));
  GP_ASSIGN_OR_RETURN(run.curve, federation.Curve(job));
  return run;
}

absl::Status SubmitMoving(ProcessFederation& federation, const std::string& job, int64_t iterations, int64_t every,
                          int32_t replicate, int64_t grace_ns) {
  const fs::path path = federation.folder() / (job + ".job.yaml");
  const std::string more =
      fmt::format("  checkpoint: {{path: {}, every: {}, keep: 3, replicate: {}}}\n  grace: {}\n",
                  (federation.disk() / "checkpoints").string(), every, replicate, FormatDuration(grace_ns));
  GP_RETURN_IF_ERROR(WriteFileAtomically(path, JobText(job, federation.site_names(), PacedWork(), more)));
  return federation.Geopipectl({"apply", "-f", path.string(), "--iterations", fmt::format("{}", iterations)}).status();
}

absl::StatusOr<SiteLossRun> TrainUnderSiteLoss(ProcessFederation& federation, const std::string& job,
                                               int64_t iterations, const SiteLoss& loss) {
  GP_RETURN_IF_ERROR(SubmitMoving(federation, job, iterations, loss.every, 1, loss.grace_ns));
  SiteLossRun run;
  v1::JobDetail& detail = run.detail;
  const auto await = [&](const std::string& what, auto is_there) {
    return AwaitNs(fmt::format("{} of job {}", what, job), kJobLimitNs, [&]() -> absl::StatusOr<bool> {
      GP_ASSIGN_OR_RETURN(detail, federation.control().GetJob(job));
      if (detail.summary().state() == v1::JOB_STATE_FAILED) {
        return absl::InternalError(fmt::format("job {} FAILED: {}", job, detail.summary().cause()));
      }
      return is_there();
    });
  };
  const auto runs_at = [&](size_t sites) {
    return detail.summary().state() == v1::JOB_STATE_RUNNING &&
           std::cmp_equal(detail.epochs().rbegin()->sites_size(), sites);
  };
  GP_RETURN_IF_ERROR(await("a copied checkpoint", [&] {
                       for (const v1::CheckpointSummary& checkpoint : detail.checkpoints()) {
                         run.copied =
                             checkpoint.replicated_unix_time_ns() > 0 ? checkpoint.identity().iteration() : run.copied;
                       }
                       return run.copied > 0 && detail.summary().iterations_done() > run.copied + 1;
                     }).status());
  const int64_t lost_ns = Clock::Real().NowNs();
  GP_RETURN_IF_ERROR(federation.LoseSite(loss.site));
  GP_ASSIGN_OR_RETURN(const int64_t running_ns,
                      await("RUNNING at the other sites", [&] { return runs_at(federation.sites() - 1); }));
  const int64_t done = detail.summary().iterations_done();
  GP_ASSIGN_OR_RETURN(const int64_t trained_ns, await("an iteration at the other sites",
                                                      [&] { return detail.summary().iterations_done() > done; }));
  run.running_ns = running_ns - lost_ns;
  run.trained_ns = trained_ns - lost_ns;
  if (loss.returns) {
    const int64_t returns_ns = Clock::Real().NowNs();
    GP_RETURN_IF_ERROR(federation.StartAgent(loss.site));
    GP_ASSIGN_OR_RETURN(const int64_t back_ns,
                        await("RUNNING at all sites", [&] { return runs_at(federation.sites()); }));
    run.back_ns = back_ns - returns_ns;
  }
  GP_RETURN_IF_ERROR(federation.AwaitState(job, v1::JOB_STATE_COMPLETED, kJobLimitNs));
  GP_ASSIGN_OR_RETURN(detail, federation.control().GetJob(job));
  GP_ASSIGN_OR_RETURN(run.curve, federation.Curve(job));
  return run;
}

absl::StatusOr<std::string> LoseWorkerAgainAndAgain(ProcessFederation& federation, const std::string& job,
                                                    size_t site) {
  GP_RETURN_IF_ERROR(SubmitPaced(federation, job, kPlannedIterations));
  GP_RETURN_IF_ERROR(federation.AwaitIteration(job, 1, kJobLimitNs));
  int64_t killed = 0;
  v1::JobSummary summary;
  GP_RETURN_IF_ERROR(
      AwaitNs("the end of a job that loses a worker again and again", 2 * kJobLimitNs, [&]() -> absl::StatusOr<bool> {
        GP_ASSIGN_OR_RETURN(summary, federation.Summary(job));
        const std::optional<ProcessInfo> worker = federation.WorkerOf(site);
        // One that ends before it has said hello could not be started, which is no loss.
        if (summary.state() == v1::JOB_STATE_RUNNING && worker.has_value() && worker->pid != killed) {
          killed = worker->pid;
          federation.Signal(killed, SIGKILL);
        }
        return IsFinal(summary.state());
      }).status());
  return fmt::format("{}: {}", JobStateName(summary.state()), summary.cause());
}

}  // namespace geopipe
