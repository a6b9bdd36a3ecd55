#include "coordinator/cli/render/plan_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "coordinator/cli/render/format.h"
#include "optimizer/plan/space/choices.h"
#include "optimizer/schedule/schedule_table.h"

namespace geopipe {
namespace {

std::string LayersText(const LayerRange& layers) {
  std::string text = layers.count() == 0 ? "-" : fmt::format("{}-{}", layers.first, layers.last);
  if (layers.has_embedding) {
    text = "embedding, " + text;
  }
  if (layers.has_head) {
    text += ", head";
  }
  return text;
}

std::string_view PartName(ModelPart part) {
  static constexpr std::array<std::string_view, 3> kNames{"embedding", "block", "head"};
  return kNames[static_cast<size_t>(part)];
}

std::string_view ActionName(PartAction action) {
  static constexpr std::array<std::string_view, 3> kNames{"F", "I", "W"};
  return kNames[static_cast<size_t>(action)];
}

// With a single point, errors are 0 by construction.
bool HasResiduals(const SiteCostReport& report) {
  return report.residuals.points > 1 && report.residuals.Greatest() != nullptr;
}

std::string ResidualText(const SiteCostReport& report) {
  if (!HasResiduals(report)) {
    return "one point shows no residual";
  }
  const Residual& greatest = *report.residuals.Greatest();
  return fmt::format("mean residual {}, greatest {} ({} {} at b {}, s {}){}", HumanPercent(report.residuals.Mean()),
                     HumanPercent(std::abs(greatest.relative_error)), PartName(greatest.part),
                     ActionName(greatest.action), greatest.micro_batch_size, greatest.sequence_length,
                     report.residuals.left_out ? "" : ", both at points that the fit has seen");
}

// "b 1, s 128 and 2 more", the plan's own first.
std::string PointsText(const SiteCostReport& report, const SiteCostReport::Point& own) {
  const bool has_own = std::find(report.points.begin(), report.points.end(), own) != report.points.end();
  const SiteCostReport::Point& first = has_own ? own : report.points.front();
  const std::string more = report.points.size() > 1 ? fmt::format(" and {} more", report.points.size() - 1) : "";
  return fmt::format("b {}, s {}{}", first.micro_batch_size, first.sequence_length, more);
}

// Says how far the plan's micro-batches lie beyond all measured ones; empty when they do not.
std::string ExtrapolationText(const SiteCostReport& report, const Plan& plan) {
  int64_t max_tokens = 1;
  for (const SiteCostReport::Point& point : report.points) {
    max_tokens = std::max(max_tokens, point.micro_batch_size * point.sequence_length);
  }
  const int64_t tokens = plan.micro_batch_size * plan.sequence_length;
  return tokens <= max_tokens ? ""
                              : fmt::format("; {:.1f} times the most tokens measured",
                                            static_cast<double>(tokens) / static_cast<double>(max_tokens));
}

std::string SiteCostText(const SiteCostReport& report, const Plan& plan) {
  const SiteCostReport::Point own{plan.micro_batch_size, plan.sequence_length};
  switch (report.origin) {
    case CostOrigin::kMeasured:
      return fmt::format("measured at {}", PointsText(report, own));
    case CostOrigin::kCalibrated:
      return fmt::format("measured at {}; b {}, s {}, recompute {} from {}: {}", PointsText(report, own),
                         plan.micro_batch_size, plan.sequence_length, RecomputeText(plan),
                         report.points.size() > 1 ? "these" : "this",
                         ResidualText(report) + ExtrapolationText(report, plan));
    case CostOrigin::kCorrected:
      return fmt::format("as {}, the same kind of device, is measured at {}: {}", report.measured_site,
                         PointsText(report, own), ResidualText(report) + ExtrapolationText(report, plan));
    case CostOrigin::kAnalytic:
      break;
  }
  return "from the figures of its device, not measured";
}

std::vector<int32_t> DevicesOf(const Plan& plan, int32_t pipeline_rank) {
  std::vector<int32_t> devices;
  for (const DevicePlace& place : plan.DevicesOf(pipeline_rank)) {
    devices.push_back(place.device);
  }
  return devices;
}

// Nodes in the order of the ranks' places.
std::vector<int32_t> NodesOf(const Plan& plan, int32_t pipeline_rank) {
  std::vector<int32_t> nodes;
  for (const DevicePlace& place : plan.DevicesOf(pipeline_rank)) {
    if (nodes.empty() || nodes.back() != place.node) {
      nodes.push_back(place.node);
    }
  }
  return nodes;
}

// "0-7", "0,1".
std::string NumbersText(const std::vector<int32_t>& numbers) {
  const bool run = numbers.size() > 2 && numbers.back() - numbers.front() + 1 == static_cast<int32_t>(numbers.size());
  return run ? fmt::format("{}-{}", numbers.front(), numbers.back()) : FormatList(numbers);
}

// Device numbers of all nodes, where they are the same on each ("0-7"); else node by node ("4-7; 0-3").
std::string DevicesText(const Plan& plan, int32_t pipeline_rank) {
  std::vector<std::string> texts;
  for (const int32_t node : NodesOf(plan, pipeline_rank)) {
    std::vector<int32_t> devices;
    for (const DevicePlace& place : plan.DevicesOf(pipeline_rank)) {
      if (place.node == node) {
        devices.push_back(place.device);
      }
    }
    texts.push_back(NumbersText(devices));
  }
  const bool alike = std::ranges::count(texts, texts.front()) == std::ssize(texts);
  return alike ? texts.front() : fmt::format("{}", fmt::join(texts, "; "));
}

bool AreAlike(const Plan& plan, size_t a, size_t b) {
  const LayerRange& one = plan.stages[a].layers;
  const LayerRange& other = plan.stages[b].layers;
  const int32_t rank = plan.stages[a].pipeline_rank;
  const int32_t other_rank = plan.stages[b].pipeline_rank;
  return !one.has_embedding && !other.has_head && one.count() == other.count() &&
         plan.pipeline_ranks[rank].site == plan.pipeline_ranks[other_rank].site &&
         NodesOf(plan, rank).size() == NodesOf(plan, other_rank).size() &&
         plan.pipeline_ranks[rank].capacity_bytes == plan.pipeline_ranks[other_rank].capacity_bytes &&
         plan.pipeline_ranks[rank].recompute == plan.pipeline_ranks[other_rank].recompute &&
         DevicesText(plan, rank) == DevicesText(plan, other_rank);
}

// The row of stages [first, end), which are alike where there are several.
std::vector<std::string> StageRow(const Plan& plan, size_t first, size_t end) {
  const StagePlan& from = plan.stages[first];
  const StagePlan& to = plan.stages[end - 1];
  const PipelineRankPlan& rank = plan.pipeline_ranks[from.pipeline_rank];
  int64_t peak_bytes = 0;
  std::set<int32_t> nodes;
  for (size_t stage = first; stage < end; ++stage) {
    const int32_t each = plan.stages[stage].pipeline_rank;
    peak_bytes = std::max(peak_bytes, plan.pipeline_ranks[each].peak_bytes);
    const std::vector<int32_t> of_rank = NodesOf(plan, each);
    nodes.insert(of_rank.begin(), of_rank.end());
  }
  const bool several = end - first > 1;
  LayerRange layers = from.layers;
  layers.last = to.layers.last;
  const bool counted = peak_bytes > 0 && rank.capacity_bytes > 0;  // not under costs given without memory
  return {several ? fmt::format("{}-{}", first, end - 1) : fmt::format("{}", first),
          rank.site,
          NumbersText({nodes.begin(), nodes.end()}),
          DevicesText(plan, from.pipeline_rank),
          LayersText(layers) + (several ? fmt::format(", {} each", from.layers.count()) : ""),
          counted ? (several ? "≤ " : "") + HumanBytes(peak_bytes) : "-",
          HumanBytes(rank.capacity_bytes),
          counted ? (several ? "≤ " : "") + HumanPercent(Ratio(peak_bytes, rank.capacity_bytes)) : "-"};
}

// Ranges [first, end) of rows that follow each other and are alike, if there are more than three and rows are folded;
// otherwise one range per row.
template <typename T, typename Alike>
std::vector<std::pair<size_t, size_t>> RunsOf(const std::vector<T>& all, Rows rows, Alike alike) {
  constexpr size_t kMaxSpelledOut = 3;
  std::vector<std::pair<size_t, size_t>> runs;
  for (size_t first = 0, end = 0; first < all.size(); first = end) {
    while (end < all.size() && alike(all[first], all[end])) {
      ++end;
    }
    if (rows == Rows::kFolded && end - first > kMaxSpelledOut) {
      runs.emplace_back(first, end);
      continue;
    }
    for (size_t each = first; each < end; ++each) {
      runs.emplace_back(each, each + 1);
    }
  }
  return runs;
}

// One line for nodes that follow each other and are idle alike, and, folded, for such sites.
std::string IdleText(const Plan& plan, Rows rows) {
  struct Idle {
    std::string site;
    std::string what;
  };
  std::vector<Idle> all;
  for (size_t first = 0, end = 0; first < plan.idle.size(); first = end) {
    const IdleDevices& idle = plan.idle[first];
    std::vector<int32_t> nodes;
    for (; end < plan.idle.size() && plan.idle[end].site == idle.site && plan.idle[end].devices == idle.devices;
         ++end) {
      nodes.push_back(plan.idle[end].node);
    }
    all.push_back({idle.site, fmt::format("{} {}, devices {}", nodes.size() == 1 ? "node" : "nodes", NumbersText(nodes),
                                          NumbersText(idle.devices))});
  }
  std::string text;
  for (const auto& [first, end] : RunsOf(all, rows, [](const Idle&a, const Idle&b) { return a.what == b.what; })) {
    std::vector<std::string> sites;
    for (size_t each = first; each < end; ++each) {
      sites.push_back(all[each].site);
    }
    text += fmt::format("idle: {} {}, {}\n", sites.size() > 1 ? "sites" : "site", NamesText(sites), all[first].what);
  }
  return text;
}

// "512 million", "25.9 billion", "2.10 trillion".
std::string ManyText(double count) {
  const auto digits = [](double value) {
    return fmt::format("{:.{}f}", value, value < 9.995 ? 2 : (value < 99.95 ? 1 : 0));
  };
  return count >= 1e12  ? fmt::format("{} trillion", digits(count / 1e12))
         : count >= 1e9 ? fmt::format("{} billion", digits(count / 1e9))
                        : fmt::format("{} million", digits(count / 1e6));
}

}  // namespace

std::string JobDuration(double seconds) {
  constexpr double kDay = 86'400;
  return seconds >= 3 * kDay ? fmt::format("{:.1f} days", seconds / kDay)
                             : HumanAge(static_cast<int64_t>(seconds * 1e9));
}

Json PlanToJson(const Plan& plan) {
  Json stages = Json::array();
  for (const StagePlan& stage : plan.stages) {
    const PipelineRankPlan& rank = plan.pipeline_ranks[stage.pipeline_rank];
    stages.push_back({{"index", stages.size()},
                      {"pipeline_rank", stage.pipeline_rank},
                      {"site", rank.site},
                      {"node", plan.DevicesOf(stage.pipeline_rank).front().node},
                      {"nodes", NodesOf(plan, stage.pipeline_rank)},
                      {"layers", {stage.layers.first, stage.layers.last}},
                      {"devices", DevicesOf(plan, stage.pipeline_rank)},
                      {"peak_bytes", rank.peak_bytes},
                      {"capacity_bytes", rank.capacity_bytes},
                      {"recompute", RecomputeName(rank.recompute)}});
  }
  Json idle = Json::array();
  for (const IdleDevices& devices : plan.idle) {
    idle.push_back({{"site", devices.site}, {"node", devices.node}, {"devices", devices.devices}});
  }
  return {{"schedule", ScheduleKindName(plan.schedule)},
          {"comm", CommModeName(plan.comm)},
          {"micro_batch_size", plan.micro_batch_size},
          {"sequence_length", plan.sequence_length},
          {"delta_n", plan.delta_n},
          {"micro_batches", plan.micro_batches},
          {"recompute", RecomputeWord(plan)},
          {"zero_stage", plan.zero_stage},
          {"stages", std::move(stages)},
          {"idle", std::move(idle)},
          {"tensor", plan.grid.tensor},
          {"data", plan.grid.data}};
}

Json PredictionToJson(const Prediction& prediction) {
  return {{"iteration_s", Seconds(prediction.iteration_ns)},
          {"bubble_ratio", prediction.bubble_ratio},
          {"lower_bound_s", Seconds(prediction.lower_bound_ns)},
          {"tokens_per_s", prediction.tokens_per_s},
          {"wan_bytes_per_iteration", prediction.wan_bytes_per_iteration}};
}

Json BaselinesToJson(const std::vector<Baseline>& baselines) {
  Json rows = Json::array();
  for (const Baseline& baseline : baselines) {
    Json row{{"schedule", ScheduleKindName(baseline.schedule)},
             {"comm", CommModeName(baseline.comm)},
             {"scope", BaselineScopeName(baseline.scope)}};
    if (!baseline.site.empty()) {
      row["site"] = baseline.site;
    }
    row["micro_batch_size"] = baseline.micro_batch_size;
    row["sequence_length"] = baseline.sequence_length;
    row["iteration_s"] = Seconds(baseline.iteration_ns);
    row["bubble_ratio"] = baseline.bubble_ratio;
    row["fits"] = baseline.fits;
    rows.push_back(std::move(row));
  }
  return rows;
}

Json CostReportsToJson(const std::vector<SiteCostReport>& reports) {
  Json rows = Json::array();
  for (const SiteCostReport& report : reports) {
    Json row{{"site", report.site}, {"source", CostOriginName(report.origin)}};
    if (report.origin == CostOrigin::kCorrected) {
      row["measured_site"] = report.measured_site;
    }
    row["observations"] = report.points.size();
    row["mean_residual"] = nullptr;
    row["greatest_residual"] = nullptr;
    if (HasResiduals(report)) {
      const Residual& greatest = *report.residuals.Greatest();
      row["mean_residual"] = report.residuals.Mean();
      row["greatest_residual"] = std::abs(greatest.relative_error);
      row["greatest_at"] = {{"part", PartName(greatest.part)},
                            {"action", ActionName(greatest.action)},
                            {"micro_batch_size", greatest.micro_batch_size},
                            {"sequence_length", greatest.sequence_length}};
      row["left_out"] = report.residuals.left_out;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string_view ScheduleTitle(ScheduleKind kind) {
  return kind == ScheduleKind::kAuto ? "made to measure" : ScheduleKindName(kind);
}

std::string DeltaNText(const Plan& plan) {
  const bool has_delta_n = RowOf(plan.schedule).uses_delta_n || plan.schedule == ScheduleKind::kAuto;
  return has_delta_n && plan.StagesPerRank() <= 1 && !plan.delta_n.empty() ? FormatRuns(plan.delta_n) : "";
}

std::string PlanHeadline(const Plan& plan) {
  const std::string delta_n = DeltaNText(plan);
  const std::string zero = plan.grid.data > 1 ? fmt::format(", ZeRO {}", plan.zero_stage) : "";
  return fmt::format("{}{}{}, {} micro-batches of {} × {} tokens, {}, recompute {}{}", ScheduleTitle(plan.schedule),
                     delta_n.empty() ? "" : ", ΔN ", delta_n, plan.micro_batches, plan.micro_batch_size,
                     plan.sequence_length, CommModeName(plan.comm), RecomputeText(plan), zero);
}

std::string StageTable(const Plan& plan, View view) {
  constexpr size_t kMaxSpelledOut = 12;
  const bool folds = view.rows == Rows::kFolded && plan.stages.size() > kMaxSpelledOut;
  Table table({"STAGE", "SITE", "NODE", "DEVICES", "LAYERS", "PEAK", "CAPACITY", "USED"});
  for (size_t first = 0, end = 0; first < plan.stages.size(); first = end) {
    end = first + 1;
    while (folds && end < plan.stages.size() && AreAlike(plan, first, end)) {
      ++end;
    }
    table.AddRow(StageRow(plan, first, end));
  }
  return table.Render(view.columns) + IdleText(plan, view.rows);
}

std::string WarningText(const std::vector<std::string>& warnings) {
  std::string text;
  for (const std::string& warning : warnings) {
    text += fmt::format("warning       {}\n", warning);
  }
  return text;
}

std::string PredictionText(const Prediction& prediction) {
  return fmt::format(
      "iteration     {} ({} above the lower bound of {})\n"
      "bubble        {}\n"
      "throughput    {} tokens/s, {} a day\n"
      "across sites  {} per iteration\n",
      HumanDuration(prediction.iteration_ns), HumanPercent(Excess(prediction.iteration_ns, prediction.lower_bound_ns)),
      HumanDuration(prediction.lower_bound_ns), HumanPercent(prediction.bubble_ratio),
      HumanCount(static_cast<int64_t>(prediction.tokens_per_s)), ManyText(86'400 * prediction.tokens_per_s),
      HumanBytes(prediction.wan_bytes_per_iteration));
}

namespace {

std::string SpeedText(double flops_per_s) {
  const bool is_small = flops_per_s < 1e12;
  return fmt::format("{:.0f} {}FLOP/s", flops_per_s / (is_small ? 1e9 : 1e12), is_small ? 'G' : 'T');
}

}  // namespace

std::string FiguresText(const PlanFigures& figures, View view) {
  std::string text =
      fmt::format("devices       {} of {} in use", HumanCount(figures.used()), HumanCount(figures.devices()));
  if (figures.mfu > 0) {
    text += fmt::format(", {} each, {} of their peak (MFU)", SpeedText(figures.flops_per_device_per_s),
                        HumanPercent(figures.mfu));
  }
  text += "\n";
  const auto alike = [](const SiteUse& a, const SiteUse& b) {
    return std::tie(a.devices, a.used, a.reason) == std::tie(b.devices, b.used, b.reason);
  };
  for (const auto& [first, end] : RunsOf(figures.sites, view.rows, alike)) {
    const SiteUse& use = figures.sites[first];
    std::vector<std::string> names;
    for (size_t each = first; each < end; ++each) {
      names.push_back(figures.sites[each].site);
    }
    const std::string who =
        names.size() > 1 ? fmt::format("each of {} sites ({})", names.size(), NamesText(names)) : use.site;
    if (use.used == 0) {
      text += fmt::format("left out      {} with {} {}: {}\n", who, HumanCount(use.devices),
                          use.devices == 1 ? "device" : "devices", use.reason);
    } else if (use.used < use.devices) {
      text += fmt::format("idle          {} of {} devices at {}: {}\n", HumanCount(use.devices - use.used),
                          HumanCount(use.devices), who, use.reason);
    }
  }
  if (figures.cluster_bound_ns > 0) {
    text += fmt::format("cluster bound {}: no plan for this job on this cluster takes less; this one takes {} more\n",
                        HumanDuration(figures.cluster_bound_ns), HumanPercent(figures.above_cluster_bound));
  }
  if (figures.work_ns > 0) {
    text += fmt::format("plain work    {} on all devices at their stated efficiency\n", HumanDuration(figures.work_ns));
  }
  text += fmt::format(
      "job           {}, {} tokens, in {}: {} device-hours\n",
      fmt::format("{} {}", HumanCount(figures.iterations), figures.iterations == 1 ? "iteration" : "iterations"),
      ManyText(static_cast<double>(figures.tokens)), JobDuration(figures.job_s),
      figures.device_hours < 10 ? fmt::format("{:.2f}", figures.device_hours)
                                : HumanCount(static_cast<int64_t>(figures.device_hours)));
  if (figures.evaluation_ns > 0) {
    text += fmt::format("evaluation    {} each, {} of the job's time\n", HumanDuration(figures.evaluation_ns),
                        HumanPercent(figures.evaluation_share));
  }
  const auto carry_alike = [](const LinkUse& a, const LinkUse& b) {
    return a.bytes_per_iteration == b.bytes_per_iteration && a.bandwidth_bytes_per_s == b.bandwidth_bytes_per_s;
  };
  for (const auto& [first, end] : RunsOf(figures.links, view.rows, carry_alike)) {
    const LinkUse& use = figures.links[first];
    std::vector<std::string> names;
    for (size_t each = first; each < end; ++each) {
      names.push_back(fmt::format("{} and {}", figures.links[each].site_a, figures.links[each].site_b));
    }
    text += fmt::format(
        "crossing      {}: {} each way per iteration, {} of {}\n",
        names.size() > 1 ? fmt::format("each of {} links ({})", names.size(), NamesText(names)) : names.front(),
        HumanBytes(use.bytes_per_iteration), HumanPercent(use.utilisation), HumanBandwidth(use.bandwidth_bytes_per_s));
  }
  return text;
}

Json FiguresToJson(const PlanFigures& figures) {
  Json sites = Json::array();
  for (const SiteUse& use : figures.sites) {
    sites.push_back({{"site", use.site}, {"devices", use.devices}, {"used", use.used}, {"reason", use.reason}});
  }
  Json links = Json::array();
  for (const LinkUse& use : figures.links) {
    links.push_back({{"between", {use.site_a, use.site_b}},
                     {"bytes_per_iteration", use.bytes_per_iteration},
                     {"bandwidth_Bps", use.bandwidth_bytes_per_s},
                     {"utilisation", use.utilisation}});
  }
  const auto known = [](double value) { return value > 0 ? Json(value) : Json(); };
  Json json{{"devices", figures.devices()},
            {"used", figures.used()},
            {"model_flops", figures.model_flops},
            {"flops_per_device_per_s", figures.flops_per_device_per_s},
            {"mfu", known(figures.mfu)},
            {"cluster_bound_s", figures.cluster_bound_ns > 0 ? Json(Seconds(figures.cluster_bound_ns)) : Json()},
            {"work_s", figures.work_ns > 0 ? Json(Seconds(figures.work_ns)) : Json()},
            {"tokens", figures.tokens},
            {"tokens_per_day", figures.tokens_per_day},
            {"job_s", figures.job_s},
            {"device_hours", figures.device_hours},
            {"sites", std::move(sites)},
            {"links", std::move(links)}};
  if (figures.evaluation_ns > 0) {
    json["evaluation_s"] = Seconds(figures.evaluation_ns);
    json["evaluation_share"] = figures.evaluation_share;
  }
  return json;
}

std::string CostReportText(const std::vector<SiteCostReport>& reports, const Plan& plan) {
  size_t width = 0;
  for (const SiteCostReport& report : reports) {
    width = std::max(width, report.site.size());
  }
  std::string text;
  for (const SiteCostReport& report : reports) {
    text +=
        fmt::format("{:<14}{:<{}}  {}\n", text.empty() ? "costs" : "", report.site, width, SiteCostText(report, plan));
  }
  return text;
}

std::string BaselineTable(const std::vector<Baseline>& baselines, int64_t plan_iteration_ns, View view) {
  Table table({"BASELINE", "COMM", "SCOPE", "B", "S", "ITERATION", "BUBBLE", "AGAINST PLAN", "FITS"});
  for (const Baseline& baseline : baselines) {
    const std::string_view scope = BaselineScopeName(baseline.scope);
    table.AddRow({std::string(ScheduleKindName(baseline.schedule)), std::string(CommModeName(baseline.comm)),
                  baseline.site.empty() ? std::string(scope) : fmt::format("{} {}", scope, baseline.site),
                  fmt::format("{}", baseline.micro_batch_size), fmt::format("{}", baseline.sequence_length),
                  HumanDuration(baseline.iteration_ns), HumanPercent(baseline.bubble_ratio),
                  fmt::format("{:.2f} ×", Ratio(baseline.iteration_ns, plan_iteration_ns)),
                  baseline.fits ? "yes" : "no"});
  }
  return table.Render(view.columns);
}

}  // namespace geopipe
