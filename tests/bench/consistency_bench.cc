// Checks that plans agree with each other.
//
// `consistency_bench pairs [pairs] [seed] [first]`: small open jobs on random clusters of up to 64 devices, each
// planned again on a cluster that is better in one thing; prints every pair whose plan is slower there by more than
// 0.3 %, and a summary.
// `consistency_bench pins [jobs] [seed] [first]`: open jobs planned again with each of their plan's choices pinned, and
// with each other value of a choice pinned; prints where the former changes the plan, and where the latter is faster.
// `consistency_bench pins JOB.yaml TOPOLOGY.yaml`: the same of one job.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/spec/topology_file.h"
#include "optimizer/model/plan/plan_costs.h"
#include "optimizer/plan/planner.h"
#include "optimizer/search/prng.h"
#include "runtime/base/thread_pool.h"
#include "runtime/manifest/job_manifest.h"
#include "tests/optimizer/plan/consistency.h"
#include "tests/optimizer/plan/random_jobs.h"

namespace geopipe {
namespace {

constexpr int64_t kTolerancePpm = 3'000;

std::string Text(const PlanResult& result) {
  const Plan& plan = result.plan;
  std::vector<int64_t> layers;
  for (const StagePlan& stage : plan.stages) {
    layers.push_back(stage.layers.count());
  }
  std::vector<std::string> sites;
  for (const PipelineRankPlan& rank : plan.pipeline_ranks) {
    sites.push_back(rank.site);
  }
  return fmt::format("{:.6f} ms: {}, tensor {}, data {}, {}, b {}, s {}, m {}, recompute {}, ZeRO {}, layers {}, dn {}",
                     1e-6 * static_cast<double>(result.prediction.iteration_ns), fmt::join(sites, " "),
                     plan.grid.tensor, plan.grid.data, ScheduleKindName(plan.schedule), plan.micro_batch_size,
                     plan.sequence_length, plan.micro_batches, RecomputeText(plan), plan.zero_stage, layers,
                     plan.delta_n);
}

struct Totals {
  int64_t compared = 0;
  int64_t broken = 0;
  double worst_percent = 0;
  double seconds = 0;
  int64_t plans = 0;
  double slowest_s = 0;
};

absl::StatusOr<PlanResult> PlanTimed(const PlanRequest& request, Totals& totals) {
  const auto begin = std::chrono::steady_clock::now();
  absl::StatusOr<PlanResult> planned = MakePlan(request);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  totals.seconds += seconds;
  totals.slowest_s = std::max(totals.slowest_s, seconds);
  ++totals.plans;
  return planned;
}

// Counts the pair, and prints it when `open` takes longer than `bound` or has no plan.
void Compare(std::string_view name, const absl::StatusOr<PlanResult>& open, const absl::StatusOr<PlanResult>& bound,
             int64_t tolerance_ppm, Totals& totals) {
  if (!bound.ok()) {
    return;
  }
  ++totals.compared;
  if (!open.ok()) {
    ++totals.broken;
    fmt::print("{}: NO PLAN ({})\n  but {}\n", name, std::string(open.status().message()), Text(*bound));
    return;
  }
  const int64_t open_ns = open->prediction.iteration_ns;
  const int64_t bound_ns = bound->prediction.iteration_ns;
  const double percent = 100 * (static_cast<double>(open_ns) / static_cast<double>(bound_ns) - 1);
  totals.worst_percent = std::max(totals.worst_percent, percent);
  if (open_ns - bound_ns > bound_ns / 1'000'000 * tolerance_ppm) {
    ++totals.broken;
    fmt::print("{}: {:+.3f} %\n  is  {}\n  but {}\n", name, percent, Text(*open), Text(*bound));
    std::fflush(stdout);
  }
}

void Summary(std::string_view what, const Totals& totals) {
  fmt::print("{}: {} compared, {} beyond the tolerance, worst {:+.3f} %; {} plans, mean {:.2f} s, slowest {:.1f} s\n",
             what, totals.compared, totals.broken, totals.worst_percent, totals.plans,
             totals.seconds / static_cast<double>(std::max<int64_t>(1, totals.plans)), totals.slowest_s);
}

PlanRequest OpenRequest(uint64_t seed, int64_t index, Prng& prng) {
  prng = Prng(seed * 1'000'003 + static_cast<uint64_t>(index));
  PlanRequest request = test::RandomOpenRequest(prng);
  while (request.cluster.SiteNames().size() < 2 || std::ranges::all_of(request.cluster.links, &LinkSpec::inside)) {
    request = test::RandomOpenRequest(prng);
  }
  request.baselines = false;
  request.cluster_bound = false;
  return request;
}

int Pairs(int64_t pairs, uint64_t seed, int64_t first) {
  fmt::print("seed {}, pairs {} to {}\n", seed, first, first + pairs - 1);
  Totals totals;
  for (int64_t index = first; index < first + pairs; ++index) {
    Prng prng(1);
    const PlanRequest request = OpenRequest(seed, index, prng);
    test::Improved improved = test::DrawImproved(prng, request.cluster);
    PlanRequest better = request;
    better.cluster = std::move(improved.cluster);
    const auto before = PlanTimed(request, totals);
    const auto after = PlanTimed(better, totals);
    Compare(fmt::format("pair {} ({} devices, {}), {}", index, test::DevicesOf(better.cluster),
                        ScheduleKindName(request.job.search.schedule), improved.change),
            after, before, kTolerancePpm, totals);
  }
  Summary("pairs", totals);
  return totals.broken == 0 ? 0 : 1;
}

void PinsOf(const std::string& name, const PlanRequest& request, Totals& own, Totals& other) {
  const auto open = PlanTimed(request, own);
  if (!open.ok()) {
    fmt::print("{}: {}\n", name, std::string(open.status().message()));
    return;
  }
  for (const test::Pinned& pinned : test::OwnPins(request.job, open->plan)) {
    PlanRequest same = request;
    same.job = pinned.job;
    const auto planned = PlanTimed(same, own);
    Compare(fmt::format("{}, own {}", name, pinned.choice), planned, open, 0, own);
    Compare(fmt::format("{}, own {}, open is slower", name, pinned.choice), open, planned, 0, own);
  }
  for (const test::Pinned& pinned : test::OtherPins(request.job, request.cluster, open->plan)) {
    PlanRequest instead = request;
    instead.job = pinned.job;
    Compare(fmt::format("{}, {}", name, pinned.choice), open, PlanTimed(instead, other), kTolerancePpm, other);
  }
}

int Pins(int64_t jobs, uint64_t seed, int64_t first) {
  fmt::print("seed {}, jobs {} to {}\n", seed, first, first + jobs - 1);
  Totals own;
  Totals other;
  for (int64_t index = first; index < first + jobs; ++index) {
    Prng prng(1);
    const PlanRequest request = OpenRequest(seed, index, prng);
    PinsOf(fmt::format("job {}", index), request, own, other);
  }
  Summary("own choices", own);
  Summary("other choices", other);
  return own.broken + other.broken == 0 ? 0 : 1;
}

int OfFiles(const std::string& job_path, const std::string& topology_path, bool pins) {
  const absl::StatusOr<JobSpec> job = ReadJobFile(job_path);
  const absl::StatusOr<ClusterSpec> cluster = ReadTopologyFile(topology_path, DeviceFigures::kNeeded);
  if (!job.ok() || !cluster.ok()) {
    fmt::print(stderr, "error: {}\n", std::string((job.ok() ? cluster.status() : job.status()).message()));
    return 2;
  }
  ThreadPool pool(ThreadPool::Processors(16));
  PlanRequest request;
  request.job = JobOnCluster(*job, *cluster);
  request.cluster = *cluster;
  request.baselines = false;
  request.cluster_bound = false;
  request.parallel_for = [&pool](int64_t count, const std::function<void(int64_t)>& work) { pool.For(count, work); };
  Totals own;
  Totals other;
  if (!pins) {
    const auto planned = PlanTimed(request, own);
    fmt::print("{}, {:.1f} s\n", planned.ok() ? Text(*planned) : planned.status().ToString(), own.seconds);
    return planned.ok() ? 0 : 3;
  }
  PinsOf(job_path, request, own, other);
  Summary("own choices", own);
  Summary("other choices", other);
  return own.broken + other.broken == 0 ? 0 : 1;
}

}  // namespace
}  // namespace geopipe

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const auto number = [&](size_t i, int64_t otherwise) {
    return i < arguments.size() ? std::strtoll(arguments[i].c_str(), nullptr, 10) : otherwise;
  };
  if (!arguments.empty() && arguments[0] == "pairs") {
    return geopipe::Pairs(number(1, 200), static_cast<uint64_t>(number(2, 7)), number(3, 0));
  }
  if (arguments.size() == 3 && arguments[1].ends_with("yaml")) {
    return geopipe::OfFiles(arguments[1], arguments[2], arguments[0] == "pins");
  }
  if (!arguments.empty() && arguments[0] == "pins") {
    return geopipe::Pins(number(1, 12), static_cast<uint64_t>(number(2, 7)), number(3, 0));
  }
  fmt::print(stderr, "usage: consistency_bench pairs|pins [count] [seed] [first], or pins JOB.yaml TOPOLOGY.yaml\n");
  return 2;
}
