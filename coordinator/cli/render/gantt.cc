#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "coordinator/cli/render/format.h"
#include "coordinator/cli/render/svg_writer.h"
#include "coordinator/cli/render/timeline.h"
#include "coordinator/cli/render/timeline_phases.h"
#include "optimizer/base/quantities.h"

namespace geopipe {
namespace {

constexpr int32_t kMinColumns = 10;  // of the chart
constexpr int32_t kTickColumns = 12;
constexpr size_t kIdle = 4;

struct Glyph {
  std::string_view label;
  std::string_view block;
  int32_t colour;  // of the 256-colour palette, the nearest to the SVG's
};

// Glyphs in the order of ActionKind.
constexpr std::array<Glyph, 4> kGlyphs = {
    {{"F forward", "▒", 74}, {"B backward", "█", 214}, {"I input gradient", "▓", 36}, {"W weight gradient", "░", 175}}};

std::string Repeat(std::string_view text, int32_t times) {
  std::string repeated;
  for (int32_t i = 0; i < times; ++i) {
    repeated += text;
  }
  return repeated;
}

// One span of time on one device.
struct Cell {
  size_t kind = kIdle;  // kind that takes most of it, or idle
  bool mixed = false;   // several kinds
  double busy = 0;
};

// A cell is idle if at least half of its time is; a `dense` one, with several actions, only if nearly all of it is.
std::vector<Cell> Cells(const std::vector<ActionTiming>& lane, int64_t span_ns, size_t columns, bool dense) {
  constexpr double kHalf = 0.5 + 1e-9;
  constexpr double kSixteenth = 1.0 / 16;
  const auto shares = SharesOf(lane, span_ns, columns);
  std::vector<Cell> cells(columns);
  for (size_t column = 0; column < columns; ++column) {
    Cell& cell = cells[column];
    size_t most = 0;
    for (size_t kind = 0; kind < shares.size(); ++kind) {
      cell.mixed = cell.mixed || (cell.busy > 0 && shares[kind][column] > 0);
      cell.busy += shares[kind][column];
      most = shares[kind][column] > shares[most][column] ? kind : most;
    }
    cell.kind = cell.busy >= (dense ? kSixteenth : kHalf) ? most : kIdle;
  }
  return cells;
}

// A bar as high as the busy part.
std::string_view Level(double busy) {
  static constexpr std::array<std::string_view, 8> kLevels = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  return kLevels[static_cast<size_t>(std::clamp(std::lround(8 * busy), 1L, 8L)) - 1];
}

std::string PlainRow(const std::vector<Cell>& cells, bool dense) {
  std::string row;
  for (const Cell& cell : cells) {
    const bool level = dense && (cell.mixed || cell.kind == static_cast<size_t>(ActionKind::kBackward));
    row += cell.kind == kIdle ? " " : level ? Level(cell.busy) : kGlyphs[cell.kind].block;
  }
  return row;
}

std::string DenseColouredRow(const std::vector<Cell>& cells) {
  std::string row;
  for (const Cell& cell : cells) {
    row +=
        cell.kind == kIdle ? " " : fmt::format("\x1b[38;5;{}m{}\x1b[0m", kGlyphs[cell.kind].colour, Level(cell.busy));
  }
  return row;
}

// Two cells to a character: the left half in the foreground's colour, the right one in the background's.
std::string ColouredRow(const std::vector<Cell>& cells) {
  std::string row;
  for (size_t i = 0; i + 1 < cells.size(); i += 2) {
    const size_t left = cells[i].kind;
    const size_t right = cells[i + 1].kind;
    if (left == kIdle && right == kIdle) {
      row += " ";
    } else if (left == kIdle || right == kIdle) {
      row += fmt::format("\x1b[38;5;{}m{}\x1b[0m", kGlyphs[left == kIdle ? right : left].colour,
                         left == kIdle ? "▐" : "▌");
    } else if (left == right) {
      row += fmt::format("\x1b[38;5;{}m█\x1b[0m", kGlyphs[left].colour);
    } else {
      row += fmt::format("\x1b[38;5;{};48;5;{}m▌\x1b[0m", kGlyphs[left].colour, kGlyphs[right].colour);
    }
  }
  return row;
}

// True when actions are on average shorter than a column.
bool IsDense(const SimulationResult& result, int64_t span_ns, int32_t columns) {
  int64_t busy_ns = 0;
  int64_t actions = 0;
  for (const auto& lane : result.timeline) {
    for (const ActionTiming& timing : lane) {
      busy_ns += timing.end_ns - timing.start_ns;
      ++actions;
    }
  }
  return static_cast<double>(busy_ns) * columns < static_cast<double>(span_ns) * static_cast<double>(actions);
}

class Gantt {
 public:
  Gantt(const SimulationResult& result, const PipelineCosts& costs, const TimelineLabels& labels,
        const GanttOptions& options)
      : result_(result), costs_(costs), labels_(labels), options_(options) {
    for (const std::string& site : labels.sites) {
      site_width_ = std::max(site_width_, DisplayWidth(site));
    }
    number_width_ = static_cast<int32_t>(std::to_string(labels.sites.size() - 1).size());
    margin_ = site_width_ + (site_width_ > 0 ? 2 : 0) + number_width_ + 1;
    columns_ = std::max(kMinColumns, options.columns - margin_);
    span_ns_ = std::max<int64_t>(1, result.iteration_ns);
    dense_ = IsDense(result, span_ns_, columns_);
  }

  std::string Draw() const {
    std::string text;
    for (size_t device = 0; device < labels_.sites.size(); ++device) {
      const bool begins = BeginsSite(labels_, static_cast<int32_t>(device));
      if (begins) {
        text += Line(Margin(""), Separator(static_cast<int32_t>(device)));
      }
      const bool named = site_width_ > 0 && (device == 0 || begins);
      const std::string site = named ? labels_.sites[device] : "";
      const std::string margin =
          fmt::format("{}{}{:>{}} ", site, Repeat(" ", site_width_ - DisplayWidth(site) + (site_width_ > 0 ? 2 : 0)),
                      device, number_width_);
      text += Line(margin, Row(result_.timeline[device]));
    }
    return text + Axis() + Legend();
  }

 private:
  std::string Margin(std::string_view text) const {
    return Repeat(" ", margin_ - DisplayWidth(text)) + std::string(text);
  }

  std::string Row(const std::vector<ActionTiming>& lane) const {
    const bool halves = options_.colour && !dense_;
    const std::vector<Cell> cells =
        Cells(lane, span_ns_, static_cast<size_t>(halves ? 2 * columns_ : columns_), dense_);
    return halves ? ColouredRow(cells) : options_.colour ? DenseColouredRow(cells) : PlainRow(cells, dense_);
  }

  // Joins margin and content to a line without blanks at its end.
  static std::string Line(const std::string& margin, const std::string& content) {
    std::string line = margin + content;
    line.erase(line.find_last_not_of(' ') + 1);
    return line + "\n";
  }

  std::string Separator(int32_t device) const {
    std::string crossing = CrossingText(costs_, labels_, device);
    crossing = crossing.empty() ? "" : fmt::format(" {} ", crossing);
    return "╌╌" + crossing + Repeat("╌", columns_ - 2 - DisplayWidth(crossing));
  }

  std::string Axis() const {
    const auto span = static_cast<double>(span_ns_);
    const double step = NiceStep(span, std::max(3, columns_ / kTickColumns));
    std::vector<bool> ticks(static_cast<size_t>(columns_), false);
    std::string labels;
    int32_t used = 0;
    for (double tick = 0; tick * step < span; ++tick) {
      const auto column = static_cast<int32_t>(tick * step / span * columns_ + 1e-9);
      if (column >= columns_) {
        break;
      }
      ticks[static_cast<size_t>(column)] = true;
      const std::string label = tick == 0 ? "0" : ShortDuration(std::llround(tick * step));
      if (column >= used && column + DisplayWidth(label) <= columns_) {
        labels += Repeat(" ", column - used) + label;
        used = column + DisplayWidth(label) + 1;
        labels += " ";
      }
    }
    std::string line;
    for (const bool tick : ticks) {
      line += tick ? "┴" : "─";
    }
    return Line(Margin(""), line) + Line(Margin(""), labels);
  }

  std::string Legend() const {
    std::array<bool, kGlyphs.size()> occurs{};
    for (const auto& lane : result_.timeline) {
      for (const ActionTiming& timing : lane) {
        occurs[static_cast<size_t>(timing.action.kind)] = true;
      }
    }
    std::string legend;
    for (size_t kind = 0; kind < kGlyphs.size(); ++kind) {
      if (occurs[kind]) {
        legend += options_.colour
                      ? fmt::format("\x1b[38;5;{}m█\x1b[0m {}   ", kGlyphs[kind].colour, kGlyphs[kind].label)
                      : fmt::format("{} {}   ", kGlyphs[kind].block, kGlyphs[kind].label);
      }
    }
    legend += dense_ ? "▅ busy for a part   " : "";
    return Line(Margin(""), legend + "blank: idle");
  }

  const SimulationResult& result_;
  const PipelineCosts& costs_;
  const TimelineLabels& labels_;
  const GanttOptions options_;
  int32_t site_width_ = 0;
  int32_t number_width_ = 1;
  int32_t margin_ = 0;
  int32_t columns_ = 0;
  int64_t span_ns_ = 1;
  bool dense_ = false;
};

}  // namespace

std::string ToGantt(const SimulationResult& result, const PipelineCosts& costs, const TimelineLabels& labels,
                    const GanttOptions& options) {
  return Gantt(result, costs, labels, options).Draw();
}

}  // namespace geopipe
