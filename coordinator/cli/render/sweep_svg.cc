#include "coordinator/cli/render/sweep_svg.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "coordinator/cli/render/heat_map.h"
#include "coordinator/cli/render/svg_writer.h"
#include "optimizer/base/quantities.h"

namespace geopipe {
namespace {

constexpr double kLeft = 74;
constexpr double kPlotWidth = 640;
constexpr double kLabels = 250;  // right of the plot, for the names of the lines
constexpr double kChartTop = 66;
constexpr double kIterationHeight = 250;
constexpr double kSavedHeight = 190;
constexpr double kBubbleHeight = 170;
constexpr double kBetween = 58;
constexpr double kChartFoot = 52;
constexpr double kStripHeight = 26;
constexpr double kLabelLine = 14;

constexpr std::string_view kSweepStyle =
    "text{font-size:12px;fill:#333} .h{font-size:16px;font-weight:bold;fill:#111} .q{font-weight:bold;fill:#111} "
    ".r{text-anchor:end} .t{text-anchor:middle} .g{stroke:#DDE1E5} .a{stroke:#555} "
    ".k{stroke:#111;stroke-dasharray:2 3} .o{fill:#111;stroke:#fff;stroke-width:4px;paint-order:stroke} "
    ".n{font-size:11px;text-anchor:middle;fill:#111} .w{font-size:11px;text-anchor:middle;fill:#fff} "
    "path{fill:none;stroke-width:2;stroke-linejoin:round}";

// Okabe and Ito's palette, the most distinct ones first; the two baselines and the bound have theirs.
constexpr std::array<std::string_view, 4> kScheduleColours = {"#0072B2", "#009E73", "#56B4E9", "#CC79A7"};
constexpr std::string_view kSameColour = "#D55E00";
constexpr std::string_view kBestColour = "#B07700";
constexpr std::string_view kBoundColour = "#555555";

struct Line {
  std::string name;
  std::string_view colour;
  std::string_view dashes;  // empty: solid
  std::vector<double> y;    // NaN where there is no plan
};

bool HasAlternatives(const Sweep& sweep) {
  return !sweep.points.empty() && sweep.points.front().alternatives.has_value();
}

double NoPlan() { return std::numeric_limits<double>::quiet_NaN(); }

std::vector<double> ValuesOf(const Sweep& sweep, size_t schedule,
                             const std::function<double(const SweepResult&)>& value) {
  std::vector<double> y;
  for (const SweepPoint& point : sweep.points) {
    const SweepResult& result = point.results[schedule];
    y.push_back(result.feasible ? value(result) : NoPlan());
  }
  return y;
}

// Lines of what each schedule saves, in percent: against 1F1B with its own best b and s, and with the schedule's.
std::vector<Line> SavedLines(const Sweep& sweep) {
  std::vector<Line> lines;
  for (size_t i = 0; i < sweep.schedules.size(); ++i) {
    const std::string_view colour = kScheduleColours[i % kScheduleColours.size()];
    lines.push_back({fmt::format("{}, 1F1B at its best b and s", sweep.schedules[i]), colour, "",
                     ValuesOf(sweep, i, [](const SweepResult& result) { return 100 * result.GainOverBest(); })});
    lines.push_back({fmt::format("{}, 1F1B at the same b and s", sweep.schedules[i]), colour, "6 3",
                     ValuesOf(sweep, i, [](const SweepResult& result) { return 100 * result.Gain(); })});
  }
  return lines;
}

// One line per schedule, then the baselines and, for times, the bound of the first schedule.
std::vector<Line> Lines(const Sweep& sweep, bool bubble) {
  const auto values = [&](size_t schedule, const std::function<double(const SweepResult&)>& value) {
    return ValuesOf(sweep, schedule, value);
  };
  std::vector<Line> lines;
  for (size_t i = 0; i < sweep.schedules.size(); ++i) {
    lines.push_back({sweep.schedules[i], kScheduleColours[i % kScheduleColours.size()], "",
                     values(i, [bubble](const SweepResult& result) {
                       return bubble ? 100 * result.prediction.bubble_ratio
                                     : 1e-9 * static_cast<double>(result.prediction.iteration_ns);
                     })});
  }
  const auto baseline = [bubble](const Baseline& of) {
    return bubble ? 100 * of.bubble_ratio : 1e-9 * static_cast<double>(of.iteration_ns);
  };
  lines.push_back({"1F1B blocking, same b and s", kSameColour, "",
                   values(0, [&](const SweepResult& result) { return baseline(result.same); })});
  lines.push_back({"1F1B blocking, its best b and s", kBestColour, "6 3",
                   values(0, [&](const SweepResult& result) { return baseline(result.best); })});
  if (!bubble) {
    lines.push_back({fmt::format("lower bound at {}'s b and s", sweep.schedules.front()), kBoundColour, "2 3",
                     values(0, [](const SweepResult& result) {
                       return 1e-9 * static_cast<double>(result.prediction.lower_bound_ns);
                     })});
  }
  return lines;
}

// Alternatives that compete, in the order of AlternativeKind.
std::vector<ChoiceMap::Choice> Competing() {
  return {{.letter = 'S', .name = "single site", .colour = "#CC79A7"},
          {.letter = 'P', .name = "pipeline over sites", .colour = "#0072B2"},
          {.letter = 'R', .name = "replica per site", .colour = "#E69F00"}};
}

// Small leads are pale, because the models are not more accurate than that.
ChoiceMap::Cell WinnerCell(const SweepPoint& point) {
  constexpr double kStrongLead = 0.2;
  constexpr double kPale = 0.35;
  const std::optional<Lead> lead = LeadOf(*point.alternatives);
  if (!lead.has_value()) {
    return {.choice = std::nullopt};
  }
  const double saved = lead->saved.value_or(1);
  return {.choice = static_cast<size_t>(lead->kind),
          .figure = lead->saved.has_value() ? std::optional(100 * saved) : std::nullopt,
          .strength = kPale + (1 - kPale) * std::min(1.0, saved / kStrongLead)};
}

constexpr std::string_view kWinnerTitle = "fastest alternative, and iteration time it saves against the next, %";
constexpr std::string_view kWinnerNote = "of those that are the same training; lines where the fastest changes";

class SweepPlot {
 public:
  SweepPlot(const Sweep& sweep, std::string_view title)
      : sweep_(sweep),
        axis_(sweep.axes.front()),
        svg_(kLeft + kPlotWidth + kLabels,
             kChartTop + kSavedHeight + kBetween + kIterationHeight + kBetween + kBubbleHeight + kChartFoot +
                 (HasAlternatives(sweep) ? kBetween + kStripHeight : 0),
             kSweepStyle) {
    svg_.Add("<title>{}</title>\n", EscapeXml(title));
    svg_.Text("h", 16, 28, title);
  }

  std::string Draw() {
    Panel(kChartTop, kSavedHeight, "iteration time saved against blocking 1F1B, %", SavedLines(sweep_));
    const double iteration_top = kChartTop + kSavedHeight + kBetween;
    Panel(iteration_top, kIterationHeight, "iteration time, s", Lines(sweep_, false));
    const double bubble_top = iteration_top + kIterationHeight + kBetween;
    Panel(bubble_top, kBubbleHeight, "bubble, %", Lines(sweep_, true));
    double bottom = bubble_top + kBubbleHeight;
    if (HasAlternatives(sweep_)) {
      Strip(bottom + kBetween);
      bottom += kBetween + kStripHeight;
    }
    svg_.Text("t", kLeft + kPlotWidth / 2, bottom + 38,
              fmt::format("{}{}", SweepAxisTitle(axis_.key), logarithmic() ? " (logarithmic)" : ""));
    return std::move(svg_).Finish();
  }

 private:
  bool logarithmic() const { return axis_.key != SweepKey::kDeltaN; }

  double X(double value) const {
    const double low = axis_.values.front();
    const double high = axis_.values.back();
    if (low == high) {
      return kLeft + kPlotWidth / 2;
    }
    const double part = logarithmic() ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
    return kLeft + 12 + part * (kPlotWidth - 24);
  }

  // Ticks in the units of the title: 1, 2 and 5 times powers of ten, or round steps.
  std::vector<double> Ticks() const {
    const double one = SweepAxisUnits(axis_.key, 1);
    const double low = axis_.values.front();
    const double high = axis_.values.back();
    std::vector<double> ticks;
    if (low == high) {
      return {low};
    }
    if (logarithmic()) {
      for (double decade = std::pow(10, std::floor(std::log10(low * one))); decade <= high * one * 1.001;
           decade *= 10) {
        for (const double factor : {1, 2, 5}) {
          const double tick = factor * decade / one;
          if (tick >= low * 0.999 && tick <= high * 1.001) {
            ticks.push_back(tick);
          }
        }
      }
      return ticks;
    }
    const double step = std::max(1.0, NiceStep(high - low, 16));
    for (double tick = std::ceil(low / step) * step; tick <= high; tick += step) {
      ticks.push_back(tick);
    }
    return ticks;
  }

  // The fastest alternative around each point, half-way to its neighbours.
  void Strip(double top) {
    svg_.Text("q", kLeft, top - 10, kWinnerTitle);
    const std::vector<ChoiceMap::Choice> choices = Competing();
    for (size_t i = 0; i < sweep_.points.size(); ++i) {
      const double at = X(axis_.values[i]);
      const double left = i == 0 ? kLeft : (X(axis_.values[i - 1]) + at) / 2;
      const double right = i + 1 == sweep_.points.size() ? kLeft + kPlotWidth : (at + X(axis_.values[i + 1])) / 2;
      const ChoiceMap::Cell cell = WinnerCell(sweep_.points[i]);
      if (!cell.choice.has_value()) {
        continue;
      }
      const ChoiceMap::Choice& choice = choices[*cell.choice];
      const std::string colour = Tint(choice.colour, cell.strength);
      svg_.Add("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>\n", left, top,
               right - left - 1, kStripHeight, colour);
      const std::string letter(1, choice.letter);
      const std::string text =
          cell.figure.has_value() ? fmt::format("{} {}", letter, FigureText(*cell.figure)) : letter;
      const std::string_view shown = TextWidth(text, 11) < right - left     ? std::string_view(text)
                                     : TextWidth(letter, 11) < right - left ? std::string_view(letter)
                                                                            : std::string_view();
      svg_.Text(IsDark(colour) ? "w" : "n", (left + right) / 2, top + kStripHeight / 2 + 4, shown);
    }
    for (const double tick : Ticks()) {
      svg_.Line("g", X(tick), top + kStripHeight, X(tick), top + kStripHeight + 4);
      svg_.Text("t", X(tick), top + kStripHeight + 17, fmt::format("{:.6g}", SweepAxisUnits(axis_.key, tick)));
    }
    std::vector<ChoiceMap::Cell> cells;
    for (const SweepPoint& point : sweep_.points) {
      cells.push_back(WinnerCell(point));
    }
    DrawLegend(Occurring(choices, cells), kLeft + kPlotWidth + 24, top - 8, svg_);
  }

  void Panel(double top, double height, std::string_view title, const std::vector<Line>& lines) {
    double least = std::numeric_limits<double>::infinity();
    double greatest = 0;  // what is saved may also be lost
    for (const Line& line : lines) {
      for (const double y : line.y) {
        least = std::isnan(y) ? least : std::min(least, y);
        greatest = std::isnan(y) ? greatest : std::max(greatest, y);
      }
    }
    greatest = std::max(greatest, 1e-9);
    // The axis begins at 0, unless that would leave most of the panel empty.
    const double from = least < 0                ? least
                        : least > 0.6 * greatest ? least - 0.15 * std::max(greatest - least, 0.02 * greatest)
                                                 : 0;
    const double step = NiceStep(greatest - from, height / 45);
    const double low = std::floor(from / step) * step;
    const double high = std::ceil(greatest / step) * step;
    const auto y = [&](double value) { return top + height - (value - low) / (high - low) * height; };
    svg_.Text("q", kLeft, top - 10, title);
    const auto steps = static_cast<int32_t>(std::round((high - low) / step));
    for (int32_t i = 0; i <= steps; ++i) {
      const double value = low + i * step;
      svg_.Line("g", kLeft, y(value), kLeft + kPlotWidth, y(value));
      svg_.Text("r", kLeft - 8, y(value) + 4, fmt::format("{:.5g}", std::abs(value) < 1e-9 * step ? 0 : value));
    }
    for (const double tick : Ticks()) {
      svg_.Line("g", X(tick), top, X(tick), top + height + 4);
      svg_.Text("t", X(tick), top + height + 17, fmt::format("{:.6g}", SweepAxisUnits(axis_.key, tick)));
    }
    svg_.Line("a", kLeft, top + height, kLeft + kPlotWidth, top + height);
    Knee(top, height);
    for (size_t i = lines.size(); i-- > 0;) {  // the first one on top
      Curve(lines[i], y);
    }
    Names(lines, top, height, y);
  }

  void Curve(const Line& line, const std::function<double(double)>& y) {
    std::string path;
    bool pen_down = false;
    for (size_t i = 0; i < line.y.size(); ++i) {
      if (!std::isnan(line.y[i])) {
        path += fmt::format("{}{:.1f} {:.1f}", pen_down ? "L" : "M", X(axis_.values[i]), y(line.y[i]));
      }
      pen_down = !std::isnan(line.y[i]);
    }
    svg_.Add("<path stroke=\"{}\"{} d=\"{}\"/>\n", line.colour,
             line.dashes.empty() ? "" : fmt::format(" stroke-dasharray=\"{}\"", line.dashes), path);
    for (size_t i = 0; line.dashes.empty() && i < line.y.size(); ++i) {
      if (!std::isnan(line.y[i])) {
        svg_.Add("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.6\" fill=\"{}\"/>\n", X(axis_.values[i]), y(line.y[i]),
                 line.colour);
      }
    }
  }

  // Names the lines at their ends, moved apart where names would touch, each joined to its line by a hairline.
  void Names(const std::vector<Line>& lines, double top, double height, const std::function<double(double)>& y) {
    struct Name {
      const Line* line;
      double end_y;
      double y;
    };
    std::vector<Name> names;
    for (const Line& line : lines) {
      for (size_t i = line.y.size(); i-- > 0;) {
        if (!std::isnan(line.y[i])) {
          names.push_back({&line, y(line.y[i]), y(line.y[i])});
          break;
        }
      }
    }
    std::stable_sort(names.begin(), names.end(), [](const Name& a, const Name& b) { return a.y < b.y; });
    for (size_t i = 1; i < names.size(); ++i) {
      names[i].y = std::max(names[i].y, names[i - 1].y + kLabelLine);
    }
    double limit = top + height;
    for (size_t i = names.size(); i-- > 0;) {
      names[i].y = std::min(names[i].y, limit);
      limit = names[i].y - kLabelLine;
    }
    for (const Name& name : names) {
      const double x = kLeft + kPlotWidth;
      svg_.Add("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", x - 8, name.end_y,
               x + 10, name.y, name.line->colour);
      svg_.Add("<text x=\"{:.1f}\" y=\"{:.1f}\" style=\"fill:{}\">{}</text>\n", x + 14, name.y + 4, name.line->colour,
               EscapeXml(name.line->name));
    }
  }

  void Knee(double top, double height) {
    const std::optional<size_t> knee = KneeOf(sweep_);
    if (!knee.has_value()) {
      return;
    }
    const double value = axis_.values[*knee];
    const double x = X(value);
    svg_.Line("k", x, top, x, top + height);
    const bool right = x < kLeft + kPlotWidth / 2;
    svg_.Text(right ? "o" : "o r", x + (right ? 5 : -5), top + 12, fmt::format("knee: {}", KneeText(sweep_)));
  }

  const Sweep& sweep_;
  const SweepAxis& axis_;
  SvgWriter svg_;
};

// "geopipe", "the fastest of geopipe, auto": whose plan a cell is about.
std::string SearchedText(const Sweep& sweep) {
  const std::string names = fmt::format("{}", fmt::join(sweep.schedules, ", "));
  return sweep.schedules.size() > 1 ? "the fastest of " + names : names;
}

std::string GridSvg(const Sweep& sweep, std::string_view title) {
  HeatMaps maps;
  maps.title = title;
  const SweepAxis& up = sweep.axes[0];
  const SweepAxis& across = sweep.axes[1];
  maps.y_title = SweepAxisTitle(up.key);
  maps.x_title = SweepAxisTitle(across.key);
  for (const double value : up.values) {
    maps.y_labels.push_back(SweepTickText(up.key, value));
  }
  for (const double value : across.values) {
    maps.x_labels.push_back(SweepTickText(across.key, value));
  }
  HeatMap bubble{.title = "bubble saved, %", .cells = {}};
  HeatMap gain{.title = "iteration time saved, %", .cells = {}};
  for (size_t row = 0; row < up.values.size(); ++row) {
    for (size_t column = 0; column < across.values.size(); ++column) {
      const SweepPoint& point = sweep.At(row, column);
      const SweepResult& result = point.results[point.Best().value_or(0)];
      bubble.cells.push_back(result.feasible ? 100 * result.BubbleReduction() : NoPlan());
      gain.cells.push_back(result.feasible ? 100 * result.Gain() : NoPlan());
    }
    maps.outlined.push_back(KneeOf(sweep, row));
  }
  maps.maps = {std::move(bubble), std::move(gain)};
  maps.note = fmt::format(
      "by {} against blocking 1F1B with the same b, s and layers; outlined: {} {} changes the iteration by less than "
      "{:.0f} % in all",
      SearchedText(sweep), across.key == SweepKey::kLatency ? "less" : "more", SweepKeyName(across.key),
      100 * kKneeTolerance);
  if (HasAlternatives(sweep)) {
    maps.choices = {
        .title = std::string(kWinnerTitle), .note = std::string(kWinnerNote), .choices = Competing(), .cells = {}};
    for (const SweepPoint& point : sweep.points) {
      maps.choices->cells.push_back(WinnerCell(point));
    }
  }
  return HeatMapsToSvg(maps);
}

}  // namespace

std::string SweepAxisTitle(SweepKey key) {
  static constexpr std::array<std::string_view, 3> kNames{"bandwidth of every link, Gbps",
                                                          "latency of every link, one way, ms", "ΔN of every crossing"};
  return std::string(kNames[static_cast<size_t>(key)]);
}

double SweepAxisUnits(SweepKey key, double value) {
  return key == SweepKey::kBandwidth ? value * 8e-9 : key == SweepKey::kLatency ? value * 1e-6 : value;
}

std::string SweepTickText(SweepKey key, double value) {
  const double units = SweepAxisUnits(key, value);
  return units >= 999.5 ? fmt::format("{:.0f}", units) : fmt::format("{:.3g}", units);
}

std::string SweepValueText(SweepKey key, double value) {
  switch (key) {
    case SweepKey::kBandwidth:
      return ShortBandwidth(value);
    case SweepKey::kLatency:
      return ShortDuration(std::llround(value));
    case SweepKey::kDeltaN:
      return fmt::format("{:.0f}", value);
  }
  return "?";
}

std::string KneeText(const Sweep& sweep, size_t first) {
  const std::optional<size_t> knee = KneeOf(sweep, first);
  if (!knee.has_value()) {
    return "";
  }
  const SweepAxis& axis = sweep.axes.back();
  const bool less_is_better = axis.key == SweepKey::kLatency;
  const bool worst = axis.key != SweepKey::kDeltaN && *knee == (less_is_better ? axis.values.size() - 1 : 0);
  return fmt::format("{}{}", SweepValueText(axis.key, axis.values[*knee]),
                     !worst           ? ""
                     : less_is_better ? " or more"
                                      : " or less");
}

std::string SweepToSvg(const Sweep& sweep, std::string_view title) {
  return sweep.axes.size() == 2 ? GridSvg(sweep, title) : SweepPlot(sweep, title).Draw();
}

}  // namespace geopipe
