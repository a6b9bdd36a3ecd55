#include "coordinator/cli/render/explanation_output.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <utility>

#include "coordinator/cli/render/format.h"

namespace geopipe {
namespace {

// "north to east" where the boundary crosses sites, else "stage 1 to 2".
std::string BoundaryName(const Plan& plan, int32_t boundary) {
  if (boundary + 1 >= std::ssize(plan.stages) || plan.SiteOf(boundary) == plan.SiteOf(boundary + 1)) {
    return fmt::format("stage {} to {}", boundary, boundary + 1);
  }
  return fmt::format("{} to {}", plan.SiteOf(boundary), plan.SiteOf(boundary + 1));
}

std::string CauseText(IdleCause cause, int32_t index, const Plan& plan) {
  switch (cause) {
    case IdleCause::kWarmUp:
      return "warm-up: until a rank's first backward";
    case IdleCause::kDrain:
      return "drain: after a rank's last forward";
    case IdleCause::kLink:
      return fmt::format("steady: the way over {} and back", BoundaryName(plan, index));
    case IdleCause::kWork:
      return fmt::format("steady: rank {} takes longer than the others", index);
    case IdleCause::kHold:
      return fmt::format("steady: held by blocking sends over {}", BoundaryName(plan, index));
    case IdleCause::kEpilogue:
      return "weight update and synchronisation";
  }
  return "?";
}

std::string LimitText(const StageExplanation& stage, const PlanResult& result) {
  const Plan& plan = result.plan;
  switch (stage.limit) {
    case StageLimit::kCompute:
      return "its own compute";
    case StageLimit::kLink:
      return fmt::format("the way {} and back: {} idle", BoundaryName(plan, stage.index),
                         HumanPercent(stage.limit_part));
    case StageLimit::kStage:
      return fmt::format("rank {}, which takes longer: {} idle", stage.index, HumanPercent(stage.limit_part));
    case StageLimit::kHold:
      return fmt::format("its blocking sends {}: {} idle", BoundaryName(plan, stage.index),
                         HumanPercent(stage.limit_part));
    case StageLimit::kMemory:
      return fmt::format("its memory: one more ΔN at {} would save {}",
                         stage.index < 0 ? "all crossings" : BoundaryName(plan, stage.index),
                         HumanPercent(stage.limit_part));
    case StageLimit::kNoSteady:
      return "warm-up and drain: it has no steady phase";
  }
  return "?";
}

std::string RemedyText(const Remedy& remedy, const Plan& plan) {
  switch (remedy.kind) {
    case Remedy::Kind::kBandwidth:
      return fmt::format("twice the bandwidth {}", BoundaryName(plan, remedy.boundary));
    case Remedy::Kind::kLatency:
      return fmt::format("half the latency {}", BoundaryName(plan, remedy.boundary));
    case Remedy::Kind::kNoDelay:
      return "links without latency and of boundless bandwidth";
    case Remedy::Kind::kDeltaN:
      return fmt::format(
          "one more ΔN {}{}", remedy.boundary < 0 ? "at every crossing" : BoundaryName(plan, remedy.boundary),
          remedy.stage < 0
              ? ""
              : fmt::format(" (rank {} lacks {} of memory)", remedy.stage, HumanBytes(remedy.lacking_bytes)));
    case Remedy::Kind::kFasterStage:
      return fmt::format("rank {}, the slowest, 10 % faster", remedy.stage);
    case Remedy::Kind::kEvenStages:
      return "the same work spread evenly over the ranks";
  }
  return "?";
}

std::string_view LimitName(StageLimit limit) {
  static constexpr std::array<std::string_view, 6> kNames{"compute",       "link",   "stage",
                                                          "blocking_send", "memory", "warm_up_and_drain"};
  return kNames[static_cast<size_t>(limit)];
}

std::string_view CauseName(IdleCause cause) {
  static constexpr std::array<std::string_view, 6> kNames{"warm_up", "drain",         "link",
                                                          "stage",   "blocking_send", "epilogue"};
  return kNames[static_cast<size_t>(cause)];
}

constexpr double kShown = 0.0005;  // of an iteration: less is left out of tables

std::string_view TimeText(TimePart part) {
  switch (part) {
    case TimePart::kPlainWork:
      return "plain work: the model's products on all devices at their stated efficiency";
    case TimePart::kIdleDevices:
      return "devices that the plan leaves idle";
    case TimePart::kBelowEfficiency:
      return "below stated efficiency: attention, small products, memory traffic, elementwise work";
    case TimePart::kTensor:
      return "tensor-parallel collectives";
    case TimePart::kRecomputation:
      return "recomputation";
    case TimePart::kFill:
      return "pipeline fill: until a rank's first backward";
    case TimePart::kDrain:
      return "pipeline drain: after a rank's last forward";
    case TimePart::kCrossings:
      return "crossings: waiting for messages in the steady phase";
    case TimePart::kImbalance:
      return "imbalance: waiting for a slower rank";
    case TimePart::kExposedReduction:
      return "data-parallel reduction and gathering that nothing hides";
    case TimePart::kUpdate:
      return "AdamW";
    case TimePart::kSynchronisation:
      return "gradient norm and tied gradients: waiting for the other ranks";
  }
  return "?";
}

// Durations of one table in one unit, so that they can be added up by eye.
std::string InSeconds(double ns, int64_t iteration_ns) {
  constexpr int64_t kSecond = 1'000'000'000;
  return iteration_ns >= kSecond ? fmt::format("{:.3f} s", ns / 1e9) : fmt::format("{:.3f} ms", ns / 1e6);
}

std::string TimeTable(const std::vector<TimeShare>& time, int64_t iteration_ns, View view) {
  Table table({"TIME", "SHARE", "WHERE THE ITERATION GOES, IN THE MEAN OVER THE DEVICES IN USE"});
  double rest_ns = 0;
  for (const TimeShare& share : time) {
    const double ratio = share.ns / static_cast<double>(iteration_ns);
    if (ratio < kShown && ratio > -kShown) {
      rest_ns += share.ns;
      continue;
    }
    table.AddRow({InSeconds(share.ns, iteration_ns), HumanPercent(ratio), std::string(TimeText(share.part))});
  }
  if (rest_ns / static_cast<double>(iteration_ns) >= kShown) {
    table.AddRow({InSeconds(rest_ns, iteration_ns), HumanPercent(rest_ns / static_cast<double>(iteration_ns)),
                  "the rest, each less than 0.05 %"});
  }
  table.AddRow({InSeconds(static_cast<double>(iteration_ns), iteration_ns), HumanPercent(1), "the iteration"});
  return table.Render(view.columns);
}

std::string SignedPercent(double ratio) {
  return fmt::format("{}{:.1f} %", ratio < 0 ? "-" : "+", 100 * (ratio < 0 ? -ratio : ratio));
}

// "TP 4, PP 2, b 4, geopipe": short as in papers, because a job's own names would not fit.
std::string WithText(const ChoiceCost& cost) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kShort{
      {{"tensor", "TP "}, {"pipeline", "PP "}, {"data", "DP "}, {"micro_batch_size", "b "}, {"sequence_length", "s "}}};
  std::vector<std::string> parts;
  for (const auto& [key, value] : cost.with) {
    const auto* const named = std::ranges::find(kShort, key, &std::pair<std::string_view, std::string_view>::first);
    const bool speaks = key == "schedule" || key == "sites";
    parts.push_back(named != kShort.end() ? fmt::format("{}{}", named->second, value)
                    : speaks              ? value
                                          : fmt::format("{} {}", key, value));
  }
  if (cost.by_rule_alone) {
    parts.emplace_back("by rule");
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string ChoiceTable(const ChoiceCosts& choices, View view) {
  Table table({"CHOICE", "PLAN HAS", "INSTEAD", "ITERATION", "CHANGE", "WITH"});
  std::string missing;
  bool any_faster = false;
  bool any_by_rule = false;
  std::string_view last;
  for (const ChoiceCost& cost : choices.all) {
    const bool same = cost.key == last;
    last = cost.key;
    if (cost.iteration_ns.has_value()) {
      any_faster = any_faster || cost.excess < -kShown;
      any_by_rule = any_by_rule || cost.by_rule_alone;
      table.AddRow({same ? "" : cost.key, same ? "" : cost.taken, cost.instead, HumanDuration(*cost.iteration_ns),
                    SignedPercent(cost.excess), WithText(cost)});
    } else {
      table.AddRow({same ? "" : cost.key, same ? "" : cost.taken, cost.instead, "-", "-", "no plan"});
      missing += fmt::format("no plan with {} {}: {}\n", cost.key, cost.instead, cost.missing);
    }
  }
  std::string text = "what each choice costs: the best plan with this choice changed and the rest optimised anew\n";
  text += (choices.all.empty() ? "" : table.Render(view.columns)) + missing;
  if (any_faster) {
    text += "faster than the plan: the search passed it over; name that choice in the job to have it\n";
  }
  if (any_by_rule) {
    text += "by rule: time ended before a schedule was made to measure; with that choice in the job, plan makes one\n";
  }
  if (!choices.not_tried.empty()) {
    text += fmt::format("not tried, for want of time: {}\n", fmt::join(choices.not_tried, ", "));
  }
  return text;
}

std::string RankLimits(const PlanExplanation& explanation, const PlanResult& result, View view) {
  constexpr size_t kMaxSpelledOut = 12;
  const std::vector<StageExplanation>& stages = explanation.stages;
  const std::vector<PipelineRankPlan>& ranks = result.plan.pipeline_ranks;
  Table table({"RANK", "SITE", "F + B", "WARM-UP", "STEADY", "DRAIN", "BOUND BY"});
  for (size_t first = 0, end = 0; first < stages.size(); first = end) {
    StageExplanation most = stages[first];
    for (end = first + 1;
         view.rows == Rows::kFolded && stages.size() > kMaxSpelledOut && end < stages.size() &&
         stages[end].limit == most.limit && stages[end].index == most.index && ranks[end].site == ranks[first].site;
         ++end) {
      const StageExplanation& next = stages[end];
      most.work_ns = std::max(most.work_ns, next.work_ns);
      most.warm_up = std::max(most.warm_up, next.warm_up);
      most.steady = std::max(most.steady, next.steady);
      most.drain = std::max(most.drain, next.drain);
      most.limit_part = std::max(most.limit_part, next.limit_part);
    }
    const bool several = end - first > 1;
    table.AddRow({several ? fmt::format("{}-{}", first, end - 1) : fmt::format("{}", first), ranks[first].site,
                  (several ? "≤ " : "") + HumanDuration(most.work_ns), HumanPercent(most.warm_up),
                  HumanPercent(most.steady), HumanPercent(most.drain), LimitText(most, result)});
  }
  return table.Render(view.columns);
}

// Adds up what crosses between the same two sites at several boundaries, in one row.
std::string BubbleTable(const std::vector<BubblePart>& parts, const Plan& plan, View view) {
  std::vector<std::pair<std::string, double>> causes;
  for (const BubblePart& part : parts) {
    const std::string text = CauseText(part.cause, part.index, plan);
    const auto known = std::ranges::find(causes, text, &std::pair<std::string, double>::first);
    if (known == causes.end()) {
      causes.emplace_back(text, part.ratio);
    } else {
      known->second += part.ratio;
    }
  }
  std::ranges::stable_sort(causes, std::ranges::greater(), &std::pair<std::string, double>::second);
  Table table({"OF ALL TIME", "BUBBLE"});
  for (const auto& [cause, ratio] : causes) {
    if (ratio >= kShown) {
      table.AddRow({HumanPercent(ratio), cause});
    }
  }
  return table.Render(view.columns);
}

Json TimeToJson(const std::vector<TimeShare>& time, int64_t iteration_ns) {
  Json rows = Json::array();
  for (const TimeShare& share : time) {
    rows.push_back({{"part", TimePartName(share.part)},
                    {"s", share.ns / 1e9},
                    {"share", share.ns / static_cast<double>(iteration_ns)},
                    {"what", TimeText(share.part)}});
  }
  return rows;
}

Json ChoicesToJson(const ChoiceCosts& choices) {
  Json rows = Json::array();
  for (const ChoiceCost& cost : choices.all) {
    Json row{{"choice", cost.key}, {"taken", cost.taken}, {"instead", cost.instead}};
    if (cost.iteration_ns.has_value()) {
      row["iteration_s"] = Seconds(*cost.iteration_ns);
      row["change"] = cost.excess;
      row["by_rule_alone"] = cost.by_rule_alone;
      row["with"] = Json::object();
      for (const auto& [key, value] : cost.with) {
        row["with"][key] = value;
      }
    } else {
      row["iteration_s"] = nullptr;
      row["missing"] = cost.missing;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

std::string ExplanationText(const Explanation& all, const PlanResult& result, View view) {
  const PlanExplanation& explanation = all.plan;
  const Plan& plan = result.plan;
  std::string text = fmt::format(
      "{}\n{}\nwhat binds each rank (waiting in parts of the iteration)\n{}\nwhere the bubble of {} comes from\n{}",
      TimeTable(all.time, result.prediction.iteration_ns, view), ChoiceTable(all.choices, view),
      RankLimits(explanation, result, view), HumanPercent(result.prediction.bubble_ratio),
      BubbleTable(explanation.bubble, plan, view));
  if (explanation.remedies.empty()) {
    return fmt::format(
        "{}\nwhat would help: no faster link, no faster or better balanced rank, no larger ΔN: none of them changes "
        "the "
        "iteration by more than {}\n",
        text, HumanPercent(kWorthwhile));
  }
  Table remedies({"WHAT WOULD HELP", "ITERATION", "SAVES"});
  for (const Remedy& remedy : explanation.remedies) {
    remedies.AddRow({RemedyText(remedy, plan), HumanDuration(remedy.iteration_ns), HumanPercent(remedy.gain)});
  }
  return fmt::format("{}\n{}", text, remedies.Render(view.columns));
}

Json ExplanationToJson(const Explanation& all, const PlanResult& result) {
  const PlanExplanation& explanation = all.plan;
  Json stages = Json::array();
  for (size_t i = 0; i < explanation.stages.size(); ++i) {
    const StageExplanation& stage = explanation.stages[i];
    stages.push_back({{"index", i},
                      {"bound_by", LimitName(stage.limit)},
                      {"why", LimitText(stage, result)},
                      {"work_s", Seconds(stage.work_ns)},
                      {"idle_warm_up", stage.warm_up},
                      {"idle_steady", stage.steady},
                      {"idle_drain", stage.drain},
                      {"largest_memory", stage.largest_memory},
                      {"largest_memory_bytes", stage.largest_memory_bytes},
                      {"room_micro_batches", stage.room_micro_batches}});
  }
  Json bubble = Json::array();
  for (const BubblePart& part : explanation.bubble) {
    bubble.push_back({{"cause", CauseName(part.cause)},
                      {"index", part.index},
                      {"ratio", part.ratio},
                      {"why", CauseText(part.cause, part.index, result.plan)}});
  }
  Json remedies = Json::array();
  for (const Remedy& remedy : explanation.remedies) {
    Json row{{"change", RemedyText(remedy, result.plan)},
             {"iteration_s", Seconds(remedy.iteration_ns)},
             {"gain", remedy.gain}};
    if (remedy.kind == Remedy::Kind::kDeltaN && remedy.stage >= 0) {
      row["lacking_bytes"] = remedy.lacking_bytes;
    }
    remedies.push_back(std::move(row));
  }
  return {{"time", TimeToJson(all.time, result.prediction.iteration_ns)},
          {"choices", ChoicesToJson(all.choices)},
          {"not_tried", all.choices.not_tried},
          {"stages", std::move(stages)},
          {"bubble", std::move(bubble)},
          {"remedies", std::move(remedies)}};
}

}  // namespace geopipe
