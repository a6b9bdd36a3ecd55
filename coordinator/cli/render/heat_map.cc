#include "coordinator/cli/render/heat_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "coordinator/cli/render/svg_writer.h"
#include "optimizer/base/check.h"

namespace geopipe {
namespace {

constexpr double kCellWidth = 46;
constexpr double kCellHeight = 26;
constexpr double kMapLeft = 70;
constexpr double kMapTop = 96;
constexpr double kMapFoot = 56;
constexpr double kMapBetween = 84;

constexpr std::string_view kMapStyle =
    "text{font-size:12px;fill:#333} .h{font-size:16px;font-weight:bold;fill:#111} .q{font-weight:bold;fill:#111} "
    ".r{text-anchor:end} .t{text-anchor:middle} .n{font-size:11px;text-anchor:middle;fill:#111} "
    ".w{font-size:11px;text-anchor:middle;fill:#fff} .x{fill:#F1F3F5} .k{fill:none;stroke:#D55E00;stroke-width:2.5}";

// From white over light blue to dark blue: darker is more, in colour and in grey.
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

void DrawMap(const HeatMaps& maps, const HeatMap& map, double left, SvgWriter& svg) {
  const size_t columns = maps.x_labels.size();
  const size_t rows = maps.y_labels.size();
  GP_CHECK(map.cells.size() == rows * columns && maps.outlined.size() == rows);
  double greatest = 0;
  for (const double cell : map.cells) {
    greatest = std::isnan(cell) ? greatest : std::max(greatest, cell);
  }
  const auto x = [&](size_t column) { return left + kCellWidth * static_cast<double>(column); };
  const auto y = [&](size_t row) { return kMapTop + kCellHeight * static_cast<double>(rows - 1 - row); };
  svg.Text("q", left, kMapTop - 12, map.title);
  for (size_t row = 0; row < rows; ++row) {
    svg.Text("r", left - 6, y(row) + kCellHeight / 2 + 4, maps.y_labels[row]);
    for (size_t column = 0; column < columns; ++column) {
      const double cell = map.cells[row * columns + column];
      if (std::isnan(cell)) {
        svg.Rect("x", x(column), y(row), kCellWidth - 1, kCellHeight - 1);
        continue;
      }
      const double part = greatest > 0 ? cell / greatest : 0;
      svg.Add("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>\n", x(column), y(row),
              kCellWidth - 1, kCellHeight - 1, Colour(part));
      svg.Text(part > 0.6 ? "w" : "n", x(column) + kCellWidth / 2, y(row) + kCellHeight / 2 + 4,
               fmt::format("{:.{}f}", std::abs(cell) < 0.05 ? 0.0 : cell, std::abs(cell) < 9.95 ? 1 : 0));
    }
  }
  for (size_t row = 0; row < rows; ++row) {
    if (maps.outlined[row].has_value()) {
      svg.Rect("k", x(*maps.outlined[row]), y(row), kCellWidth - 1, kCellHeight - 1);
    }
  }
  const double bottom = kMapTop + kCellHeight * static_cast<double>(rows);
  for (size_t column = 0; column < columns; ++column) {
    svg.Text("t", x(column) + kCellWidth / 2, bottom + 15, maps.x_labels[column]);
  }
  svg.Text("t", left + kCellWidth * static_cast<double>(columns) / 2, bottom + 36, maps.x_title);
}

}  // namespace

std::string HeatMapsToSvg(const HeatMaps& maps) {
  double map_width = kCellWidth * static_cast<double>(maps.x_labels.size());
  for (const HeatMap& map : maps.maps) {
    map_width = std::max(map_width, TextWidth(map.title, 13));
  }
  const double bottom = kMapTop + kCellHeight * static_cast<double>(maps.y_labels.size());
  const auto count = static_cast<double>(maps.maps.size());
  double width = kMapLeft + count * map_width + (count - 1) * kMapBetween + 24;
  width = std::max({width, TextWidth(maps.title, 16) + 40, TextWidth(maps.note, 12) + 40});
  SvgWriter svg(width, bottom + kMapFoot, kMapStyle);
  svg.Add("<title>{}</title>\n", EscapeXml(maps.title));
  svg.Text("h", 16, 28, maps.title);
  svg.Text("", 16, 50, maps.note);
  double left = kMapLeft;
  for (const HeatMap& map : maps.maps) {
    DrawMap(maps, map, left, svg);
    svg.Add("<text class=\"t\" transform=\"translate({:.1f} {:.1f}) rotate(-90)\">{}</text>\n", left - 44,
            (kMapTop + bottom) / 2, EscapeXml(maps.y_title));
    left += map_width + kMapBetween;
  }
  return std::move(svg).Finish();
}

}  // namespace geopipe
