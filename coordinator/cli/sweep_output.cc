#include "coordinator/cli/sweep_output.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "coordinator/cli/format.h"
#include "coordinator/cli/render/sweep_svg.h"

namespace geopipe {
namespace {

size_t Columns(const Sweep& sweep) { return sweep.axes.back().values.size(); }

bool IsKnee(const Sweep& sweep, size_t point) {
  return KneeOf(sweep, point / Columns(sweep)) == std::optional<size_t>(point % Columns(sweep));
}

// The swept figure in base units.
std::string ColumnName(SweepKey key) {
  return key == SweepKey::kBandwidth ? "bandwidth_bytes_per_s" : key == SweepKey::kLatency ? "latency_s" : "delta_n";
}

double BaseUnits(SweepKey key, double value) { return key == SweepKey::kLatency ? value / 1e9 : value; }

// Comparable at a glance down a column: three decimals, never minutes.
std::string Iteration(int64_t ns) {
  return ns >= 1'000'000'000 ? fmt::format("{:.3f} s", Seconds(ns)) : HumanDuration(ns);
}

std::string Heading(SweepKey key) {
  return key == SweepKey::kBandwidth ? "BANDWIDTH" : key == SweepKey::kLatency ? "LATENCY" : "ΔN";
}

Table PointTable(const Sweep& sweep) {
  std::vector<std::string> headings;
  for (const SweepAxis& axis : sweep.axes) {
    headings.push_back(Heading(axis.key));
  }
  const bool several = sweep.schedules.size() > 1;
  if (several) {
    headings.emplace_back("SEARCHED");
  }
  for (const std::string_view name : {"B", "S", "PLAN ΔN", "ITERATION", "BUBBLE", "1F1B", "BUBBLE", "BUBBLE SAVED",
                                      "TIME SAVED", "1F1B BEST", "TIME SAVED", ""}) {
    headings.emplace_back(name);
  }
  Table table(headings);
  for (size_t i = 0; i < sweep.points.size(); ++i) {
    for (size_t schedule = 0; schedule < sweep.schedules.size(); ++schedule) {
      const SweepResult& result = sweep.points[i].results[schedule];
      std::vector<std::string> row;
      for (size_t axis = 0; axis < sweep.axes.size(); ++axis) {
        row.push_back(SweepValueText(sweep.axes[axis].key, sweep.points[i].at[axis]));
      }
      if (several) {
        row.push_back(sweep.schedules[schedule]);
      }
      if (result.feasible) {
        for (std::string& cell : std::vector<std::string>{
                 fmt::format("{}", result.plan.micro_batch_size), fmt::format("{}", result.plan.sequence_length),
                 FormatList(result.plan.delta_n), Iteration(result.prediction.iteration_ns),
                 HumanPercent(result.prediction.bubble_ratio), Iteration(result.same.iteration_ns),
                 HumanPercent(result.same.bubble_ratio), HumanPercent(result.BubbleReduction()),
                 HumanPercent(result.Gain()), Iteration(result.best.iteration_ns), HumanPercent(result.GainOverBest()),
                 schedule == 0 && IsKnee(sweep, i) ? "< knee" : ""}) {
          row.push_back(std::move(cell));
        }
      } else {
        row.resize(headings.size(), "-");
        row.back() = "no plan";
      }
      table.AddRow(std::move(row));
    }
  }
  return table;
}

std::string Where(const Sweep& sweep, size_t point) {
  std::vector<std::string> parts;
  for (size_t axis = 0; axis < sweep.axes.size(); ++axis) {
    parts.push_back(fmt::format("{} {}", SweepKeyName(sweep.axes[axis].key),
                                SweepValueText(sweep.axes[axis].key, sweep.points[point].at[axis])));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string Knees(const Sweep& sweep) {
  const SweepAxis& axis = sweep.axes.back();
  const std::string_view name = SweepKeyName(axis.key);
  const std::string_view more = axis.key == SweepKey::kLatency ? "less" : "more";
  std::string text;
  const size_t rows = sweep.axes.size() == 2 ? sweep.axes.front().values.size() : 1;
  for (size_t row = 0; row < rows; ++row) {
    const std::string at = sweep.axes.size() == 2
                               ? fmt::format("at {} {}: ", SweepKeyName(sweep.axes.front().key),
                                             SweepValueText(sweep.axes.front().key, sweep.axes.front().values[row]))
                               : "";
    const std::string knee = KneeText(sweep, row);
    text += knee.empty() ? fmt::format("knee: {}none in this range; {} {} still helps at its end\n", at, more, name)
                         : fmt::format("knee: {}{} {}; {} changes the iteration by less than {:.0f} % in all\n", at,
                                       name, knee, more, 100 * kKneeTolerance);
  }
  return text;
}

Json BaselineToJson(const SweepBaseline& baseline) {
  return {{"micro_batch_size", baseline.micro_batch_size},
          {"sequence_length", baseline.sequence_length},
          {"iteration_s", Seconds(baseline.iteration_ns)},
          {"bubble_ratio", baseline.bubble_ratio}};
}

Json ResultToJson(const SweepResult& result, const std::string& schedule) {
  if (!result.feasible) {
    return {{"searched", schedule}, {"feasible", false}, {"reason", result.reason}};
  }
  return {{"searched", schedule},
          {"feasible", true},
          {"schedule", ScheduleKindName(result.plan.schedule)},
          {"micro_batch_size", result.plan.micro_batch_size},
          {"sequence_length", result.plan.sequence_length},
          {"delta_n", result.plan.delta_n},
          {"iteration_s", Seconds(result.prediction.iteration_ns)},
          {"bubble_ratio", result.prediction.bubble_ratio},
          {"lower_bound_s", Seconds(result.prediction.lower_bound_ns)},
          {"blocking_1f1b_same", BaselineToJson(result.same)},
          {"blocking_1f1b_best", BaselineToJson(result.best)},
          {"bubble_reduction", result.BubbleReduction()},
          {"gain", result.Gain()},
          {"gain_over_best", result.GainOverBest()}};
}

}  // namespace

std::string SweepText(const Sweep& sweep) {
  std::string text = fmt::format("{}\n{}", PointTable(sweep).Render(), Knees(sweep));
  for (size_t schedule = 0; schedule < sweep.schedules.size(); ++schedule) {
    const SweepSummary summary = Summarize(sweep, schedule);
    if (summary.feasible == 0) {
      continue;
    }
    text += fmt::format(
        "{}: of blocking 1F1B's bubble at the same b, s and layers at most {:.2f} % is saved ({}); of its iteration "
        "time "
        "{:.2f} % in the mean, and {:.2f} % of that at 1F1B's own best b and s\n",
        sweep.schedules[schedule], 100 * summary.greatest_bubble_reduction, Where(sweep, summary.greatest_point),
        100 * summary.mean_gain, 100 * summary.mean_gain_over_best);
  }
  for (size_t i = 0; i < sweep.points.size(); ++i) {
    if (!sweep.points[i].results.front().feasible) {
      text += fmt::format("no plan at {}: {}\n", Where(sweep, i), sweep.points[i].results.front().reason);
      break;  // the others' reasons are alike
    }
  }
  return text;
}

std::string SweepCsv(const Sweep& sweep) {
  std::string csv;
  for (const SweepAxis& axis : sweep.axes) {
    csv += fmt::format("{},", axis.key == SweepKey::kDeltaN ? "swept_delta_n" : ColumnName(axis.key));
  }
  csv +=
      "searched,schedule,micro_batch_size,sequence_length,delta_n,iteration_s,bubble_ratio,lower_bound_s,"
      "same_1f1b_iteration_s,same_1f1b_bubble_ratio,best_1f1b_micro_batch_size,best_1f1b_sequence_length,"
      "best_1f1b_iteration_s,best_1f1b_bubble_ratio,bubble_reduction,gain,gain_over_best,knee\n";
  for (size_t i = 0; i < sweep.points.size(); ++i) {
    const SweepPoint& point = sweep.points[i];
    for (size_t schedule = 0; schedule < sweep.schedules.size(); ++schedule) {
      for (size_t axis = 0; axis < sweep.axes.size(); ++axis) {
        csv += fmt::format("{:.9g},", BaseUnits(sweep.axes[axis].key, point.at[axis]));
      }
      const SweepResult& result = point.results[schedule];
      csv += sweep.schedules[schedule];
      if (!result.feasible) {
        csv += ",,,,,,,,,,,,,,,,,\n";
        continue;
      }
      csv += fmt::format(
          ",{},{},{},{},{:.9g},{:.6g},{:.9g},{:.9g},{:.6g},{},{},{:.9g},{:.6g},{:.6g},{:.6g},{:.6g},{}\n",
          ScheduleKindName(result.plan.schedule), result.plan.micro_batch_size, result.plan.sequence_length,
          fmt::join(result.plan.delta_n, " "), Seconds(result.prediction.iteration_ns), result.prediction.bubble_ratio,
          Seconds(result.prediction.lower_bound_ns), Seconds(result.same.iteration_ns), result.same.bubble_ratio,
          result.best.micro_batch_size, result.best.sequence_length, Seconds(result.best.iteration_ns),
          result.best.bubble_ratio, result.BubbleReduction(), result.Gain(), result.GainOverBest(),
          schedule == 0 && IsKnee(sweep, i) ? 1 : 0);
    }
  }
  return csv;
}

Json SweepToJson(const Sweep& sweep) {
  Json axes = Json::array();
  for (const SweepAxis& axis : sweep.axes) {
    Json values = Json::array();
    for (const double value : axis.values) {
      values.push_back(BaseUnits(axis.key, value));
    }
    axes.push_back({{"key", ColumnName(axis.key)}, {"values", std::move(values)}});
  }
  Json points = Json::array();
  for (const SweepPoint& point : sweep.points) {
    Json row = Json::object();
    for (size_t axis = 0; axis < sweep.axes.size(); ++axis) {
      row[ColumnName(sweep.axes[axis].key)] = BaseUnits(sweep.axes[axis].key, point.at[axis]);
    }
    row["results"] = Json::array();
    for (size_t schedule = 0; schedule < sweep.schedules.size(); ++schedule) {
      row["results"].push_back(ResultToJson(point.results[schedule], sweep.schedules[schedule]));
    }
    points.push_back(std::move(row));
  }
  Json knees = Json::array();
  for (size_t row = 0; row * Columns(sweep) < sweep.points.size(); ++row) {
    const std::optional<size_t> knee = KneeOf(sweep, row);
    knees.push_back(knee.has_value() ? Json(BaseUnits(sweep.axes.back().key, sweep.axes.back().values[*knee]))
                                     : Json(nullptr));
  }
  Json summaries = Json::array();
  for (size_t schedule = 0; schedule < sweep.schedules.size(); ++schedule) {
    const SweepSummary summary = Summarize(sweep, schedule);
    summaries.push_back({{"searched", sweep.schedules[schedule]},
                         {"feasible_points", summary.feasible},
                         {"greatest_bubble_reduction", summary.greatest_bubble_reduction},
                         {"mean_gain", summary.mean_gain},
                         {"mean_gain_over_best", summary.mean_gain_over_best}});
  }
  return {{"axes", std::move(axes)},
          {"points", std::move(points)},
          {"knees", std::move(knees)},
          {"knee_tolerance", kKneeTolerance},
          {"summary", std::move(summaries)}};
}

}  // namespace geopipe
