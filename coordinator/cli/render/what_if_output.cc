#include "coordinator/cli/render/what_if_output.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "coordinator/cli/render/format.h"
#include "coordinator/cli/render/plan_output.h"
#include "optimizer/plan/space/choices.h"
#include "runtime/base/wrap.h"

namespace geopipe {
namespace {

constexpr int32_t kLabelColumns = 16;
constexpr int32_t kCellColumns = 23;
constexpr size_t kMaxSitesSpelledOut = 3;
constexpr double kMaxPercent = 1000;  // from there on it is so many times as much

// A figure of one plan, for people and as a number that the other's can be held against.
struct Cell {
  std::string text = "-";
  std::optional<double> value = {};
};

enum class Compared : uint8_t { kNot, kRelative, kPoints };

struct Row {
  std::string label;
  Cell now;
  Cell then;
  Compared compared = Compared::kNot;
};

std::string ChangeText(const Row& row) {
  const bool is_known = row.now.value.has_value() && row.then.value.has_value();
  if (row.compared == Compared::kNot) {
    const bool both = row.now.text != Cell().text && row.then.text != Cell().text;
    return both && row.now.text != row.then.text ? "changes" : "";
  }
  if (!is_known || (row.compared == Compared::kRelative && *row.now.value == 0)) {
    return "";
  }
  const bool relative = row.compared == Compared::kRelative;
  const double percent = 100 * (relative ? *row.then.value / *row.now.value - 1 : *row.then.value - *row.now.value);
  if (std::abs(percent) < 0.05) {
    return "";
  }
  return relative && percent >= kMaxPercent ? fmt::format("{:.3g} ×", *row.then.value / *row.now.value)
                                            : fmt::format("{:+.1f} {}", percent, relative ? "%" : "points");
}

// Lines of at most `columns`, broken at blanks, and within words that are longer.
std::vector<std::string> Wrapped(std::string_view text, int32_t columns) {
  std::vector<std::string> lines(1);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    begin = end + 1;
    if (!lines.back().empty() && DisplayWidth(lines.back()) + 1 + DisplayWidth(word) > columns) {
      lines.emplace_back();
    }
    lines.back() += lines.back().empty() ? "" : " ";
    for (const char c : word) {
      const bool begins = (c & 0xC0) != 0x80;
      if (begins && DisplayWidth(lines.back()) == columns) {
        lines.emplace_back();
      }
      lines.back() += c;
    }
  }
  return lines;
}

std::string Padded(std::string_view text, int32_t columns) {
  return fmt::format("{}{}", text, std::string(static_cast<size_t>(std::max(0, columns - DisplayWidth(text))), ' '));
}

std::string RowText(const std::string& label, const std::string& now, const std::string& then,
                    const std::string& change) {
  const std::vector<std::string> left = Wrapped(now, kCellColumns);
  const std::vector<std::string> right = Wrapped(then, kCellColumns);
  std::string text;
  for (size_t i = 0; i < std::max(left.size(), right.size()); ++i) {
    std::string line = fmt::format("{}  {}  {}  {}", Padded(i == 0 ? label : "", kLabelColumns),
                                   Padded(i < left.size() ? left[i] : "", kCellColumns),
                                   Padded(i < right.size() ? right[i] : "", kCellColumns), i == 0 ? change : "");
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

Cell Duration(int64_t ns) { return {HumanDuration(ns), static_cast<double>(ns)}; }
Cell Share(double ratio) { return {HumanPercent(ratio), ratio}; }

// "oslo 4, dublin 4": pipeline ranks of each site, in the order of the pipeline.
std::string SitesText(const Plan& plan) {
  std::vector<std::pair<std::string, int32_t>> sites;
  for (const PipelineRankPlan& rank : plan.pipeline_ranks) {
    if (sites.empty() || sites.back().first != rank.site) {
      sites.emplace_back(rank.site, 0);
    }
    ++sites.back().second;
  }
  if (sites.size() > kMaxSitesSpelledOut) {
    std::set<std::string_view> different;
    for (const auto& [site, ranks] : sites) {
      different.insert(site);
    }
    return fmt::format("{} in {} runs", Counted(std::ssize(different), "site"), sites.size());
  }
  std::vector<std::string> texts;
  for (const auto& [site, ranks] : sites) {
    texts.push_back(fmt::format("{} {}", site, ranks));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

// "16 stages of 5 layers", "16 stages of 4-6 layers, 2 a rank".
std::string LayersText(const Plan& plan) {
  int32_t least = std::numeric_limits<int32_t>::max();
  int32_t most = 0;
  for (const StagePlan& stage : plan.stages) {
    least = std::min(least, static_cast<int32_t>(stage.layers.count()));
    most = std::max(most, static_cast<int32_t>(stage.layers.count()));
  }
  const std::string layers = least == most ? fmt::format("{}", most) : fmt::format("{}-{}", least, most);
  const int32_t per_rank = plan.StagesPerRank();
  return fmt::format("{} of {} {}{}", Counted(std::ssize(plan.stages), "stage"), layers, most == 1 ? "layer" : "layers",
                     per_rank > 1 ? fmt::format(", {} a rank", per_rank) : "");
}

// Peak and capacity of the device with the least to spare.
Cell PeakMemory(const WhatIfSide& side) {
  if (side.memory->empty()) {
    return {};
  }
  const MemoryBreakdown& tightest = (*side.memory)[TightestRank(*side.memory)];
  return {fmt::format("{} of {}", HumanBytes(tightest.peak_bytes()), HumanBytes(tightest.capacity_bytes)),
          static_cast<double>(tightest.peak_bytes())};
}

const LinkUse* Busiest(const PlanFigures& figures) {
  const auto busiest = std::ranges::max_element(figures.links, {}, &LinkUse::utilisation);
  return busiest == figures.links.end() ? nullptr : &*busiest;
}

Cell BusiestLink(const WhatIfSide& side) {
  const LinkUse* link = Busiest(*side.figures);
  return link == nullptr ? Cell{"no crossing"}
                         : Cell{fmt::format("{} of {}-{}", HumanPercent(link->utilisation), link->site_a, link->site_b),
                                link->utilisation};
}

Cell AlternativeCell(const WhatIfSide& side, AlternativeKind kind) {
  const Alternative& alternative = side.alternatives->Of(kind);
  if (!alternative.found()) {
    return {"none"};
  }
  const std::string where = alternative.is_plan ? "this plan" : alternative.SitesText();
  return {fmt::format("{}, {}", HumanDuration(alternative.iteration_ns), where),
          static_cast<double>(alternative.iteration_ns)};
}

// True when both plans run the same thing, whatever memory it takes and whichever devices idle.
bool SamePlan(const WhatIfSide& now, const WhatIfSide& then) {
  Plan a = now.result->plan;
  Plan b = then.result->plan;
  for (Plan* plan : {&a, &b}) {
    plan->idle.clear();
    for (PipelineRankPlan& rank : plan->pipeline_ranks) {
      rank.peak_bytes = rank.capacity_bytes = 0;
    }
  }
  return a == b && now.result->schedule == then.result->schedule;
}

std::vector<Row> RowsOf(const WhatIfSide& now, const WhatIfSide& then) {
  std::vector<Row> rows;
  const auto add = [&](std::string label, Compared compared, const auto& cell) {
    const auto of = [&](const WhatIfSide& side) { return side.result == nullptr ? Cell() : cell(side); };
    rows.push_back({std::move(label), of(now), of(then), compared});
  };
  const auto add_text = [&](std::string label, const auto& text) {
    add(std::move(label), Compared::kNot, [&](const WhatIfSide& side) { return Cell{text(side.result->plan)}; });
  };
  using S = WhatIfSide;
  add("iteration", Compared::kRelative, [](const S& s) { return Duration(s.result->prediction.iteration_ns); });
  add("bubble", Compared::kPoints, [](const S& s) { return Share(s.result->prediction.bubble_ratio); });
  add("MFU", Compared::kPoints, [](const S& s) { return s.figures->mfu > 0 ? Share(s.figures->mfu) : Cell(); });
  add("tokens/s", Compared::kRelative, [](const S& s) {
    const double tokens = s.result->prediction.tokens_per_s;
    return Cell{HumanCount(static_cast<int64_t>(tokens)), tokens};
  });
  add("job", Compared::kRelative, [](const S& s) { return Cell{JobDuration(s.figures->job_s), s.figures->job_s}; });
  add("devices", Compared::kNot, [](const S& s) {
    return Cell{fmt::format("{} of {}", HumanCount(s.figures->used()), HumanCount(s.figures->devices()))};
  });
  add_text("degrees", [](const Plan& p) {
    return fmt::format("TP {}, PP {}, DP {}", p.grid.tensor, p.grid.pipeline, p.grid.data);
  });
  add_text("pipeline ranks", SitesText);
  add_text("schedule", [](const Plan& p) { return std::string(ScheduleTitle(p.schedule)); });
  add_text("b × s", [](const Plan& p) {
    return fmt::format("{} × {}, {} micro-batches", p.micro_batch_size, p.sequence_length, p.micro_batches);
  });
  add_text("ΔN", [](const Plan& p) { return DeltaNText(p).empty() ? "-" : DeltaNText(p); });
  add_text("recompute", [](const Plan& p) { return RecomputeText(p); });
  add_text("ZeRO", [](const Plan& p) { return fmt::format("{}", p.zero_stage); });
  add_text("layers", LayersText);
  add("peak memory", Compared::kRelative, PeakMemory);
  add("busiest link", Compared::kPoints, BusiestLink);
  add("best single site", Compared::kRelative,
      [](const S& s) { return AlternativeCell(s, AlternativeKind::kSingleSite); });
  add("replica per site", Compared::kRelative,
      [](const S& s) { return AlternativeCell(s, AlternativeKind::kSiteReplicas); });
  return rows;
}

std::string Verdict(const std::vector<ChangedFigure>& changed, const WhatIfSide& now, const WhatIfSide& then) {
  if (now.result == nullptr || then.result == nullptr) {
    std::string text;
    for (const auto& [side, name] : {std::pair(&now, "now"), std::pair(&then, "then")}) {
      text += side->result == nullptr ? fmt::format("no plan {}: {}\n", name, side->missing) : "";
    }
    return text;
  }
  std::vector<std::string> keys;
  for (const ChangedFigure& figure : changed) {
    keys.push_back(figure.key);
  }
  if (!SamePlan(now, then)) {
    return "";
  }
  return now.result->prediction == then.result->prediction
             ? fmt::format("nothing changes: with another {} the plan and its times are the same\n",
                           fmt::join(keys, ", "))
             : "the plan stays the same; its times change\n";
}

std::string StoppedText(const WhatIfSide& now, const WhatIfSide& then) {
  std::vector<std::string_view> stopped;
  for (const auto& [side, name] : {std::pair(&now, "now"), std::pair(&then, "then")}) {
    if (side->result != nullptr && side->result->search.stopped_early) {
      stopped.emplace_back(name);
    }
  }
  return stopped.empty() ? ""
                         : fmt::format(
                               "{}: the search was ended by search.time_budget; a longer one may find a faster "
                               "plan\n",
                               fmt::join(stopped, " and "));
}

}  // namespace

std::string WhatIfText(const std::vector<ChangedFigure>& changed, const WhatIfSide& now, const WhatIfSide& then) {
  std::string text;
  for (const ChangedFigure& figure : changed) {
    text += fmt::format("{}{} {}{}\n", &figure == &changed.front() ? "what if  " : "         ", figure.key,
                        figure.from.empty() ? "" : fmt::format("{} → ", figure.from), figure.to);
  }
  text += "\n" + RowText("", "NOW", "THEN", "CHANGE");
  for (const Row& row : RowsOf(now, then)) {
    text += RowText(row.label, row.now.text, row.then.text, ChangeText(row));
  }
  const std::string sentences = Verdict(changed, now, then) + StoppedText(now, then);
  return sentences.empty() ? text : fmt::format("{}\n{}", text, sentences);
}

Json WhatIfChangeToJson(const WhatIfSide& now, const WhatIfSide& then) {
  if (now.result == nullptr || then.result == nullptr) {
    return nullptr;
  }
  const auto grows = [](double from, double to) { return from == 0 ? Json(nullptr) : Json(to / from - 1); };
  const Prediction& before = now.result->prediction;
  const Prediction& after = then.result->prediction;
  const std::optional<double> peak_before = PeakMemory(now).value;
  const std::optional<double> peak_after = PeakMemory(then).value;
  return {{"same_plan", SamePlan(now, then)},
          {"iteration", Excess(after.iteration_ns, before.iteration_ns)},
          {"tokens_per_s", grows(before.tokens_per_s, after.tokens_per_s)},
          {"job", grows(now.figures->job_s, then.figures->job_s)},
          {"peak_bytes", grows(peak_before.value_or(0), peak_after.value_or(0))},
          {"bubble_ratio", after.bubble_ratio - before.bubble_ratio},
          {"mfu", then.figures->mfu - now.figures->mfu}};
}

}  // namespace geopipe
