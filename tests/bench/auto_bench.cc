// The schedule `auto` against its lower bound: CrossPipe's columns, then a library of random federations, with the
// distribution of the gaps. `auto_bench [cases] [actions timed per case] [first seed] [worst cases]`; prints one line
// per case and, for the worst ones of all, what takes up their iteration.
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
#include "tests/support/auto_cases.h"

namespace geopipe {
namespace {

struct Run {
  AutoSchedule found;
  double wall_s = 0;
};

Run Measure(const PipelineCosts& costs, const AutoOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  absl::StatusOr<AutoSchedule> found = FindSchedule(costs, options);
  if (!found.ok()) {
    fmt::print(stderr, "{}\n", found.status().ToString());
    std::exit(1);
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  return {*std::move(found), elapsed.count()};
}

double GapPercent(int64_t iteration_ns, const AutoSchedule& found) {
  return 100.0 * (static_cast<double>(iteration_ns) / static_cast<double>(found.lower_bound_ns) - 1);
}

// "-": there is none.
std::string GapText(int64_t iteration_ns, const AutoSchedule& found) {
  return iteration_ns == 0 ? std::string(1, '-') : fmt::format("{:.3f} %", GapPercent(iteration_ns, found));
}

bool Columns() {
  bool all = true;
  fmt::print("CrossPipe, seconds per micro-batch\n{:>3} {:>4} {:>8} {:>14} {:>9} {:>9} {:>9} {:>9} {:>7}\n", "m", "cap",
             "latency", "serialization", "bound", "auto", "at most", "published", "wall s");
  for (const CrossPipeColumn& column : CrossPipeColumns()) {
    const Run run = Measure(CrossPipeCosts(column), {.evaluations = 40'000});
    const auto per_micro_batch_s = [&column](int64_t ns) {
      return static_cast<double>(ns) * 1e-9 / column.micro_batches;
    };
    const double auto_s = per_micro_batch_s(run.found.iteration_ns);
    all = all && auto_s <= column.at_most_s;
    fmt::print("{:>3} {:>4} {:>8} {:>14} {:>9.5f} {:>9.5f} {:>9.4f} {:>9.3f} {:>7.2f}{}\n", column.micro_batches,
               column.cap, column.latency, column.serialization, per_micro_batch_s(run.found.lower_bound_ns), auto_s,
               column.at_most_s, column.published_s, run.wall_s, auto_s <= column.at_most_s ? "" : "  MISSED");
  }
  return all;
}

void PrintDistribution(const std::string& name, std::vector<double> gaps, size_t cases) {
  std::sort(gaps.begin(), gaps.end());
  double sum = 0;
  for (const double gap : gaps) {
    sum += gap;
  }
  const auto quantile = [&gaps](size_t percent) {
    return gaps[std::min(gaps.size() - 1, gaps.size() * percent / 100)];
  };
  fmt::print(
      "{:<32} {:>4} cases ({:>4.1f} %): gap to the bound, median {:.3f} %, mean {:.3f} %, 95th {:.3f} %, "
      "greatest {:.2f} %\n",
      name, gaps.size(), 100.0 * static_cast<double>(gaps.size()) / static_cast<double>(cases), quantile(50),
      sum / static_cast<double>(gaps.size()), quantile(95), gaps.back());
}

struct Gap {
  double percent = 0;
  uint64_t seed = 0;
  std::string name;
  int64_t iteration_ns = 0;
  int64_t lower_bound_ns = 0;
};

// Shares of the iteration: of the busiest device and the busiest direction of a link, and of each bound.
void PrintLimits(const Gap& gap) {
  const PipelineCosts costs = MakeSitedCase(gap.seed).costs;
  const PipelineShape& shape = costs.shape;
  const auto percent = [&gap](int64_t ns) {
    return 100.0 * static_cast<double>(ns) / static_cast<double>(gap.iteration_ns);
  };
  int64_t busiest_ns = 0;
  int32_t busiest = 0;
  int64_t busiest_link_ns = 0;
  std::map<std::string, int64_t> links_ns;
  for (int32_t stage = 0; stage < shape.stages; ++stage) {
    const int64_t work_ns = shape.micro_batches * (costs.forward_ns[stage] + costs.BackwardNs(stage));
    if (work_ns > busiest_ns) {
      busiest_ns = work_ns;
      busiest = stage;
    }
    if (stage + 1 < shape.stages && costs.boundaries[stage].crosses) {
      const BoundaryCost& boundary = costs.boundaries[stage];
      int64_t& link_ns = links_ns[boundary.link.empty() ? fmt::format("of boundary {}", stage) : boundary.link];
      link_ns += shape.micro_batches * boundary.serialization_ns;
      busiest_link_ns = std::max(busiest_link_ns, link_ns);
    }
  }
  fmt::print(
      "{:>5} {}: gap {:.3f} %; of the iteration, device {} is busy {:.1f} %, a link {:.1f} %; bound {:.1f} %, within "
      "memory {:.1f} %, proved {:.1f} %\n",
      gap.seed, gap.name, gap.percent, busiest, percent(busiest_ns), percent(busiest_link_ns),
      percent(LowerBoundNs(costs)), percent(MemoryLowerBoundNs(costs).value_or(0)), percent(gap.lower_bound_ns));
}

void PrintWorst(std::vector<Gap> gaps, size_t count) {
  std::sort(gaps.begin(), gaps.end(), [](const Gap& a, const Gap& b) { return a.percent > b.percent; });
  gaps.resize(std::min(gaps.size(), count));
  for (const Gap& gap : gaps) {
    PrintLimits(gap);
  }
}

// `work`: actions that the search may time in one case, over all of its evaluations.
bool Library(size_t cases, int64_t work, uint64_t first_seed, size_t worst) {
  std::map<std::string, std::vector<double>> gaps;
  std::vector<Gap> all;
  size_t worse = 0;
  double wall_s = 0;
  for (uint64_t seed = first_seed; seed < first_seed + cases; ++seed) {
    const SitedCase sited = MakeSitedCase(seed);
    const PipelineShape& shape = sited.costs.shape;
    const bool split = !sited.costs.weight_grad_ns.empty();
    const Run run = Measure(sited.costs, {.evaluations = EvaluationsWithin(sited.costs, work), .stop_gap_ppm = 100});
    const double gap = GapPercent(run.found.iteration_ns, run.found);
    const std::string name =
        fmt::format("{} backward, memory {}", split ? "split" : "full", sited.ample ? "ample" : "binds");
    gaps[name].push_back(gap);
    all.push_back({gap, seed, name, run.found.iteration_ns, run.found.lower_bound_ns});
    wall_s += run.wall_s;
    const bool is_worse = run.found.best_start_ns != 0 && run.found.iteration_ns > run.found.best_start_ns;
    worse += is_worse ? 1 : 0;
    fmt::print(
        "{:>5} sites {} P {:>2} m {:>3} {} {} {}: gap {:>9}, list {:>9}, best named {:>9}, {:>5} evaluations, {:.2f} "
        "s\n",
        seed, sited.sites, shape.devices, shape.micro_batches, split ? "split" : "full ",
        sited.shared ? "shared " : "private", sited.ample ? "ample" : "binds",
        GapText(run.found.iteration_ns, run.found), GapText(run.found.list_schedule_ns, run.found),
        GapText(run.found.best_start_ns, run.found), run.found.evaluations, run.wall_s);
    std::fflush(stdout);
  }
  PrintWorst(std::move(all), worst);
  for (const auto& [name, values] : gaps) {
    PrintDistribution(name, values, cases);
  }
  fmt::print("{} cases, {} worse than a named schedule that fits, {:.1f} s of one processor\n", cases, worse, wall_s);
  return worse == 0;
}

}  // namespace
}  // namespace geopipe

int main(int argc, char** argv) {
  const size_t cases = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 500;
  const int64_t work = argc > 2 ? std::strtoll(argv[2], nullptr, 10) : 15'000'000;
  const uint64_t first_seed = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1;
  const size_t worst = argc > 4 ? std::strtoull(argv[4], nullptr, 10) : 0;
  const bool columns = geopipe::Columns();
  return (cases == 0 || geopipe::Library(cases, work, first_seed, worst)) && columns ? 0 : 1;
}
