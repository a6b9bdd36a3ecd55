#include "optimizer/plan/space/choices.h"

#include <fmt/format.h>

#include <optional>

namespace geopipe {

std::string_view RecomputeWord(const Plan& plan) {
  const std::optional<Recompute> same = plan.SameRecompute();
  return same.has_value() ? RecomputeName(*same) : "mixed";
}

std::string RecomputeText(const Plan& plan) {
  const std::optional<Recompute> same = plan.SameRecompute();
  if (same.has_value()) {
    return std::string(RecomputeName(*same));
  }
  std::string text;
  for (const Recompute mode : {Recompute::kFull, Recompute::kSelective, Recompute::kNone}) {
    std::string ranks;
    for (int32_t first = 0, end = 0; first < plan.grid.pipeline; first = end) {
      const auto is_of_mode = [&](int32_t rank) { return plan.pipeline_ranks[rank].recompute == mode; };
      end = first + 1;
      if (!is_of_mode(first)) {
        continue;
      }
      while (end < plan.grid.pipeline && is_of_mode(end)) {
        ++end;
      }
      ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", first);
      ranks += end - first > 1 ? fmt::format("-{}", end - 1) : "";
    }
    if (!ranks.empty()) {
      text += fmt::format("{}{} on {}{}", text.empty() ? "" : ", ", RecomputeName(mode), text.empty() ? "ranks " : "",
                          ranks);
    }
  }
  return text;
}

}  // namespace geopipe
