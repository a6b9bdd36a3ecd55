// Compares the planner with exhaustive search (tests/support/exhaustive_plan.h).
//
// `exhaustive_bench [clusters] [seed] [first]`: small jobs on random clusters, of which everything is left open; prints
// each whose plan another beats by a tenth of a percent, in a form that makes it again (cluster `first` of the seed),
// and a summary. The exhaustive search knows nothing of the plan that it is compared with.
//
// `exhaustive_bench --grids job.yaml topology.yaml [margin percent] [plain]`: one job of any size against every grid
// with balanced layers; whether one is shorter than the plan by more than the margin (3 %). `plain`: costs as `plan
// --attention dense --roofline block --reserve 0B` has them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/spec/topology_file.h"
#include "optimizer/model/plan/plan_costs.h"
#include "optimizer/plan/planner.h"
#include "optimizer/plan/space/choices.h"
#include "optimizer/search/prng.h"
#include "runtime/base/thread_pool.h"
#include "runtime/manifest/job_manifest.h"
#include "tests/optimizer/plan/random_jobs.h"
#include "tests/support/exhaustive_plan.h"

namespace geopipe {
namespace {

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::string Text(const Plan& plan, int64_t iteration_ns) {
  std::vector<std::string> ranks;
  for (int32_t rank = 0; rank < plan.grid.pipeline;) {
    const std::string& site = plan.pipeline_ranks[rank].site;
    int32_t end = rank;
    while (end < plan.grid.pipeline && plan.pipeline_ranks[end].site == site) {
      ++end;
    }
    ranks.push_back(fmt::format("{} x {}", site, end - rank));
    rank = end;
  }
  std::vector<int64_t> layers;
  for (const StagePlan& stage : plan.stages) {
    layers.push_back(stage.layers.count());
  }
  return fmt::format(
      "{:.6f} ms: {}, tensor {}, data {}, {}, b {}, s {}, m {}, recompute {}, ZeRO {}, layers {}, delta_n {}",
      1e-6 * static_cast<double>(iteration_ns), fmt::join(ranks, " > "), plan.grid.tensor, plan.grid.data,
      ScheduleKindName(plan.schedule), plan.micro_batch_size, plan.sequence_length, plan.micro_batches,
      RecomputeText(plan), plan.zero_stage, layers, plan.delta_n);
}

struct Totals {
  int64_t planned = 0;
  int64_t impossible = 0;
  int64_t optimal = 0;
  int64_t below_bound = 0;
  int64_t wrongly_impossible = 0;
  int64_t incomplete = 0;
  int64_t not_found = 0;  // by the exhaustive search, of the plans
  std::vector<double> excess_percent;
  std::vector<double> bound_percent;  // of the best
  double planner_s = 0;
  double exhaustive_s = 0;
  double slowest_plan_s = 0;
};

void Case(uint64_t seed, int64_t index, Totals& totals) {
  Prng prng(seed * 1'000'003 + static_cast<uint64_t>(index));
  PlanRequest request = test::RandomOpenRequest(prng);
  request.baselines = false;
  const auto begin = std::chrono::steady_clock::now();
  const absl::StatusOr<PlanResult> planned = MakePlan(request);
  const double planner_s = SecondsSince(begin);
  const auto then = std::chrono::steady_clock::now();
  const test::ExhaustiveOptions options;
  test::ExhaustiveResult best = test::FindExhaustively(request, options);
  const double exhaustive_s = SecondsSince(then);
  totals.planner_s += planner_s;
  totals.slowest_plan_s = std::max(totals.slowest_plan_s, planner_s);
  totals.exhaustive_s += exhaustive_s;
  totals.incomplete += best.complete && best.all_splits ? 0 : 1;
  const std::string name = fmt::format("seed {} cluster {} ({}, {} layers, {} sites)", seed, index,
                                       ScheduleKindName(request.job.search.schedule),
                                       request.job.model.num_hidden_layers, request.cluster.sites.size());
  if (!planned.ok()) {
    ++totals.impossible;
    if (best.found) {
      ++totals.wrongly_impossible;
      fmt::print("{}: no plan ({})\n  best    {}\n", name, planned.status().ToString(),
                 Text(best.plan, best.iteration_ns));
    }
    return;
  }
  ++totals.planned;
  const int64_t plan_ns = planned->prediction.iteration_ns;
  if (!best.found || best.iteration_ns > plan_ns + plan_ns / 1'000'000 * options.margin_ppm) {
    ++totals.not_found;
    fmt::print("{}: the exhaustive search did not find the planner's {}\n  but     {}\n", name,
               Text(planned->plan, plan_ns), Text(best.plan, best.iteration_ns));
  }
  best.found = best.found && best.iteration_ns < plan_ns - plan_ns / 1'000'000 * options.margin_ppm;
  const int64_t best_ns = best.found ? best.iteration_ns : plan_ns;
  const double excess = 100 * (static_cast<double>(plan_ns) / static_cast<double>(best_ns) - 1);
  totals.optimal += best.found ? 0 : 1;
  totals.excess_percent.push_back(excess);
  totals.bound_percent.push_back(100 * static_cast<double>(planned->cluster_bound_ns) / static_cast<double>(best_ns));
  const bool is_below = planned->cluster_bound_ns > best_ns || planned->prediction.lower_bound_ns > plan_ns;
  totals.below_bound += is_below ? 1 : 0;
  if (best.found || is_below || exhaustive_s > 5 || planner_s > 2) {
    fmt::print(
        "{}: {:+.2f} %{}, planner {:.1f} s, exhaustive {:.1f} s ({} grids, {} in bounds, {} tried, {} searched)\n",
        name, excess, is_below ? ", BELOW A BOUND" : "", planner_s, exhaustive_s, best.grids, best.in_bounds,
        best.tried, best.searched);
    fmt::print("  planner {}\n", Text(planned->plan, plan_ns));
    if (best.found) {
      fmt::print("  best    {}\n", Text(best.plan, best.iteration_ns));
    }
  }
  std::fflush(stdout);
}

int Clusters(int64_t clusters, uint64_t seed, int64_t first) {
  fmt::print("seed {}, clusters {} to {}\n", seed, first, first + clusters - 1);
  Totals totals;
  for (int64_t index = first; index < first + clusters; ++index) {
    Case(seed, index, totals);
  }
  std::ranges::sort(totals.excess_percent);
  std::ranges::sort(totals.bound_percent);
  const auto at = [](const std::vector<double>& values, size_t percent) {
    return values.empty() ? 0 : values[std::min(values.size() - 1, values.size() * percent / 100)];
  };
  const double optimal =
      100 * static_cast<double>(totals.optimal) / static_cast<double>(std::max<int64_t>(1, totals.planned));
  const auto count = static_cast<double>(clusters);
  const auto row = [](std::string_view name, const std::string& value) { fmt::print("  {:<46} {}\n", name, value); };
  row("clusters, of them with a plan", fmt::format("{}, {}", clusters, totals.planned));
  row("planner within 0.1 % of the exhaustive search", fmt::format("{:.1f} %", optimal));
  row("excess, 95th percentile and greatest",
      fmt::format("{:.2f} %, {:.2f} %", at(totals.excess_percent, 95), at(totals.excess_percent, 100)));
  row("plans that only the exhaustive search has", fmt::format("{}", totals.wrongly_impossible));
  row("plans that it does not find", fmt::format("{}", totals.not_found));
  row("exhaustive searches cut short", fmt::format("{}", totals.incomplete));
  row("plans below a bound", fmt::format("{}", totals.below_bound));
  row("cluster bound over the best, 5th and median",
      fmt::format("{:.1f} %, {:.1f} %", at(totals.bound_percent, 5), at(totals.bound_percent, 50)));
  row("planner, mean and longest", fmt::format("{:.2f} s, {:.1f} s", totals.planner_s / count, totals.slowest_plan_s));
  row("exhaustive search, mean", fmt::format("{:.2f} s", totals.exhaustive_s / count));
  // The exhaustive search of one schedule is not exact: a plan that it cannot match is no worse for that.
  const bool holds =
      optimal >= 97 && at(totals.excess_percent, 100) <= 1 && totals.below_bound == 0 && totals.wrongly_impossible == 0;
  return holds ? 0 : 1;
}

template <class T>
T ValueOrExit(absl::StatusOr<T> value) {
  if (!value.ok()) {
    fmt::print(stderr, "{}\n", value.status().ToString());
    std::exit(2);
  }
  return *std::move(value);
}

int Grids(const char* job, const char* topology, double margin_percent, bool is_plain) {
  PlanRequest request;
  request.job = ValueOrExit(ReadJobFile(job));
  request.cluster = ValueOrExit(ReadTopologyFile(topology, DeviceFigures::kNeeded));
  for (SiteSpec& site : request.cluster.sites) {
    if (is_plain) {
      site.device.attention = Attention::kDense;
      site.device.roofline = Roofline::kBlock;
      site.device.reserve_bytes = 0;
    }
  }
  request.job = JobOnCluster(std::move(request.job), request.cluster);
  request.baselines = false;
  ThreadPool pool(ThreadPool::Processors(2));
  request.parallel_for = [&pool](int64_t count, const std::function<void(int64_t)>& work) { pool.For(count, work); };
  const auto begin = std::chrono::steady_clock::now();
  const PlanResult planned = ValueOrExit(MakePlan(request));
  const double planner_s = SecondsSince(begin);
  const int64_t plan_ns = planned.prediction.iteration_ns;
  fmt::print("planner {} ({:.1f} s, cluster bound {:.6f} ms)\n", Text(planned.plan, plan_ns), planner_s,
             1e-6 * static_cast<double>(planned.cluster_bound_ns));
  std::fflush(stdout);
  const auto then = std::chrono::steady_clock::now();
  const test::ExhaustiveResult best =
      test::FindExhaustively(request, {.margin_ppm = static_cast<int64_t>(margin_percent * 1e4),
                                       .beat_ns = plan_ns,
                                       .splits_and_advances = false,
                                       .auto_actions = 24'000'000,
                                       .proof_actions = 4'000'000});
  fmt::print("{} grids, {} in bounds, {} tried by rule, {} searched{}, {:.1f} s: ", best.grids, best.in_bounds,
             best.tried, best.searched, best.complete ? "" : " (cut short)", SecondsSince(then));
  if (!best.found) {
    fmt::print("none is shorter by {} %\n", margin_percent);
    return best.complete ? 0 : 1;
  }
  fmt::print("{:+.2f} %\nbest    {}\n",
             100 * (static_cast<double>(plan_ns) / static_cast<double>(best.iteration_ns) - 1),
             Text(best.plan, best.iteration_ns));
  return 1;
}

}  // namespace
}  // namespace geopipe

int main(int argc, char** argv) {
  if (argc > 3 && std::string_view(argv[1]) == "--grids") {
    return geopipe::Grids(argv[2], argv[3], argc > 4 ? std::strtod(argv[4], nullptr) : 3,
                          argc > 5 && std::string_view(argv[5]) == "plain");
  }
  const int64_t clusters = argc > 1 ? std::strtoll(argv[1], nullptr, 10) : 300;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  const int64_t first = argc > 3 ? std::strtoll(argv[3], nullptr, 10) : 0;
  return geopipe::Clusters(clusters, seed, first);
}
