#include "tests/support/chaos_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <utility>

#include "tests/support/durations.h"

namespace geopipe {
namespace {

using Kind = ChaosFault::Kind;

constexpr int64_t kLastSampleNs = 200 * kMs;  // for which the last sample stands in the picture

// Iterations that were heard of, until the last was.
std::vector<ChaosProgress> ProgressOf(const ChaosRun& run) {
  std::vector<ChaosProgress> progress;
  for (const ChaosSample& sample : run.samples) {
    if (sample.heard) {
      progress.push_back({sample.at_ns, sample.iterations});
      if (sample.iterations == run.detail.summary().iterations_total()) {
        break;
      }
    }
  }
  return progress;
}

int64_t MedianNs(std::vector<int64_t> times) {
  const auto middle = times.begin() + std::ssize(times) / 2;
  std::ranges::nth_element(times, middle);
  return *middle;
}

int64_t MedianIterationNs(const ChaosRun& run) {
  std::vector<int64_t> times;
  for (const auto* curve : {&run.early, &run.curve}) {
    for (const v1::IterationSummary& iteration : *curve) {
      if (iteration.duration_ns() > 0) {
        times.push_back(iteration.duration_ns());
      }
    }
  }
  return times.empty() ? run.iteration_ns : MedianNs(std::move(times));
}

double Seconds(int64_t ns) { return static_cast<double>(ns) / 1e9; }

bool IsMissed(const ChaosOutcome& outcome, size_t sites) { return outcome.cost_ns > ChaosBarNs(outcome.fault, sites); }

// Rows of the picture, after the job's: processes, links, disks, hosts. The row of a fault.
std::vector<std::string> Rows(const std::vector<std::string>& sites) {
  std::vector<std::string> rows;
  for (const Kind kind : {Kind::kKill, Kind::kCut, Kind::kFull, Kind::kDescriptors}) {
    std::ranges::move(ChaosTargets(kind, sites), std::back_inserter(rows));
  }
  return rows;
}

size_t RowOf(const ChaosFault& fault, const std::vector<std::string>& sites) {
  const std::vector<std::string> rows = Rows(sites);
  return static_cast<size_t>(std::ranges::find(rows, ChaosTargetName(fault, sites)) - rows.begin());
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

double ChaosRun::effective_between(size_t sites) const {
  int64_t span_ns = wall_ns + iteration_ns;
  for (const ChaosOutcome& outcome : outcomes) {
    const int64_t lasted_ns = std::clamp<int64_t>(outcome.cost_ns, 0, outcome.fault.duration_ns);
    span_ns -= StopsRank(outcome.fault, sites) ? lasted_ns : 0;
  }
  return EffectiveOf(std::max<int64_t>(span_ns, 1));
}

void CountChaosCosts(ChaosRun& run) {
  run.median_ns = MedianIterationNs(run);
  std::vector<int64_t> begins_ns;
  for (const ChaosOutcome& outcome : run.outcomes) {
    begins_ns.push_back(outcome.fault.at_ns);
  }
  const std::vector<int64_t> costs = ChaosCosts(ProgressOf(run), begins_ns, run.median_ns);
  for (size_t i = 0; i < costs.size(); ++i) {
    run.outcomes[i].cost_ns = costs[i];
  }
}

std::string ChaosTargetName(const ChaosFault& fault, const std::vector<std::string>& sites) {
  return ChaosTargets(fault.kind, sites)[fault.target];
}

std::string ChaosTable(const ChaosRun& run, const std::vector<std::string>& sites) {
  std::string text =
      fmt::format("{:>8}  {:<15} {:<20} {:>8} {:>8} {:>8}\n", "at", "kind", "target", "lasts", "cost", "bar");
  for (const ChaosOutcome& outcome : run.outcomes) {
    const ChaosFault& fault = outcome.fault;
    text += fmt::format("{:>6.1f} s  {:<15} {:<20} {:>6.1f} s {:>6.1f} s {:>6.1f} s  {}{}{}\n", Seconds(fault.at_ns),
                        ChaosKindName(fault.kind), ChaosTargetName(fault, sites), Seconds(fault.duration_ns),
                        Seconds(outcome.cost_ns), Seconds(ChaosBarNs(fault, sites.size())),
                        IsMissed(outcome, sites.size()) ? "MISSED" : "ok",
                        !fault.kills             ? ""
                        : IsOfCoordinator(fault) ? ", coordinator killed"
                                                 : ", worker killed",
                        outcome.failed_calls > 0 ? fmt::format(", {} calls failed", outcome.failed_calls) : "");
  }
  text += fmt::format("{:<15} {:>6} {:>12} {:>19}\n", "kind", "count", "median cost", "worst over its bar");
  for (const Kind kind : kChaosKinds) {
    std::vector<int64_t> costs;
    int64_t worst_ns = std::numeric_limits<int64_t>::min();
    for (const ChaosOutcome& outcome : run.outcomes) {
      if (outcome.fault.kind == kind) {
        costs.push_back(outcome.cost_ns);
        worst_ns = std::max(worst_ns, outcome.cost_ns - ChaosBarNs(outcome.fault, sites.size()));
      }
    }
    if (!costs.empty()) {
      text += fmt::format("{:<15} {:>6} {:>10.1f} s {:>17.1f} s\n", ChaosKindName(kind), costs.size(),
                          Seconds(MedianNs(costs)), Seconds(worst_ns));
    }
  }
  return text;
}

size_t ChaosMissed(const ChaosRun& run, size_t sites) {
  return static_cast<size_t>(
      std::ranges::count_if(run.outcomes, [&](const ChaosOutcome& outcome) { return IsMissed(outcome, sites); }));
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
  for (const ChaosOutcome& outcome : run.outcomes) {
    const ChaosFault& fault = outcome.fault;
    std::string& row = rows[RowOf(fault, sites)];
    for (size_t i = column(fault.at_ns); i <= column(fault.at_ns + fault.duration_ns); ++i) {
      row[i] = i == column(fault.at_ns) ? ChaosLetter(fault.kind) : row[i] == ' ' ? '-' : row[i];
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
    const int64_t end_ns = i + 1 < run.samples.size() ? run.samples[i + 1].at_ns : sample.at_ns + kLastSampleNs;
    box(x(sample.at_ns), x(end_ns), 0, sample.heard ? "#1b9e77" : "#bbbbbb");
  }
  for (const auto& [begun_ns, ended_ns] : Recoveries(run)) {
    box(x(begun_ns), std::max(x(begun_ns) + 2, x(ended_ns)), 0, "#d95f02");
  }
  for (size_t i = 0; i < names.size(); ++i) {
    label(8, i + 1, names[i]);
    box(kLeft, kLeft + kWidth, i + 1, i % 2 == 0 ? "#f4f4f4" : "#fafafa");
  }
  for (const ChaosOutcome& outcome : run.outcomes) {
    const ChaosFault& fault = outcome.fault;
    constexpr std::array<const char*, kChaosKinds.size()> kColors{
        "#b2182b", "#e6ab02", "#a6761d", "#7570b3", "#66a61e", "#1f78b4", "#6a3d9a", "#e7298a", "#fb9a99", "#000000"};
    const size_t row = RowOf(fault, sites) + 1;
    const double from = x(fault.at_ns);
    box(from, std::max(from + 4, x(fault.at_ns + fault.duration_ns)), row, kColors[static_cast<size_t>(fault.kind)]);
  }
  for (int64_t minute = 0; static_cast<double>(minute) * 60e9 <= span_ns; minute += 5) {
    label(x(minute * 60 * kSecond), names.size() + 1, fmt::format("{} min", minute));
  }
  label(
      8, names.size() + 2,
      "job: green trains, orange recovers, grey: the coordinator does not answer; red: killed, yellow: stopped, brown: "
      "keeper stopped, violet: link cut, light green: disk full, blue: no descriptors, purple: no fork, pink: EIO, "
      "light pink: ESTALE, black: store restored");
  return svg + "</svg>\n";
}

}  // namespace geopipe
