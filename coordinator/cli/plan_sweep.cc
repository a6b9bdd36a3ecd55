#include "coordinator/cli/plan_sweep.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "coordinator/cli/progress.h"
#include "coordinator/cli/render/format.h"
#include "coordinator/cli/render/sweep_svg.h"
#include "coordinator/cli/render/winner_map.h"
#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/job_spec.h"
#include "runtime/base/output.h"
#include "runtime/base/terminal.h"

namespace geopipe {
namespace {

absl::Status Wrong(std::string_view text, std::string_view why) {
  return absl::InvalidArgumentError(fmt::format("--sweep {}: {}", text, why));
}

absl::StatusOr<SweepKey> ParseKey(std::string_view name) {
  for (const SweepKey key : {SweepKey::kBandwidth, SweepKey::kLatency, SweepKey::kDeltaN}) {
    if (name == SweepKeyName(key)) {
      return key;
    }
  }
  return absl::InvalidArgumentError(fmt::format("'{}' cannot be swept; use bandwidth, latency or delta_n", name));
}

absl::StatusOr<double> ParseValue(SweepKey key, std::string_view text) {
  if (key == SweepKey::kBandwidth) {
    return ParseBandwidth(text);
  }
  if (key == SweepKey::kLatency) {
    GP_ASSIGN_OR_RETURN(const int64_t latency_ns, ParseDuration(text));
    return static_cast<double>(latency_ns);
  }
  GP_ASSIGN_OR_RETURN(const int64_t delta_n, ParseInteger(text));
  if (delta_n < 0 || delta_n > kMaxDeltaN) {
    return absl::InvalidArgumentError(fmt::format("ΔN is {}; it must be from 0 to {}", delta_n, kMaxDeltaN));
  }
  return static_cast<double>(delta_n);
}

absl::StatusOr<SweepAxis> ParseAxis(std::string_view text, int32_t steps) {
  const size_t equals = text.find('=');
  const size_t dots = text.find("..");
  if (equals == std::string_view::npos || dots == std::string_view::npos || dots < equals ||
      text.substr(dots + 2).starts_with('.')) {
    return absl::InvalidArgumentError(
        "it must name a figure, its first value and its last, like bandwidth=10Gbps..400Gbps");
  }
  GP_ASSIGN_OR_RETURN(const SweepKey key, ParseKey(text.substr(0, equals)));
  GP_ASSIGN_OR_RETURN(const double low, ParseValue(key, text.substr(equals + 1, dots - equals - 1)));
  GP_ASSIGN_OR_RETURN(const double high, ParseValue(key, text.substr(dots + 2)));
  return MakeSweepAxis(key, low, high, steps);
}

absl::StatusOr<std::vector<int32_t>> ParseSteps(std::string_view text, size_t sweeps) {
  if (text.empty()) {
    return std::vector<int32_t>(sweeps, 0);
  }
  std::vector<int32_t> steps;
  for (const std::string& part : Split(text, ',')) {
    int32_t& value = steps.emplace_back();
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (error != std::errc() || end != part.data() + part.size() || value < 1) {
      return absl::InvalidArgumentError(fmt::format("--steps {}: '{}' is not a number from 1 on", text, part));
    }
  }
  if (steps.size() == 1) {
    steps.assign(sweeps, steps.front());
  }
  if (steps.size() != sweeps) {
    return absl::InvalidArgumentError(fmt::format(
        "--steps {}: {} numbers for {} sweeps; give one for all or one for each", text, steps.size(), sweeps));
  }
  return steps;
}

// "geopipe,auto"; empty for nothing. A comma at the end is passed over.
std::vector<std::string> SplitNames(std::string_view text) {
  std::vector<std::string> names = Split(text, ',');
  if (names.back().empty()) {
    names.pop_back();
  }
  return names;
}

absl::Status CheckFlags(const SweepFlags& flags, const TimelineFlags& timeline) {
  if (timeline.gantt || !timeline.export_trace.empty()) {
    return absl::InvalidArgumentError(fmt::format("{} shows one plan and --sweep makes many; leave one of them out",
                                                  timeline.gantt ? "--gantt" : "--export-trace"));
  }
  std::set<ScheduleKind> seen;
  const std::vector<std::string> names = SplitNames(flags.schedules);
  for (const std::string& schedule : names) {
    if (std::ranges::count(names, schedule) > 1) {
      return absl::InvalidArgumentError(
          fmt::format("--sweep-schedules {}: {} is there twice; name each once", flags.schedules, schedule));
    }
    const absl::StatusOr<ScheduleKind> kind = ParseScheduleKind(schedule);
    if (!kind.ok()) {
      return absl::InvalidArgumentError(
          fmt::format("--sweep-schedules {}: {}", flags.schedules, std::string(kind.status().message())));
    }
    if (!seen.insert(*kind).second) {
      return absl::InvalidArgumentError(
          fmt::format("--sweep-schedules {}: names {} twice; name it once", flags.schedules, schedule));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Sweep> MakeSweep(const SweepFlags& flags, const TimelineFlags& timeline, PlanRequest request,
                                Clock& clock) {
  GP_RETURN_IF_ERROR(CheckFlags(flags, timeline));
  SweepRequest sweep;
  GP_ASSIGN_OR_RETURN(sweep.axes, ParseSweeps(flags.sweeps, flags.steps));
  sweep.schedules = SplitNames(flags.schedules);
  if (sweep.schedules.empty()) {
    sweep.schedules = {std::string(ScheduleKindName(request.job.search.schedule))};  // the points are the job's plans
  }
  int64_t deadline_ns = 0;
  request.should_stop = [&clock, &deadline_ns] { return clock.NowNs() >= deadline_ns; };
  sweep.base = std::move(request);
  sweep.alternatives = true;
  int64_t points = 1;
  for (const SweepAxis& axis : sweep.axes) {
    points *= std::ssize(axis.values);
  }
  ProgressMeter progress;
  progress.Begin({.what = "sweep", .points = points});
  sweep.progress = [&](int64_t done, int64_t total) {
    deadline_ns = clock.NowNs() + sweep.base.job.search.time_budget_ns;
    progress.Did(done, total);
  };
  return RunSweep(sweep);
}

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
  const size_t keys = headings.size();
  const bool advances = std::ranges::any_of(sweep.points, [](const SweepPoint& point) {
    return std::ranges::any_of(
        point.results, [](const SweepResult& result) { return result.feasible && !DeltaNText(result.plan).empty(); });
  });
  headings.insert(headings.end(), {"B", "S"});
  if (advances) {
    headings.emplace_back("PLAN ΔN");
  }
  headings.insert(headings.end(), {"ITERATION", "BUBBLE", "1F1B SAME", "BUBBLE", "BUBBLE SAVED", "TIME SAVED",
                                   "1F1B BEST", "TIME SAVED", ""});
  Table table(headings, keys);
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
        row.insert(row.end(),
                   {fmt::format("{}", result.plan.micro_batch_size), fmt::format("{}", result.plan.sequence_length)});
        if (advances) {
          const std::string delta_n = DeltaNText(result.plan);
          row.push_back(delta_n.empty() ? "-" : delta_n);
        }
        row.insert(row.end(), {Iteration(result.prediction.iteration_ns), HumanPercent(result.prediction.bubble_ratio),
                               Iteration(result.same.iteration_ns), HumanPercent(result.same.bubble_ratio),
                               HumanPercent(result.BubbleReduction()), HumanPercent(result.Gain()),
                               Iteration(result.best.iteration_ns), HumanPercent(result.GainOverBest()),
                               sweep.points[i].Best() == schedule && IsKnee(sweep, i) ? "< knee" : ""});
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

// One line for rows of a grid that follow each other with the same knee.
std::string Knees(const Sweep& sweep) {
  const SweepAxis& axis = sweep.axes.back();
  const std::string_view name = SweepKeyName(axis.key);
  const std::string_view more = axis.key == SweepKey::kLatency ? "less" : "more";
  const size_t rows = sweep.axes.size() == 2 ? sweep.axes.front().values.size() : 1;
  std::string text;
  for (size_t first = 0, end = 0; first < rows; first = end) {
    const std::string knee = KneeText(sweep, first);
    while (end < rows && KneeText(sweep, end) == knee) {
      ++end;
    }
    std::string at;
    if (sweep.axes.size() == 2) {
      const SweepAxis& other = sweep.axes.front();
      const std::string low = SweepValueText(other.key, other.values[first]);
      const std::string high = SweepValueText(other.key, other.values[end - 1]);
      at = end - first == rows ? fmt::format(" at every {}", SweepKeyName(other.key))
           : end - first == 1  ? fmt::format(" at {} {}", SweepKeyName(other.key), low)
                               : fmt::format(" at {} {} to {}", SweepKeyName(other.key), low, high);
    }
    text += knee.empty() ? fmt::format("knee: none in this range{}; {} {} still helps at its end\n", at, more, name)
                         : fmt::format("knee: {} {}{}; {} saves less than {:.0f} % of the iteration\n", name, knee, at,
                                       more, 100 * kKneeTolerance);
  }
  return text;
}

// The last five columns, each with a comma before it.
std::string AlternativesCsv(const SweepPoint& point) {
  if (!point.alternatives.has_value()) {
    return ",,,,,";
  }
  std::string csv;
  for (const AlternativeKind kind :
       {AlternativeKind::kSingleSite, AlternativeKind::kSiteReplicas, AlternativeKind::kLocalSteps}) {
    const Alternative& alternative = point.alternatives->Of(kind);
    csv += alternative.found() ? fmt::format(",{:.9g}", Seconds(alternative.iteration_ns)) : ",";
  }
  const std::optional<Lead> lead = LeadOf(*point.alternatives);
  return csv + fmt::format(",{},{}", lead.has_value() ? AlternativeName(lead->kind) : "",
                           lead.has_value() && lead->saved.has_value() ? fmt::format("{:.6g}", *lead->saved) : "");
}

// Iteration time of each kind; null where there is none.
Json AlternativesToJson(const Alternatives& alternatives) {
  Json json = Json::object();
  for (const Alternative& each : alternatives.all) {
    json[std::string(AlternativeName(each.kind))] = each.found() ? Json(Seconds(each.iteration_ns)) : Json(nullptr);
  }
  return json;
}

Json BaselineToJson(const Baseline& baseline) {
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

absl::StatusOr<std::vector<SweepAxis>> ParseSweeps(std::span<const std::string> texts, std::string_view steps) {
  if (texts.size() > 2) {
    return Wrong(texts[2], "a third figure; at most two can be swept at once");
  }
  GP_ASSIGN_OR_RETURN(const std::vector<int32_t> counts, ParseSteps(steps, texts.size()));
  std::vector<SweepAxis> axes;
  for (size_t i = 0; i < texts.size(); ++i) {
    absl::StatusOr<SweepAxis> axis = ParseAxis(texts[i], counts[i]);
    if (!axis.ok()) {
      return Wrong(texts[i], std::string(axis.status().message()));
    }
    if (!axes.empty() && axes.front().key == axis->key) {
      return Wrong(texts[i], "this figure is swept already; a grid needs two different ones");
    }
    axes.push_back(*std::move(axis));
  }
  return axes;
}

std::string SweepText(const Sweep& sweep, int32_t columns) {
  std::string text = fmt::format(
      "{}\n1F1B BEST: blocking 1F1B with the b, s and layers that suit it at each point, the baseline of a sweep\n"
      "1F1B SAME: with the b, s and layers of that row's plan, so it may also change where the plan does\n{}",
      PointTable(sweep).Render(columns), Knees(sweep));
  for (size_t schedule = 0; schedule < sweep.schedules.size(); ++schedule) {
    const SweepSummary summary = Summarize(sweep, schedule);
    if (summary.feasible == 0) {
      continue;
    }
    text += fmt::format(
        "{} saves at most {:.2f} % of blocking 1F1B's bubble ({}) and on average {:.2f} % of its iteration time at the "
        "same b, s and layers; {:.2f} % on average against 1F1B at its own best b and s\n",
        sweep.schedules[schedule], 100 * summary.greatest_bubble_reduction, Where(sweep, summary.greatest_point),
        100 * summary.mean_gain, 100 * summary.mean_gain_over_best);
  }
  for (size_t i = 0; i < sweep.points.size(); ++i) {
    if (!sweep.points[i].Best().has_value()) {
      text += fmt::format("no plan at {}: {}\n", Where(sweep, i), sweep.points[i].results.front().reason);
      break;  // the others' reasons are alike
    }
  }
  const std::string winners = WinnersText(sweep, columns);
  return WrapLines(winners.empty() ? text : fmt::format("{}\n{}", text, winners), columns);
}

std::string SweepCsv(const Sweep& sweep) {
  std::string csv;
  for (const SweepAxis& axis : sweep.axes) {
    csv += fmt::format("{},", axis.key == SweepKey::kDeltaN ? "swept_delta_n" : ColumnName(axis.key));
  }
  csv +=
      "searched,schedule,micro_batch_size,sequence_length,delta_n,iteration_s,bubble_ratio,lower_bound_s,"
      "same_1f1b_iteration_s,same_1f1b_bubble_ratio,best_1f1b_micro_batch_size,best_1f1b_sequence_length,"
      "best_1f1b_iteration_s,best_1f1b_bubble_ratio,bubble_reduction,gain,gain_over_best,knee,"
      "single_site_iteration_s,site_replicas_iteration_s,local_steps_iteration_s,fastest,fastest_saves\n";
  for (size_t i = 0; i < sweep.points.size(); ++i) {
    const SweepPoint& point = sweep.points[i];
    for (size_t schedule = 0; schedule < sweep.schedules.size(); ++schedule) {
      for (size_t axis = 0; axis < sweep.axes.size(); ++axis) {
        csv += fmt::format("{:.9g},", BaseUnits(sweep.axes[axis].key, point.at[axis]));
      }
      const SweepResult& result = point.results[schedule];
      csv += sweep.schedules[schedule];
      if (!result.feasible) {
        csv += fmt::format(",,,,,,,,,,,,,,,,,{}\n", AlternativesCsv(point));
        continue;
      }
      csv += fmt::format(
          ",{},{},{},{},{:.9g},{:.6g},{:.9g},{:.9g},{:.6g},{},{},{:.9g},{:.6g},{:.6g},{:.6g},{:.6g},{}{}\n",
          ScheduleKindName(result.plan.schedule), result.plan.micro_batch_size, result.plan.sequence_length,
          fmt::join(result.plan.delta_n, " "), Seconds(result.prediction.iteration_ns), result.prediction.bubble_ratio,
          Seconds(result.prediction.lower_bound_ns), Seconds(result.same.iteration_ns), result.same.bubble_ratio,
          result.best.micro_batch_size, result.best.sequence_length, Seconds(result.best.iteration_ns),
          result.best.bubble_ratio, result.BubbleReduction(), result.Gain(), result.GainOverBest(),
          point.Best() == schedule && IsKnee(sweep, i) ? 1 : 0, AlternativesCsv(point));
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
    if (point.alternatives.has_value()) {
      const std::optional<Lead> lead = LeadOf(*point.alternatives);
      row["alternatives_s"] = AlternativesToJson(*point.alternatives);
      row["fastest"] = lead.has_value() ? Json(AlternativeName(lead->kind)) : Json(nullptr);
      row["fastest_saves"] = lead.has_value() && lead->saved.has_value() ? Json(*lead->saved) : Json(nullptr);
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

void SweepFlags::Add(FlagSet& flags) {
  flags.Add("sweep", &sweeps, "KEY=FIRST..LAST",
            "Plan for many values of one figure: bandwidth=10Gbps..400Gbps or latency=0.5ms..50ms (of every link), or "
            "delta_n=0..16 (at every crossing). Twice with different figures: a grid. --export-csv and --export-svg "
            "then write the sweep.");
  flags.Add("steps", &steps, "N[,N]",
            "Values of each sweep, in equal ratios (ΔN: in equal steps); 13, and every ΔN, if not given.");
  flags.Add("sweep-schedules", &schedules, "NAME[,NAME…]",
            "Schedules that a sweep searches for; the job's if not given.");
}

absl::StatusOr<int> RunPlanSweep(const SweepFlags& flags, const TimelineFlags& timeline, PlanRequest request,
                                 Clock& clock, OutputFormat output) {
  const std::string job = request.job.name;
  GP_ASSIGN_OR_RETURN(const Sweep sweep, MakeSweep(flags, timeline, std::move(request), clock));
  if (!timeline.export_csv.empty()) {
    GP_RETURN_IF_ERROR(OrFailed(WriteOutputFile(timeline.export_csv, SweepCsv(sweep))));
  }
  if (!timeline.export_svg.empty()) {
    GP_RETURN_IF_ERROR(OrFailed(
        WriteOutputFile(timeline.export_svg,
                        SweepToSvg(sweep, fmt::format("{}: {} against 1F1B", job, fmt::join(sweep.schedules, ", "))))));
  }
  if (timeline.to_standard_output()) {
    return kExitOk;
  }
  if (output == OutputFormat::kTable || output == OutputFormat::kWide) {
    PrintOut("{}", SweepText(sweep, TextColumns()));
  } else {
    PrintDocument(SweepToJson(sweep), output);
  }
  return kExitOk;
}

}  // namespace geopipe
