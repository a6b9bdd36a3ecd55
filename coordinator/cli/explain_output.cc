#include "coordinator/cli/explain_output.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "coordinator/cli/format.h"

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
      return "warm-up: until a stage's first backward";
    case IdleCause::kDrain:
      return "drain: after a stage's last forward";
    case IdleCause::kLink:
      return fmt::format("steady: the way over {} and back", BoundaryName(plan, index));
    case IdleCause::kWork:
      return fmt::format("steady: stage {} takes longer than the others", index);
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
      return fmt::format("the crossing {}: idle for {} of the iteration, for what is on its way over it and back",
                         BoundaryName(plan, stage.index), HumanPercent(stage.limit_part));
    case StageLimit::kStage:
      return fmt::format("stage {}, which takes longer: idle for {} of the iteration because of it", stage.index,
                         HumanPercent(stage.limit_part));
    case StageLimit::kHold:
      return fmt::format("its blocking sends over {}: they hold it {} of the iteration",
                         BoundaryName(plan, stage.index), HumanPercent(stage.limit_part));
    case StageLimit::kMemory:
      return fmt::format("its memory: one more ΔN at {} would save {}",
                         stage.index < 0 ? "all crossings" : BoundaryName(plan, stage.index),
                         HumanPercent(stage.limit_part));
    case StageLimit::kNoSteady:
      return "warm-up and drain: it has no steady phase";
  }
  return "?";
}

std::string MemoryText(const StageExplanation& stage) {
  return fmt::format("{} of {}, most of it {} ({}), room for {} more micro-batches", HumanBytes(stage.peak_bytes),
                     HumanBytes(stage.capacity_bytes), stage.largest_memory, HumanBytes(stage.largest_memory_bytes),
                     stage.room_micro_batches);
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
              : fmt::format(" (stage {} lacks {} of memory)", remedy.stage, HumanBytes(remedy.lacking_bytes)));
    case Remedy::Kind::kFasterStage:
      return fmt::format("stage {}, the slowest, 10 % faster", remedy.stage);
    case Remedy::Kind::kEvenStages:
      return "the same work spread evenly over the stages";
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

}  // namespace

std::string ExplanationText(const PlanExplanation& explanation, const PlanResult& result) {
  const Plan& plan = result.plan;
  Table stages({"STAGE", "SITE", "F + B", "WARM-UP", "STEADY", "DRAIN", "BOUND BY"});
  Table memory({"STAGE", "MEMORY"});
  for (size_t i = 0; i < explanation.stages.size(); ++i) {
    const StageExplanation& stage = explanation.stages[i];
    stages.AddRow({fmt::format("{}", i), plan.pipeline_ranks[i].site, HumanDuration(stage.work_ns),
                   HumanPercent(stage.warm_up), HumanPercent(stage.steady), HumanPercent(stage.drain),
                   LimitText(stage, result)});
    memory.AddRow({fmt::format("{}", i), MemoryText(stage)});
  }
  Table bubble({"OF ALL TIME", "BUBBLE"});
  constexpr double kShown = 0.0005;
  for (const BubblePart& part : explanation.bubble) {
    if (part.ratio >= kShown) {
      bubble.AddRow({HumanPercent(part.ratio), CauseText(part.cause, part.index, plan)});
    }
  }
  std::string text = fmt::format(
      "what binds each stage (waiting in parts of the iteration)\n{}\n{}\nwhere the bubble of {} comes from\n{}",
      stages.Render(), memory.Render(), HumanPercent(result.prediction.bubble_ratio), bubble.Render());
  if (explanation.remedies.empty()) {
    return fmt::format(
        "{}\nwhat would help: no faster link, no faster or better balanced stage and no larger ΔN changes "
        "the iteration by more than {}\n",
        text, HumanPercent(kWorthwhile));
  }
  Table remedies({"WHAT WOULD HELP", "ITERATION", "SAVES"});
  for (const Remedy& remedy : explanation.remedies) {
    remedies.AddRow({RemedyText(remedy, plan), HumanDuration(remedy.iteration_ns), HumanPercent(remedy.gain)});
  }
  return fmt::format("{}\n{}", text, remedies.Render());
}

Json ExplanationToJson(const PlanExplanation& explanation, const PlanResult& result) {
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
  return {{"stages", std::move(stages)}, {"bubble", std::move(bubble)}, {"remedies", std::move(remedies)}};
}

}  // namespace geopipe
