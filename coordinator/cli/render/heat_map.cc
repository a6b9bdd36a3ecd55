#include "coordinator/cli/render/heat_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "optimizer/base/check.h"

namespace geopipe {
namespace {

constexpr double kCellWidth = 46;
constexpr double kCellHeight = 26;
constexpr double kMapLeft = 70;
constexpr double kMapTop = 96;
constexpr double kMapFoot = 56;
constexpr double kMapBetween = 84;
constexpr double kChoicesHead = 56;
constexpr double kLegendLine = 24;

constexpr std::string_view kMapStyle =
    "text{font-size:12px;fill:#333} .h{font-size:16px;font-weight:bold;fill:#111} .q{font-weight:bold;fill:#111} "
    ".r{text-anchor:end} .t{text-anchor:middle} .n{font-size:11px;text-anchor:middle;fill:#111} "
    ".w{font-size:11px;text-anchor:middle;fill:#fff} .x{fill:#F1F3F5} .k{fill:none;stroke:#D55E00;stroke-width:2.5} "
    ".b{stroke:#111;stroke-width:2;stroke-linecap:square}";

// Colour from white over light blue to dark blue: darker is more, in colour and in grey.
std::string Colour(double part) {
  static constexpr std::array<std::array<double, 3>, 3> kStops = {{{247, 251, 255}, {107, 174, 214}, {8, 48, 107}}};
  const double at = std::clamp(part, 0.0, 1.0) * 2;
  const size_t stop = at < 1 ? 0 : 1;
  std::array<int, 3> rgb{};
  for (size_t i = 0; i < rgb.size(); ++i) {
    const double from = kStops[stop][i];
    rgb[i] = static_cast<int>(std::lround(from + (kStops[stop + 1][i] - from) * (at - static_cast<double>(stop))));
  }
  return fmt::format("#{:02X}{:02X}{:02X}", rgb[0], rgb[1], rgb[2]);
}

// The cells of a map at a place in the picture.
class Grid {
 public:
  Grid(const HeatMaps& maps, double left, double top)
      : maps_(maps), left_(left), top_(top), columns_(maps.x_labels.size()), rows_(maps.y_labels.size()) {}

  double X(size_t column) const { return left_ + kCellWidth * static_cast<double>(column); }
  double Y(size_t row) const { return top_ + kCellHeight * static_cast<double>(rows_ - 1 - row); }
  double Top() const { return top_; }
  double Bottom() const { return top_ + kCellHeight * static_cast<double>(rows_); }

  void Axes(std::string_view title, double title_y, SvgWriter& svg) const {
    svg.Text("q", left_, title_y, title);
    for (size_t row = 0; row < rows_; ++row) {
      svg.Text("r", left_ - 6, Y(row) + kCellHeight / 2 + 4, maps_.y_labels[row]);
    }
    for (size_t column = 0; column < columns_; ++column) {
      svg.Text("t", X(column) + kCellWidth / 2, Bottom() + 15, maps_.x_labels[column]);
    }
    svg.Text("t", left_ + kCellWidth * static_cast<double>(columns_) / 2, Bottom() + 36, maps_.x_title);
    svg.Add("<text class=\"t\" transform=\"translate({:.1f} {:.1f}) rotate(-90)\">{}</text>\n", left_ - 44,
            (top_ + Bottom()) / 2, EscapeXml(maps_.y_title));
  }

  void Cell(size_t row, size_t column, std::string_view colour, std::string_view text, SvgWriter& svg) const {
    svg.Add("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>\n", X(column), Y(row),
            kCellWidth - 1, kCellHeight - 1, colour);
    svg.Text(IsDark(colour) ? "w" : "n", X(column) + kCellWidth / 2 - 0.5, Y(row) + kCellHeight / 2 + 4, text);
  }

  void Box(std::string_view css_class, size_t row, size_t column, SvgWriter& svg) const {
    svg.Rect(css_class, X(column), Y(row), kCellWidth - 1, kCellHeight - 1);
  }

 private:
  const HeatMaps& maps_;
  double left_;
  double top_;
  size_t columns_;
  size_t rows_;
};

void DrawMap(const HeatMaps& maps, const HeatMap& map, const Grid& grid, SvgWriter& svg) {
  const size_t columns = maps.x_labels.size();
  const size_t rows = maps.y_labels.size();
  GP_CHECK(map.cells.size() == rows * columns && maps.outlined.size() == rows);
  double greatest = 0;
  for (const double cell : map.cells) {
    greatest = std::isnan(cell) ? greatest : std::max(greatest, cell);
  }
  grid.Axes(map.title, grid.Top() - 12, svg);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t column = 0; column < columns; ++column) {
      const double cell = map.cells[row * columns + column];
      if (std::isnan(cell)) {
        grid.Box("x", row, column, svg);
      } else {
        grid.Cell(row, column, Colour(greatest > 0 ? cell / greatest : 0), FigureText(cell), svg);
      }
    }
  }
  for (size_t row = 0; row < rows; ++row) {
    if (maps.outlined[row].has_value()) {
      grid.Box("k", row, *maps.outlined[row], svg);
    }
  }
}

// "R 12".
std::string LetterText(char letter, std::optional<double> figure) {
  return figure.has_value() ? fmt::format("{} {}", letter, FigureText(*figure)) : fmt::format("{}", letter);
}

void DrawChoices(const HeatMaps& maps, const Grid& grid, SvgWriter& svg) {
  const ChoiceMap& map = *maps.choices;
  const size_t columns = maps.x_labels.size();
  const size_t rows = maps.y_labels.size();
  GP_CHECK(map.cells.size() == rows * columns);
  grid.Axes(map.title, grid.Top() - 28, svg);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t column = 0; column < columns; ++column) {
      const ChoiceMap::Cell& cell = map.cells[row * columns + column];
      if (!cell.choice.has_value()) {
        grid.Box("x", row, column, svg);
        continue;
      }
      const ChoiceMap::Choice& choice = map.choices[*cell.choice];
      grid.Cell(row, column, Tint(choice.colour, cell.strength), LetterText(choice.letter, cell.figure), svg);
    }
  }
  const auto choice_at = [&](size_t row, size_t column) { return map.cells[row * columns + column].choice; };
  for (size_t row = 0; row < rows; ++row) {
    for (size_t column = 0; column < columns; ++column) {
      const double x = grid.X(column) - 0.5;
      const double y = grid.Y(row) - 0.5;
      if (column > 0 && choice_at(row, column) != choice_at(row, column - 1)) {
        svg.Line("b", x, y, x, y + kCellHeight);
      }
      if (row + 1 < rows && choice_at(row, column) != choice_at(row + 1, column)) {
        svg.Line("b", x, y, x + kCellWidth, y);
      }
    }
  }
}

std::array<int, 3> ComponentsOf(std::string_view colour) {
  GP_CHECK(colour.size() == 7);
  std::array<int, 3> rgb{};
  for (size_t i = 0; i < rgb.size(); ++i) {
    const std::string_view digits = colour.substr(1 + 2 * i, 2);
    std::from_chars(digits.data(), digits.data() + digits.size(), rgb[i], 16);
  }
  return rgb;
}

}  // namespace

std::string Tint(std::string_view colour, double part) {
  std::array<int, 3> rgb = ComponentsOf(colour);
  for (int& component : rgb) {
    component = static_cast<int>(std::lround(255 + (component - 255) * std::clamp(part, 0.0, 1.0)));
  }
  return fmt::format("#{:02X}{:02X}{:02X}", rgb[0], rgb[1], rgb[2]);
}

bool IsDark(std::string_view colour) {
  const std::array<int, 3> rgb = ComponentsOf(colour);
  return 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2] < 140;
}

std::string FigureText(double figure) {
  return fmt::format("{:.{}f}", std::abs(figure) < 0.05 ? 0.0 : figure, std::abs(figure) < 9.95 ? 1 : 0);
}

std::vector<ChoiceMap::Choice> Occurring(const std::vector<ChoiceMap::Choice>& choices,
                                         std::span<const ChoiceMap::Cell> cells) {
  std::vector<ChoiceMap::Choice> occurring;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (std::ranges::find(cells, std::optional<size_t>(i), &ChoiceMap::Cell::choice) != cells.end()) {
      occurring.push_back(choices[i]);
    }
  }
  return occurring;
}

void DrawLegend(const std::vector<ChoiceMap::Choice>& choices, double x, double y, SvgWriter& svg) {
  for (size_t i = 0; i < choices.size(); ++i) {
    const double top = y + kLegendLine * static_cast<double>(i);
    svg.Add("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"18\" height=\"16\" fill=\"{}\"/>\n", x, top, choices[i].colour);
    svg.Text(IsDark(choices[i].colour) ? "w" : "n", x + 9, top + 12, std::string(1, choices[i].letter));
    svg.Text("", x + 26, top + 13, choices[i].name);
  }
}

std::string HeatMapsToSvg(const HeatMaps& maps) {
  double map_width = kCellWidth * static_cast<double>(maps.x_labels.size());
  for (const HeatMap& map : maps.maps) {
    map_width = std::max(map_width, TextWidth(map.title, 13));
  }
  const double map_height = kCellHeight * static_cast<double>(maps.y_labels.size());
  const double choices_top = kMapTop + map_height + kMapFoot + kChoicesHead;
  const double legend_left = kMapLeft + kCellWidth * static_cast<double>(maps.x_labels.size()) + 28;
  const auto count = static_cast<double>(maps.maps.size());
  double width = kMapLeft + count * map_width + (count - 1) * kMapBetween + 24;
  width = std::max({width, TextWidth(maps.title, 16) + 40, TextWidth(maps.note, 12) + 40});
  double height = kMapTop + map_height + kMapFoot;
  std::vector<ChoiceMap::Choice> legend;
  if (maps.choices.has_value()) {
    legend = Occurring(maps.choices->choices, maps.choices->cells);
    for (const ChoiceMap::Choice& choice : legend) {
      width = std::max(width, legend_left + 26 + TextWidth(choice.name, 12) + 24);
    }
    width = std::max(width, kMapLeft + TextWidth(maps.choices->note, 12) + 24);
    const double legend_height = kLegendLine * static_cast<double>(legend.size());
    height = choices_top + std::max(map_height, legend_height) + kMapFoot;
  }
  SvgWriter svg(width, height, kMapStyle);
  svg.Add("<title>{}</title>\n", EscapeXml(maps.title));
  svg.Text("h", 16, 28, maps.title);
  svg.Text("", 16, 50, maps.note);
  double left = kMapLeft;
  for (const HeatMap& map : maps.maps) {
    DrawMap(maps, map, Grid(maps, left, kMapTop), svg);
    left += map_width + kMapBetween;
  }
  if (maps.choices.has_value()) {
    DrawChoices(maps, Grid(maps, kMapLeft, choices_top), svg);
    svg.Text("", kMapLeft, choices_top - 10, maps.choices->note);
    DrawLegend(legend, legend_left, choices_top, svg);
  }
  return std::move(svg).Finish();
}

}  // namespace geopipe
