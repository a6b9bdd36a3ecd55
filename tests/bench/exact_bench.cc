// The schedule `auto` and the lower bound against the truth: small pipelines in whose memory not everything fits, each
// with its shortest schedule, found by an exact search. `exact_bench [cases] [partial schedules kept] [first seed]`;
// prints one line per case.
#include <absl/status/statusor.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "optimizer/scheduler/auto_schedule.h"
#include "optimizer/simulator/lower_bound.h"
#include "optimizer/simulator/simulator.h"
#include "tests/bench/exact_schedule.h"
#include "tests/support/auto_cases.h"

namespace geopipe {
namespace {

// Actions that the search may time in one case, as in auto_bench.
constexpr int64_t kWork = 15'000'000;

template <class T>
T ValueOrExit(absl::StatusOr<T> value) {
  if (!value.ok()) {
    fmt::print(stderr, "{}\n", value.status().ToString());
    std::exit(1);
  }
  return *std::move(value);
}

double OverPercent(int64_t ns, int64_t base_ns) {
  return 100.0 * (static_cast<double>(ns) / static_cast<double>(base_ns) - 1);
}

struct Distributions {
  std::vector<double> auto_over_best;   // of the shortest schedule that is known
  std::vector<double> auto_over_proof;  // of what no schedule is shorter than
  // Excesses over the proved cases alone, in percent.
  std::vector<double> best_over_bound;   // MemoryLowerBoundNs
  std::vector<double> best_over_search;  // what auto proves
  size_t proved = 0;
};

void PrintDistribution(const char* name, std::vector<double> values) {
  if (values.empty()) {
    return;
  }
  std::sort(values.begin(), values.end());
  const auto quantile = [&values](size_t percent) {
    return values[std::min(values.size() - 1, values.size() * percent / 100)];
  };
  const auto within = std::count_if(values.begin(), values.end(), [](double value) { return value <= 0.5; });
  fmt::print("  {:<34} median {:.3f} %, 90th {:.3f} %, 95th {:.3f} %, greatest {:.3f} %, within 0.5 %: {} of {}\n",
             name, quantile(50), quantile(90), quantile(95), values.back(), within, values.size());
}

// Solves one case both ways. False when the exact search and the simulator or the bound contradict each other.
bool Case(uint64_t seed, const SitedCase& sited, int64_t kept, Distributions& distributions) {
  const PipelineCosts& costs = sited.costs;
  const AutoSchedule found = ValueOrExit(FindSchedule(costs, {.evaluations = EvaluationsWithin(costs, kWork)}));
  const auto begin = std::chrono::steady_clock::now();
  const ExactSchedule exact = ValueOrExit(FindExactSchedule(costs, {.known_ns = found.iteration_ns + 1, .kept = kept}));
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  const int64_t bound_ns = MemoryLowerBoundNs(costs).value();
  bool agrees = exact.best_ns >= found.lower_bound_ns && exact.bound_ns <= found.iteration_ns;
  if (!exact.schedule.devices.empty()) {
    const SimulationResult simulated = ValueOrExit(Simulate(exact.schedule, costs));
    agrees = agrees && simulated.fits && simulated.iteration_ns == exact.best_ns;
  }
  const std::string proof = exact.proved() ? "proved"
                                           : fmt::format("shortest known, another may be {:.3f} % shorter",
                                                         OverPercent(exact.best_ns, exact.bound_ns));
  fmt::print("{:>5} P {} m {} {}: auto / optimum {:>6.3f} %, optimum / bound {:>6.3f} %, ", seed, costs.shape.devices,
             costs.shape.micro_batches, costs.weight_grad_ns.empty() ? "full " : "split",
             OverPercent(found.iteration_ns, exact.best_ns), OverPercent(exact.best_ns, bound_ns));
  fmt::print("optimum / auto's bound {:>6.3f} %, {}, {:>8} states, {:.1f} s{}\n",
             OverPercent(exact.best_ns, found.lower_bound_ns), proof, exact.states, wall.count(),
             agrees ? "" : "  CONTRADICTION");
  std::fflush(stdout);
  distributions.auto_over_best.push_back(OverPercent(found.iteration_ns, exact.best_ns));
  distributions.auto_over_proof.push_back(
      OverPercent(found.iteration_ns, std::max(exact.bound_ns, found.lower_bound_ns)));
  if (exact.proved()) {
    ++distributions.proved;
    distributions.best_over_bound.push_back(OverPercent(exact.best_ns, bound_ns));
    distributions.best_over_search.push_back(OverPercent(exact.best_ns, found.lower_bound_ns));
  }
  return agrees;
}

bool Run(size_t cases, int64_t kept, uint64_t first_seed) {
  std::map<std::string, Distributions> all;
  bool agrees = true;
  size_t done = 0;
  for (uint64_t seed = first_seed; done < cases; ++seed) {
    const SitedCase sited = MakeSmallSitedCase(seed);
    if (!sited.ample) {
      ++done;
      agrees = Case(seed, sited, kept, all[sited.costs.weight_grad_ns.empty() ? "full" : "split"]) && agrees;
    }
  }
  for (const auto& [name, distributions] : all) {
    fmt::print("{} backward, {} cases, {} proved\n", name, distributions.auto_over_best.size(), distributions.proved);
    PrintDistribution("auto over the optimum or best known", distributions.auto_over_best);
    PrintDistribution("auto over what is proved", distributions.auto_over_proof);
    PrintDistribution("proved optimum over the bound", distributions.best_over_bound);
    PrintDistribution("proved optimum over auto's bound", distributions.best_over_search);
  }
  return agrees;
}

}  // namespace
}  // namespace geopipe

int main(int argc, char** argv) {
  const size_t cases = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 200;
  const int64_t kept = argc > 2 ? std::strtoll(argv[2], nullptr, 10) : 100'000;
  const uint64_t first_seed = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1;
  return geopipe::Run(cases, kept, first_seed) ? 0 : 1;
}
