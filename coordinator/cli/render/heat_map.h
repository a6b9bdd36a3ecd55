// Figures over two axes as coloured cells with their numbers.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace geopipe {

struct HeatMap {
  std::string title;
  std::vector<double> cells;  // [y * x_labels.size() + x]; NaN: nothing there
};

// Several maps over the same axes, side by side.
struct HeatMaps {
  std::string title;
  std::string note;
  std::string x_title;
  std::string y_title;
  std::vector<std::string> x_labels;
  std::vector<std::string> y_labels;            // from the bottom upwards
  std::vector<std::optional<size_t>> outlined;  // one x per y
  std::vector<HeatMap> maps;
};

// Self-contained SVG: white for 0 and less, dark blue for each map's greatest figure.
// REQUIRES: as many cells and outlined ones as the labels make.
std::string HeatMapsToSvg(const HeatMaps& maps);

}  // namespace geopipe
