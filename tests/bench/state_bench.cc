// Measures what it costs one rank to keep its state in memory between two iterations (`recovery: memory`), and to write
// a checkpoint while it trains: within one run every other iteration, or every other block of iterations, begins with
// it, and each is compared with the ones beside it. All on one processor. Ends with 1 when a bar is missed.
//
//   state_bench --job deploy/examples/tiny.yaml --hidden 256 --iterations 60 --blocks 9
#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/schedule/lowering.h"
#include "optimizer/schedule/schedule.h"
#include "proto/wire/schedule_wire.h"
#include "runtime/base/clock.h"
#include "runtime/base/files.h"
#include "runtime/base/flags.h"
#include "runtime/base/log.h"
#include "runtime/manifest/job_manifest.h"
#include "runtime/rehearsal/worker/rehearsed_job.h"
#include "runtime/worker/checkpoint_writer.h"
#include "runtime/worker/rank_job.h"

namespace geopipe {
namespace {

constexpr double kBar = 0.03;
constexpr double kUnpacedBar = 0.05;
constexpr double kPacedBar = 0.01;
constexpr double kPace = 1.5;  // of a paced iteration to what it computes
constexpr int64_t kWarmUp = 4;

struct Flags {
  std::string job = "deploy/examples/tiny.yaml";
  int64_t hidden = 256;
  int64_t iterations = 60;
  int64_t every = 10;
  int64_t blocks = 9;
};

absl::StatusOr<JobSpec> JobOf(const Flags& flags) {
  GP_ASSIGN_OR_RETURN(JobSpec job, ReadJobFile(flags.job));
  job.model.hidden_size = flags.hidden;
  job.model.intermediate_size = flags.hidden * 11 / 4;
  job.training.iterations = kWarmUp + flags.iterations;
  job.recovery = Recovery::kMemory;
  return job;
}

// The whole model on this worker.
absl::StatusOr<RankPreparation> PreparationOf(const JobSpec& job) {
  Plan plan;
  plan.schedule = ScheduleKind::kOneFOneB;
  plan.micro_batch_size = job.search.micro_batch_size.front();
  plan.sequence_length = job.search.sequence_length.front();
  plan.micro_batches = job.training.tokens_per_iteration / (plan.micro_batch_size * plan.sequence_length);
  plan.Append({.site = "here", .capacity_bytes = int64_t{1} << 40},
              {.first = 0, .last = job.model.num_hidden_layers - 1, .has_embedding = true, .has_head = true});
  RankPreparation preparation;
  preparation.epoch = 1;
  preparation.run_incarnation = 1;
  preparation.job = job;
  preparation.costs.shape = plan.Shape();
  preparation.costs.forward_ns = {1000};
  preparation.costs.input_grad_ns = {2000};
  preparation.costs.weight_grad_ns = {0};
  GP_ASSIGN_OR_RETURN(const Schedule schedule, MakeSchedule(plan.schedule, plan.Shape(), {}));
  GP_ASSIGN_OR_RETURN(preparation.schedule, Lower(schedule));
  preparation.plan = std::move(plan);
  return preparation;
}

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values.empty() ? 0 : values[values.size() / 2];
}

// An action tried between two iterations of one run, at the beginning of every other block of iterations.
struct Trial {
  int64_t block = 1;   // iterations
  int64_t blocks = 0;  // after warm-up
  std::function<absl::Status(RankJob& rank, int64_t next_iteration)> act;
};

struct Cost {
  double plain_ns = 0;  // median of blocks without it
  double act_ns = 0;    // median of what training waits for
  double ratio = 0;     // median of blocks that begin with it, each to the mean of those beside it, less 1
  size_t compared = 0;  // blocks
};

absl::StatusOr<Cost> Try(RankJob& rank, const Trial& trial) {
  Clock& clock = Clock::Real();
  GP_RETURN_IF_ERROR(rank.Connect({{0, rank.address()}}, "secret"));
  std::vector<double> times_ns;  // of the blocks after warm-up, each with what is done before it
  std::vector<double> acts_ns;
  absl::Status failed;
  int64_t begun_ns = 0;
  const auto on_state = [&](int64_t next) {
    if (next < kWarmUp || (next - kWarmUp) % trial.block != 0) {
      return;
    }
    const int64_t block = (next - kWarmUp) / trial.block;
    const int64_t now_ns = clock.NowNs();
    if (block > 0) {
      times_ns.push_back(static_cast<double>(now_ns - begun_ns));
    }
    begun_ns = now_ns;
    if (block % 2 == 1 && block < trial.blocks) {
      failed.Update(trial.act(rank, next));
      acts_ns.push_back(static_cast<double>(clock.NowNs() - now_ns));
    }
  };
  GP_RETURN_IF_ERROR(rank.Train(0, kWarmUp + trial.block * trial.blocks, {.on_report = nullptr, .on_state = on_state}));
  GP_RETURN_IF_ERROR(failed);
  std::vector<double> plain_ns;
  std::vector<double> ratios;
  for (size_t i = 0; i < times_ns.size(); ++i) {
    if (i % 2 == 0) {
      plain_ns.push_back(times_ns[i]);
    } else if (i + 1 < times_ns.size()) {
      ratios.push_back(times_ns[i] / ((times_ns[i - 1] + times_ns[i + 1]) / 2) - 1);
    }
  }
  return Cost{
      .plain_ns = Median(plain_ns), .act_ns = Median(acts_ns), .ratio = Median(ratios), .compared = ratios.size()};
}

absl::StatusOr<std::unique_ptr<RankJob>> Prepared(RankPreparation preparation, KeptStates* kept) {
  return RankJob::Prepare(
      std::move(preparation), Clock::Real(),
      [](UcxTransportOptions options) { return UcxTransport::Create(std::move(options)); }, &RehearseJob, kept);
}

absl::Status KeepInMemory(const Flags& flags, bool* met) {
  GP_ASSIGN_OR_RETURN(const JobSpec job, JobOf(flags));
  GP_ASSIGN_OR_RETURN(RankPreparation preparation, PreparationOf(job));
  GP_ASSIGN_OR_RETURN(KeptStates kept, KeptStates::Open(UniqueFd(memfd_create("state-bench", MFD_CLOEXEC))));
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<RankJob> rank, Prepared(std::move(preparation), &kept));
  GP_ASSIGN_OR_RETURN(const Cost cost,
                      Try(*rank, {.block = 1, .blocks = flags.iterations, .act = [](RankJob& each, int64_t) {
                                    return each.KeepState();
                                  }}));
  const bool holds = cost.act_ns / cost.plain_ns <= kBar;
  *met = *met && holds;
  fmt::print("{} parameters, {} tokens an iteration, {} iterations, every other one keeps its state; one processor\n",
             rank->allocator().usage(MemoryCategory::kWeights).bytes / 4, job.training.tokens_per_iteration,
             flags.iterations);
  fmt::print("  iteration {:.1f} ms, copy {:.2f} ms: {:.2f} %  {} {:.0f} %\n", cost.plain_ns / 1e6, cost.act_ns / 1e6,
             100 * cost.act_ns / cost.plain_ns, holds ? "ok, at most" : "MISSED, at most", 100 * kBar);
  fmt::print("  an iteration that keeps its state, against those beside it: {:+.2f} % (median of {})\n",
             100 * cost.ratio, cost.compared);
  return absl::OkStatus();
}

// Every other block begins with a checkpoint, which is written meanwhile, on the same processor. `paced_ns`: what an
// iteration is drawn out to; 0: it is not.
absl::StatusOr<double> WriteCheckpoints(const Flags& flags, int64_t paced_ns, double bar, bool* met) {
  GP_ASSIGN_OR_RETURN(TempFolder folder, TempFolder::Create("state-bench-"));
  GP_ASSIGN_OR_RETURN(JobSpec job, JobOf(flags));
  job.recovery = Recovery::kCheckpoint;
  job.checkpoint = {.path = folder.path().string(), .every = flags.every, .keep = 1};
  job.training.iterations = kWarmUp + flags.every * flags.blocks;
  GP_ASSIGN_OR_RETURN(RankPreparation preparation, PreparationOf(job));
  if (paced_ns > 0) {
    const int64_t each_ns = paced_ns / preparation.plan.micro_batches;
    preparation.run.pace = true;
    preparation.costs.forward_ns = {each_ns / 3};
    preparation.costs.input_grad_ns = {each_ns - each_ns / 3};
  }
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<RankJob> rank, Prepared(std::move(preparation), nullptr));
  int64_t written = 0;
  double write_ns = 0;
  std::string error;
  CheckpointWriter writer(Clock::Real(), [&](const WorkerEvent& event) {
    const v1::CheckpointReport& report = std::get<CheckpointWritten>(event).report;
    ++written;
    write_ns += static_cast<double>(report.duration_ns());
    error = report.error().empty() ? error : report.error();
  });
  const auto save = [&](RankJob& each, int64_t next) {
    std::unique_ptr<RankSnapshot> snapshot = writer.Take();
    if (snapshot == nullptr) {
      return absl::UnavailableError("the checkpoint before is still being written");
    }
    snapshot->taken_ns = Clock::Real().NowNs();
    snapshot->iteration = next;
    absl::Status status = each.CopyState(*snapshot);
    writer.Write(std::move(snapshot));
    return status;
  };
  GP_ASSIGN_OR_RETURN(const Cost cost, Try(*rank, {.block = flags.every, .blocks = flags.blocks, .act = save}));
  if (!error.empty()) {
    return absl::InternalError(error);
  }
  const bool holds = cost.ratio <= bar;
  *met = *met && holds;
  fmt::print(
      "  {}: iteration {:.1f} ms; copy {:.2f} ms, written after {:.0f} ms; {} iterations with a checkpoint, against "
      "those "
      "without beside them: {:+.2f} % (median of {})  {} {:.0f} %\n",
      paced_ns > 0 ? "paced" : "unpaced", cost.plain_ns / static_cast<double>(flags.every) / 1e6, cost.act_ns / 1e6,
      write_ns / static_cast<double>(std::max<int64_t>(1, written)) / 1e6, flags.every, 100 * cost.ratio, cost.compared,
      holds ? "ok, at most" : "MISSED, at most", 100 * bar);
  return cost.plain_ns / static_cast<double>(flags.every);
}

absl::Status Measure(const Flags& flags, bool* met) {
  GP_RETURN_IF_ERROR(KeepInMemory(flags, met));
  fmt::print("a checkpoint every {} iterations, in every other block of so many\n", flags.every);
  std::fflush(stdout);
  GP_ASSIGN_OR_RETURN(const double iteration_ns, WriteCheckpoints(flags, 0, kUnpacedBar, met));
  std::fflush(stdout);
  return WriteCheckpoints(flags, static_cast<int64_t>(kPace * iteration_ns), kPacedBar, met).status();
}

int Main(int argc, char** argv) {
  Flags flags;
  FlagSet set("state_bench", "Measures what it costs to keep a rank's states.");
  set.Add("job", &flags.job, "FILE", "Job to take all but the width from.");
  set.Add("hidden", &flags.hidden, "N", "hidden_size.");
  set.Add("iterations", &flags.iterations, "N", "After warm-up, of which every other keeps its state.");
  set.Add("every", &flags.every, "N", "Iterations between checkpoints.");
  set.Add("blocks", &flags.blocks, "N", "Of so many, of which every other begins with a checkpoint.");
  if (const absl::Status status = set.Parse(argc - 1, argv + 1); !status.ok()) {
    fmt::print(stderr, "state_bench: {}\n", std::string(status.message()));
    return 2;
  }
  if (set.help_requested()) {
    fmt::print("{}", set.Help());
    return 0;
  }
  InitLogging({.program = "state_bench", .level = LogLevel::kWarning});
  setenv("UCX_TLS", "tcp", 1);
  setenv("UCX_NET_DEVICES", "lo", 1);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  sched_setaffinity(0, sizeof(one), &one);
  bool met = true;
  if (const absl::Status status = Measure(flags, &met); !status.ok()) {
    fmt::print(stderr, "state_bench: {}\n", std::string(status.message()));
    return 1;
  }
  return met ? 0 : 1;
}

}  // namespace
}  // namespace geopipe

int main(int argc, char** argv) { return geopipe::Main(argc, argv); }
