// Genetic against exhaustive search on random jobs, against pagmo's sga and sade where pagmo is installed, and the time
// that large jobs take. Usage: search_bench [jobs] [seed]. Prints a summary; run it by hand on a quiet machine.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "optimizer/plan/planner.h"
#include "optimizer/plan/space/plan_space.h"
#include "optimizer/search/exhaustive_search.h"
#include "optimizer/search/genetic_search.h"
#include "runtime/base/thread_pool.h"
#include "tests/bench/pagmo_search.h"
#include "tests/optimizer/plan/jobs.h"
#include "tests/optimizer/plan/random_jobs.h"

namespace geopipe {
namespace {

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

rusage Usage() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage;
}

double PeakGiB() { return static_cast<double>(Usage().ru_maxrss) / (1 << 20); }

// Processor time of all threads: the elapsed time on one quiet processor.
double ProcessorSeconds() {
  const timeval user = Usage().ru_utime;
  return static_cast<double>(user.tv_sec) + 1e-6 * static_cast<double>(user.tv_usec);
}

// Relative excess over the optimum, per job.
struct Gaps {
  std::vector<double> values;

  void Add(int64_t found_ns, int64_t best_ns) {
    values.push_back(static_cast<double>(found_ns) / static_cast<double>(best_ns) - 1);
  }
  std::string Text() const {
    double sum = 0;
    double largest = 0;
    int64_t optimal = 0;
    for (const double gap : values) {
      sum += gap;
      largest = std::max(largest, gap);
      optimal += gap == 0 ? 1 : 0;
    }
    const auto count = static_cast<double>(values.size());
    return fmt::format("{:>4} of {} optimal ({:.2f} %), mean gap {:.4f} %, largest {:.4f} %", optimal, values.size(),
                       100 * static_cast<double>(optimal) / count, 100 * sum / count, 100 * largest);
  }
};

int64_t BestNs(const SearchOutcome& outcome) {
  const bool found = !outcome.evaluated.empty() && outcome.evaluated.front().fitness.feasible;
  return found ? outcome.evaluated.front().fitness.iteration_ns : 0;
}

void CompareSearches(int64_t jobs, uint64_t seed) {
  Prng prng(seed);
  Gaps genetic_gaps;
  Gaps sga_gaps;
  Gaps sade_gaps;
  int64_t same_genome = 0;
  int64_t infeasible = 0;
  int64_t genetic_evaluations = 0;
  int64_t exhaustive_evaluations = 0;
  double most_evaluations = 0;
  double genetic_s = 0;
  double exhaustive_s = 0;
  while (std::ssize(genetic_gaps.values) < jobs) {
    const PlanRequest request = test::RandomSearchableRequest(prng);
    const auto placement = PlaceStages(request.job, request.cluster, request.job.placement.sites);
    const PlanSpace space =
        *PlanSpace::Create(request.job, request.cluster, CostSource(request.job, request.cluster, nullptr),
                           request.comm, request.fixed_delta_n, *placement);
    auto begin = std::chrono::steady_clock::now();
    const SearchOutcome exhaustive = *ExhaustiveSearch(space.Problem());
    exhaustive_s += SecondsSince(begin);
    const int64_t best_ns = BestNs(exhaustive);
    if (best_ns == 0) {
      ++infeasible;
      continue;
    }
    begin = std::chrono::steady_clock::now();
    const SearchOutcome genetic =
        GeneticSearch(space.Problem(), {.seed = request.job.search.seed, .max_evaluations = space.size() / 10});
    genetic_s += SecondsSince(begin);
    genetic_gaps.Add(BestNs(genetic), best_ns);
    same_genome += genetic.evaluated.front() == exhaustive.evaluated.front() ? 1 : 0;
    genetic_evaluations += genetic.evaluations;
    exhaustive_evaluations += exhaustive.evaluations;
    most_evaluations = std::max(most_evaluations,
                                static_cast<double>(genetic.evaluations) / static_cast<double>(exhaustive.evaluations));
    if (genetic_gaps.values.back() != 0) {
      fmt::print("not optimal: job {}, space {}, gap {:.4f} %\n", genetic_gaps.values.size(), space.size(),
                 100 * genetic_gaps.values.back());
    }
#ifdef GEOPIPE_HAS_PAGMO
    sga_gaps.Add(PagmoBestNs(space, PagmoAlgorithm::kSga, genetic.evaluations, request.job.search.seed), best_ns);
    sade_gaps.Add(PagmoBestNs(space, PagmoAlgorithm::kSade, genetic.evaluations, request.job.search.seed), best_ns);
#endif
  }
  fmt::print("{} jobs with 2,000 to 50,000 genomes, m at most 64 (seed {}; {} that fit nowhere left out)\n", jobs, seed,
             infeasible);
  fmt::print("genetic     {}; the same genome {}\n", genetic_gaps.Text(), same_genome);
  fmt::print(
      "            {} evaluations of exhaustive's {} ({:.2f} %, of one job at most {:.2f} %); {:.2f} s of {:.2f} s\n",
      genetic_evaluations, exhaustive_evaluations,
      100 * static_cast<double>(genetic_evaluations) / static_cast<double>(exhaustive_evaluations),
      100 * most_evaluations, genetic_s, exhaustive_s);
#ifdef GEOPIPE_HAS_PAGMO
  fmt::print(
      "pagmo sga   {}\npagmo sade  {}\n            with as many distinct evaluations, the same seeds and repair, "
      "encoding by value\n",
      sga_gaps.Text(), sade_gaps.Text());
#else
  fmt::print("pagmo is not installed (Debian: libpagmo-dev); not compared\n");
#endif
}

// 16 sites at random places with devices of unequal speed, every pair linked.
ClusterSpec LargeCluster(int sites, int64_t nodes) {
  Prng prng(16);
  ClusterSpec cluster;
  std::vector<std::pair<double, double>> places;
  for (int i = 0; i < sites; ++i) {
    const double speed = static_cast<double>(prng.Between(200, 400));
    cluster.sites.push_back({fmt::format("site{}", i),
                             nodes,
                             8,
                             {.kind = "device",
                              .memory_bytes = 64 * test::kGiB,
                              .peak_flops = speed * 1e12,
                              .memory_bandwidth_bytes_per_s = 1.6e12,
                              .intra_node_bandwidth_bytes_per_s = 196e9}});
    places.emplace_back(prng.Between(0, 1000), prng.Between(0, 1000));
    for (int other = 0; other < i; ++other) {
      const double distance =
          std::hypot(places[i].first - places[other].first, places[i].second - places[other].second);
      cluster.links.push_back({fmt::format("site{}", other), fmt::format("site{}", i),
                               500'000 + static_cast<int64_t>(20'000 * distance), 50e9});
    }
  }
  return cluster;
}

void TimePlan(const std::string& name, PlanRequest request) {
  ThreadPool pool(ThreadPool::Processors(2));
  request.parallel_for = [&pool](int64_t count, const std::function<void(int64_t)>& work) { pool.For(count, work); };
  const auto begin = std::chrono::steady_clock::now();
  const double processor_begin_s = ProcessorSeconds();
  const double budget_s = static_cast<double>(request.job.search.time_budget_ns) / 1e9;
  request.should_stop = [begin, budget_s] { return SecondsSince(begin) > budget_s; };
  const PlanResult result = *MakePlan(request);
  const double elapsed_s = SecondsSince(begin);
  fmt::print(
      "{}: {:.3f} s ({:.3f} s of processors), {} evaluations{}; {} {} stages on {} crossings, tensor {}, data {}, "
      "iteration {:.3f} s "
      "(bound {:.3f} s); peak memory of this process {:.2f} GiB\n",
      name, elapsed_s, ProcessorSeconds() - processor_begin_s, result.search.evaluations,
      result.search.stopped_early ? ", stopped: time" : "", ScheduleKindName(result.plan.schedule),
      result.plan.stages.size(), result.plan.delta_n.size(), result.plan.grid.tensor, result.plan.grid.data,
      1e-9 * static_cast<double>(result.prediction.iteration_ns),
      1e-9 * static_cast<double>(result.prediction.lower_bound_ns), PeakGiB());
}

void TimePlans() {
  PlanRequest paper = test::PaperRequest();
  paper.job.parallelism.recompute = Recompute::kNone;
  paper.job.parallelism.layers = LayerSplit::kAuto;
  TimePlan("llama-2-13b on three regions", paper);
  PlanRequest large;
  large.job = test::Llama13bJob();
  large.job.name = "llama-2-70b";
  large.job.model = *ModelPreset("llama-2-70b");
  large.job.parallelism = {};
  large.job.parallelism.tensor = 0;
  large.job.parallelism.data = 0;
  large.job.parallelism.sequence_parallel = true;
  large.job.placement.sites.clear();
  large.cluster = LargeCluster(16, 64);
  large.job.search.time_budget_ns = 45'000'000'000;
  TimePlan("llama-2-70b on 16 x 64 x 8, all auto", large);
}

}  // namespace
}  // namespace geopipe

int main(int argc, char** argv) {
  const int64_t jobs = argc > 1 ? std::atoll(argv[1]) : 300;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  geopipe::TimePlans();
  if (jobs > 0) {
    geopipe::CompareSearches(jobs, seed);
  }
  return 0;
}
