// What it costs one rank to keep its state in memory between two iterations (`recovery: memory`): every other iteration
// of one run begins with it, and each is compared with the ones beside it. Ends with 1 when the bar is missed.
//
//   state_bench --job deploy/examples/tiny.yaml --hidden 256 --iterations 60
#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/schedule/lowering.h"
#include "optimizer/schedule/schedule.h"
#include "proto/manifest/job_manifest.h"
#include "proto/wire/schedule_wire.h"
#include "runtime/base/clock.h"
#include "runtime/base/flags.h"
#include "runtime/base/log.h"
#include "runtime/worker/rank_job.h"

namespace geopipe {
namespace {

constexpr double kBar = 0.03;
constexpr int64_t kWarmUp = 4;

struct Flags {
  std::string job = "deploy/examples/tiny.yaml";
  int64_t hidden = 256;
  int64_t iterations = 60;
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

absl::Status Measure(const Flags& flags, bool* met) {
  GP_ASSIGN_OR_RETURN(const JobSpec job, JobOf(flags));
  GP_ASSIGN_OR_RETURN(RankPreparation preparation, PreparationOf(job));
  Clock& clock = Clock::Real();
  GP_ASSIGN_OR_RETURN(KeptStates kept, KeptStates::Open(UniqueFd(memfd_create("state-bench", MFD_CLOEXEC))));
  GP_ASSIGN_OR_RETURN(
      const std::unique_ptr<RankJob> rank,
      RankJob::Prepare(
          std::move(preparation), clock,
          [](UcxTransportOptions options) { return UcxTransport::Create(std::move(options)); }, nullptr, &kept));
  GP_RETURN_IF_ERROR(rank->Connect({{0, rank->address()}}, "secret"));
  std::vector<double> times_ns;   // of the iterations after warm-up, each with what is done before it
  std::vector<double> copies_ns;  // before every other
  absl::Status failed;
  int64_t begun_ns = 0;
  GP_RETURN_IF_ERROR(rank->Train(
      0, job.training.iterations, [](const IterationStats&) {},
      [&](int64_t next) {
        const int64_t now_ns = clock.NowNs();
        if (next > kWarmUp) {
          times_ns.push_back(static_cast<double>(now_ns - begun_ns));
        }
        begun_ns = now_ns;
        if (next % 2 == 1) {
          failed.Update(rank->KeepState());
          copies_ns.push_back(static_cast<double>(clock.NowNs() - now_ns));
        }
      }));
  GP_RETURN_IF_ERROR(failed);

  std::vector<double> plain_ns;
  std::vector<double> ratios;  // of each that keeps its state to the mean of those beside it
  for (size_t i = 0; i < times_ns.size(); ++i) {
    if (i % 2 == 0) {
      plain_ns.push_back(times_ns[i]);
    } else if (i + 1 < times_ns.size()) {
      ratios.push_back(times_ns[i] / ((times_ns[i - 1] + times_ns[i + 1]) / 2) - 1);
    }
  }
  const double copied = Median(copies_ns) / Median(plain_ns);
  *met = copied <= kBar;
  fmt::print("{} parameters, {} tokens an iteration, {} iterations, every other one keeps its state; one processor\n",
             rank->allocator().usage(MemoryCategory::kWeights).bytes / 4, job.training.tokens_per_iteration,
             flags.iterations);
  fmt::print("  iteration {:.1f} ms, copy {:.2f} ms: {:.2f} %  {} {:.0f} %\n", Median(plain_ns) / 1e6,
             Median(copies_ns) / 1e6, 100 * copied, *met ? "ok, at most" : "MISSED, at most", 100 * kBar);
  fmt::print("  an iteration that keeps its state, against those beside it: {:+.2f} % (median of {})\n",
             100 * Median(ratios), ratios.size());
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Flags flags;
  FlagSet set("state_bench", "Measures what it costs to keep a rank's states.");
  set.Add("job", &flags.job, "FILE", "Job to take all but the width from.");
  set.Add("hidden", &flags.hidden, "N", "hidden_size.");
  set.Add("iterations", &flags.iterations, "N", "After warm-up.");
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
