// The base of all our pictures: SVG text, and the little arithmetic of axes and labels.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

namespace geopipe {

// Escapes text and attributes; control characters, which XML does not allow, become blanks.
std::string EscapeXml(std::string_view text);

// Approximate width of `text` in a sans-serif font, in pixels.
double TextWidth(std::string_view text, double font_px);

// A step of 1, 2 or 5 times a power of ten that cuts `span` into at most `most` parts. REQUIRES: span > 0, most >= 1.
double NiceStep(double span, double most);

class SvgWriter {
 public:
  // Opens a document of this size in pixels on white. `style` is CSS.
  SvgWriter(double width, double height, std::string_view style);

  template <class... Args>
  void Add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(svg_), format, std::forward<Args>(args)...);
  }
  // `text` is escaped here.
  void Text(std::string_view css_class, double x, double y, std::string_view text);
  void Rect(std::string_view css_class, double x, double y, double width, double height);
  void Line(std::string_view css_class, double x1, double y1, double x2, double y2);

  // Closes the document.
  std::string Finish() &&;

 private:
  std::string svg_;
};

}  // namespace geopipe
