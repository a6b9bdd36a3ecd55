#include "coordinator/cli/render/svg_writer.h"

#include <cmath>

#include "coordinator/cli/render/format.h"

namespace geopipe {

std::string EscapeXml(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return escaped;
}

double TextWidth(std::string_view text, double font_px) { return 0.6 * font_px * DisplayWidth(text); }

double NiceStep(double span, double most) {
  const double decade = std::pow(10.0, std::floor(std::log10(span / most)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (span / (factor * decade) <= most) {
      return factor * decade;
    }
  }
  return 10 * decade;
}

SvgWriter::SvgWriter(double width, double height, std::string_view style) {
  Add(R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0:.0f}" height="{1:.0f}" viewBox="0 0 {0:.0f} {1:.0f}" )"
      R"(font-family="Helvetica,Arial,sans-serif">)"
      "\n<style>{2}</style>\n"
      "<rect width=\"{0:.0f}\" height=\"{1:.0f}\" fill=\"#fff\"/>\n",
      std::ceil(width), std::ceil(height), style);
}

void SvgWriter::Text(std::string_view css_class, double x, double y, std::string_view text) {
  Add("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", css_class, x, y, EscapeXml(text));
}

void SvgWriter::Rect(std::string_view css_class, double x, double y, double width, double height) {
  Add("<rect class=\"{}\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\"/>\n", css_class, x, y, width,
      height);
}

void SvgWriter::Line(std::string_view css_class, double x1, double y1, double x2, double y2) {
  Add("<line class=\"{}\" x1=\"{:.2f}\" y1=\"{:.2f}\" x2=\"{:.2f}\" y2=\"{:.2f}\"/>\n", css_class, x1, y1, x2, y2);
}

std::string SvgWriter::Finish() && {
  svg_ += "</svg>\n";
  return std::move(svg_);
}

}  // namespace geopipe
