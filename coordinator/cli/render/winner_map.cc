#include "coordinator/cli/render/winner_map.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "coordinator/cli/render/alternatives_output.h"
#include "coordinator/cli/render/format.h"
#include "coordinator/cli/render/sweep_svg.h"
#include "optimizer/base/quantities.h"

namespace geopipe {
namespace {

constexpr int32_t kMapColumns = 100;
constexpr std::array kCompeting{AlternativeKind::kSingleSite, AlternativeKind::kPipeline,
                                AlternativeKind::kSiteReplicas};

char LetterOf(const std::optional<Lead>& lead) {
  if (!lead.has_value()) {
    return '.';
  }
  constexpr std::string_view kLetters = "SPR";
  const char letter = kLetters[static_cast<size_t>(lead->kind)];
  return lead->saved.value_or(1) >= kClearLead ? letter : static_cast<char>(std::tolower(letter));
}

// Three decimals of a second, so that a column can be compared at a glance.
std::string IterationCell(const Alternative& alternative) {
  if (!alternative.found()) {
    return "-";
  }
  const int64_t ns = alternative.iteration_ns;
  return ns >= 1'000'000'000 ? fmt::format("{:.3f} s", Seconds(ns)) : HumanDuration(ns);
}

// "single site up to 2 ms, pipeline over sites from 3 ms on": the axis from its first value to its last.
std::string RangesText(const Sweep& sweep) {
  const SweepAxis& axis = sweep.axes.front();
  const auto kind_at = [&](size_t i) {
    const std::optional<Lead> lead = LeadOf(*sweep.points[i].alternatives);
    return lead.has_value() ? std::optional(lead->kind) : std::nullopt;
  };
  std::vector<std::string> ranges;
  for (size_t first = 0, end = 0; first < sweep.points.size(); first = end) {
    const std::optional<AlternativeKind> kind = kind_at(first);
    while (end < sweep.points.size() && kind_at(end) == kind) {
      ++end;
    }
    if (!kind.has_value()) {
      continue;
    }
    const std::string from = SweepValueText(axis.key, axis.values[first]);
    const std::string to = SweepValueText(axis.key, axis.values[end - 1]);
    const bool all = first == 0 && end == sweep.points.size();
    ranges.push_back(fmt::format("{}{}", AlternativeTitle(*kind),
                                 all                          ? " everywhere"
                                 : first == 0                 ? fmt::format(" up to {}", to)
                                 : end == sweep.points.size() ? fmt::format(" from {} on", from)
                                 : first + 1 == end           ? fmt::format(" at {}", from)
                                                              : fmt::format(" from {} to {}", from, to)));
  }
  return ranges.empty() ? "" : fmt::format("fastest: {}\n", fmt::join(ranges, ", "));
}

std::string LineText(const Sweep& sweep, int32_t columns) {
  const SweepAxis& axis = sweep.axes.front();
  Table table({axis.key == SweepKey::kBandwidth ? "BANDWIDTH"
               : axis.key == SweepKey::kLatency ? "LATENCY"
                                                : "ΔN",
               "SINGLE SITE", "PIPELINE", "REPLICAS", "LOCAL STEPS", "FASTEST", "SAVES"});
  for (const SweepPoint& point : sweep.points) {
    const Alternatives& alternatives = *point.alternatives;
    const std::optional<Lead> lead = LeadOf(alternatives);
    std::vector<std::string> row{SweepValueText(axis.key, point.at.front())};
    for (const Alternative& alternative : alternatives.all) {
      row.push_back(IterationCell(alternative));
    }
    row.emplace_back(lead.has_value() ? AlternativeTitle(lead->kind) : "-");
    row.push_back(lead.has_value() && lead->saved.has_value() ? HumanPercent(*lead->saved) : "-");
    table.AddRow(std::move(row));
  }
  return fmt::format(
      "alternatives, and what the fastest saves against the next; local steps change the training and do not compete\n"
      "{}{}",
      table.Render(columns), RangesText(sweep));
}

// The values of `axis` below its points, each `width` columns wide and at `first`, as far as they do not touch.
std::string Ticks(const SweepAxis& axis, const std::vector<size_t>& shown, size_t first, size_t width, size_t columns) {
  std::string line;
  for (size_t i = 0; i < shown.size(); ++i) {
    const std::string value = SweepTickText(axis.key, axis.values[shown[i]]);
    const size_t at = first + i * width;
    if ((line.empty() || at >= line.size() + 2) && at + value.size() <= columns) {
      line.resize(at, ' ');
      line += value;
    }
  }
  return line + "\n";
}

std::string GridText(const Sweep& sweep, int32_t columns) {
  const SweepAxis& up = sweep.axes[0];
  const SweepAxis& across = sweep.axes[1];
  size_t label = 0;
  std::vector<std::string> labels;
  for (const double value : up.values) {
    labels.push_back(SweepValueText(up.key, value));
    label = std::max(label, static_cast<size_t>(DisplayWidth(labels.back())));
  }
  const auto line = static_cast<size_t>(std::min(columns, kMapColumns));
  const size_t room = std::max(line, label + 10) - label - 2;
  const size_t width = 2 * across.values.size() <= room ? 2 : 1;
  const size_t step = (across.values.size() * width + room - 1) / room;
  std::vector<size_t> shown;
  for (size_t column = 0; column < across.values.size(); column += step) {
    shown.push_back(column);
  }
  std::string text = fmt::format(
      "fastest: P pipeline over sites, R replica per site, S single site, . none; a small letter: by less than {:.0f} "
      "%\n"
      "{}{}\n",
      100 * kClearLead, SweepAxisTitle(up.key),
      step > 1 ? fmt::format(" (every {} points of {})", step, SweepKeyName(across.key)) : "");
  std::array<int64_t, kCompeting.size()> wins{};
  for (size_t row = up.values.size(); row-- > 0;) {
    std::string drawn(label - static_cast<size_t>(DisplayWidth(labels[row])), ' ');
    drawn += labels[row] + "  ";
    for (const size_t column : shown) {
      drawn += LetterOf(LeadOf(*sweep.At(row, column).alternatives));
      drawn.append(width - 1, ' ');
    }
    for (size_t column = 0; column < across.values.size(); ++column) {
      if (const std::optional<Lead> lead = LeadOf(*sweep.At(row, column).alternatives); lead.has_value()) {
        ++wins[static_cast<size_t>(lead->kind)];
      }
    }
    drawn.erase(drawn.find_last_not_of(' ') + 1);
    text += drawn + "\n";
  }
  text += Ticks(across, shown, label + 2, width, line);
  text += fmt::format("{}{}\n", std::string(label + 2, ' '), SweepAxisTitle(across.key));
  std::vector<std::string> counts;
  for (const AlternativeKind kind : kCompeting) {
    if (wins[static_cast<size_t>(kind)] > 0) {
      counts.push_back(fmt::format("{} at {}", AlternativeTitle(kind), wins[static_cast<size_t>(kind)]));
    }
  }
  return text + fmt::format("fastest of {} points: {}; local steps change the training and do not compete\n",
                            sweep.points.size(), fmt::join(counts, ", "));
}

}  // namespace

std::string WinnersText(const Sweep& sweep, int32_t columns) {
  if (sweep.points.empty() || !sweep.points.front().alternatives.has_value()) {
    return "";
  }
  return sweep.axes.size() == 2 ? GridText(sweep, columns) : LineText(sweep, columns);
}

}  // namespace geopipe
