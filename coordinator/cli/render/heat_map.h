// Figures over two axes as coloured cells with their numbers.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/cli/render/svg_writer.h"

namespace geopipe {

struct HeatMap {
  std::string title;
  std::vector<double> cells;  // [y * x_labels.size() + x]; NaN: nothing there
};

// One of a few choices for each point, and a figure with it.
struct ChoiceMap {
  struct Choice {
    char letter = ' ';
    std::string name;
    std::string_view colour;  // "#0072B2"
  };
  struct Cell {
    std::optional<size_t> choice;
    std::optional<double> figure = {};
    double strength = 1;  // of the colour, from 0, hardly any, to 1
  };

  std::string title;
  std::string note;  // explains the figures
  std::vector<Choice> choices;
  std::vector<Cell> cells;  // as HeatMap's
};

// `colour` mixed with white: all of it at 1, none at 0.
std::string Tint(std::string_view colour, double part);
// True when text on this colour is better white than black.
bool IsDark(std::string_view colour);
// Draws a line for each choice, with the top left corner at (x, y). Classes: m a letter, empty the name.
// Those of `choices` that some cell has.
std::vector<ChoiceMap::Choice> Occurring(const std::vector<ChoiceMap::Choice>& choices,
                                         std::span<const ChoiceMap::Cell> cells);

void DrawLegend(const std::vector<ChoiceMap::Choice>& choices, double x, double y, SvgWriter& svg);
// "3.2", "12".
std::string FigureText(double figure);

// Several maps over the same axes, side by side; the choices below them, with their legend.
struct HeatMaps {
  std::string title;
  std::string note;
  std::string x_title;
  std::string y_title;
  std::vector<std::string> x_labels;
  std::vector<std::string> y_labels;            // from the bottom upwards
  std::vector<std::optional<size_t>> outlined;  // one x per y
  std::vector<HeatMap> maps;
  std::optional<ChoiceMap> choices = {};
};

// Self-contained SVG: white for 0 and less, dark blue for each map's greatest figure. Choices have their colours and
// letters, and a line goes round those that are alike.
// REQUIRES: as many cells and outlined ones as the labels make.
std::string HeatMapsToSvg(const HeatMaps& maps);

}  // namespace geopipe
