#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <limits>
#include <utility>

#include "optimizer/simulator/timeline.h"

namespace geopipe {
namespace {

constexpr double kLeft = 92;
constexpr double kRight = 24;
constexpr double kTop = 64;
constexpr double kLane = 26;
constexpr double kLaneGap = 12;
constexpr double kAxis = 44;
constexpr double kMinChart = 960;
constexpr double kMaxChart = 12'000;
constexpr double kMinBox = 11;     // width wanted for the shortest action: two digits
constexpr double kDigitWidth = 5;  // of the 8 px font in the boxes

struct Paint {
  std::string_view label;
  std::string_view css_class;
  std::string_view fill;
};

// In the order of ActionKind. Okabe and Ito's palette: sky blue, orange, bluish green, reddish purple.
constexpr std::array<Paint, 4> kPaints = {{{"F forward", "f", "#56B4E9"},
                                           {"B backward", "b", "#E69F00"},
                                           {"I input gradient", "i", "#009E73"},
                                           {"W weight gradient", "w", "#CC79A7"}}};

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
        escaped += c;
    }
  }
  return escaped;
}

// In the largest unit that keeps the number at least one.
std::string Duration(int64_t ns) {
  const auto value = static_cast<double>(ns);
  if (ns >= 1'000'000'000) {
    return fmt::format("{:.6g} s", value * 1e-9);
  }
  if (ns >= 1'000'000) {
    return fmt::format("{:.6g} ms", value * 1e-6);
  }
  return ns >= 1'000 ? fmt::format("{:.6g} us", value * 1e-3) : fmt::format("{} ns", ns);
}

// A step of 1, 2 or 5 times a power of ten that gives at most `most` ticks.
int64_t TickStep(int64_t span_ns, int64_t most) {
  for (int64_t decade = 1;; decade *= 10) {
    for (const int64_t step : {decade, 2 * decade, 5 * decade}) {
      if (span_ns / step <= most || decade > std::numeric_limits<int64_t>::max() / 100) {
        return step;
      }
    }
  }
}

class SvgChart {
 public:
  SvgChart(const SimulationResult& result, const PipelineCosts& costs) : result_(result), costs_(costs) {
    int64_t shortest_ns = std::numeric_limits<int64_t>::max();
    for (const auto& lane : result.timeline) {
      for (const ActionTiming& timing : lane) {
        if (timing.end_ns > timing.start_ns) {
          shortest_ns = std::min(shortest_ns, timing.end_ns - timing.start_ns);
        }
      }
    }
    span_ns_ = std::max<int64_t>(1, result.iteration_ns);
    const double wanted = kMinBox * static_cast<double>(span_ns_) / static_cast<double>(shortest_ns);
    chart_width_ = std::clamp(wanted, kMinChart, kMaxChart);
    lanes_height_ = static_cast<double>(result.timeline.size()) * (kLane + kLaneGap);
  }

  std::string Draw(std::string_view title) {
    Open(title);
    Axis();
    Crossings();
    Messages();
    Boxes();
    Legend();
    svg_ += "</svg>\n";
    return std::move(svg_);
  }

 private:
  template <class... Args>
  void Write(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(svg_), format, std::forward<Args>(args)...);
  }

  double X(int64_t ns) const { return kLeft + static_cast<double>(ns) / static_cast<double>(span_ns_) * chart_width_; }
  static double Y(int64_t device) { return kTop + static_cast<double>(device) * (kLane + kLaneGap); }

  void Open(std::string_view title) {
    const double width = kLeft + chart_width_ + kRight;
    const double height = kTop + lanes_height_ + kAxis;
    Write(R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0:.0f}" height="{1:.0f}" viewBox="0 0 {0:.0f} {1:.0f}" )"
          R"(font-family="sans-serif">)"
          "\n<style>text{{font-size:12px;fill:#222}} .n{{font-size:8px;text-anchor:middle}} "
          ".t{{text-anchor:middle}} .h{{font-size:15px;font-weight:bold}} .m{{stroke:#000;stroke-opacity:.35}} "
          ".c{{stroke:#D55E00;stroke-dasharray:6 4}} .g{{stroke:#ddd}} rect{{stroke:#fff;stroke-width:.5}}",
          width, height);
    for (const Paint& paint : kPaints) {
      Write(" .{}{{fill:{}}}", paint.css_class, paint.fill);
    }
    Write(
        "</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n<text class=\"h\" x=\"{}\" "
        "y=\"22\">{}</text>\n",
        kLeft, EscapeXml(title));
    Write("<text x=\"{}\" y=\"22\" text-anchor=\"end\">iteration {}, bubble {:.2f} %</text>\n", kLeft + chart_width_,
          Duration(result_.iteration_ns), 100 * result_.bubble_ratio);
  }

  void Axis() {
    const double bottom = kTop + lanes_height_;
    const int64_t step = TickStep(span_ns_, static_cast<int64_t>(chart_width_ / 90));
    for (int64_t tick = 0; tick <= span_ns_; tick += step) {
      Write(
          "<line class=\"g\" x1=\"{0:.2f}\" x2=\"{0:.2f}\" y1=\"{1}\" y2=\"{2}\"/>"
          "<text class=\"t\" x=\"{0:.2f}\" y=\"{3}\">{4}</text>\n",
          X(tick), kTop - kLaneGap / 2, bottom, bottom + 16, Duration(tick));
    }
    Write("<text class=\"t\" x=\"{:.2f}\" y=\"{}\">time</text>\n", kLeft + chart_width_ / 2, bottom + 34);
  }

  void Crossings() {
    for (size_t boundary = 0; boundary < costs_.boundaries.size(); ++boundary) {
      const BoundaryCost& cost = costs_.boundaries[boundary];
      const int32_t a = costs_.shape.placement[boundary];
      const int32_t b = costs_.shape.placement[boundary + 1];
      if (!cost.crosses || std::max(a, b) - std::min(a, b) != 1) {
        continue;
      }
      Write(
          "<line class=\"c\" x1=\"4\" x2=\"{0:.2f}\" y1=\"{1:.2f}\" y2=\"{1:.2f}\"><title>crossing {2} (chunk {3} to "
          "{4}): latency {5}, {6} per message</title></line>\n",
          kLeft + chart_width_, Y(std::max(a, b)) - kLaneGap / 2, EscapeXml(cost.link), boundary, boundary + 1,
          Duration(cost.latency_ns), Duration(cost.serialization_ns));
    }
  }

  void Messages() {
    for (const MessageTiming& message : result_.messages) {
      const int32_t to_chunk = message.send.stage + (message.send.kind == ActionKind::kSendForward ? 1 : -1);
      const int32_t from = costs_.shape.placement[message.send.stage];
      const int32_t to = costs_.shape.placement[to_chunk];
      Write("<line class=\"m\" x1=\"{:.2f}\" y1=\"{:.2f}\" x2=\"{:.2f}\" y2=\"{:.2f}\"/>\n", X(message.enter_ns),
            from < to ? Y(from) + kLane : Y(from), X(message.arrive_ns), from < to ? Y(to) : Y(to) + kLane);
    }
  }

  void Boxes() {
    for (size_t device = 0; device < result_.timeline.size(); ++device) {
      const double y = Y(static_cast<int64_t>(device));
      Write("<text x=\"8\" y=\"{:.2f}\">device {}</text>\n", y + kLane / 2 + 4, device);
      for (const auto& [action, start_ns, end_ns] : result_.timeline[device]) {
        const double x = X(start_ns);
        const double width = X(end_ns) - x;
        Write(
            "<rect class=\"{}\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{}\"><title>{}: {} to {}</title>"
            "</rect>\n",
            kPaints[static_cast<size_t>(action.kind)].css_class, x, y, width, kLane, ToString(action),
            Duration(start_ns), Duration(end_ns));
        const std::string number = std::to_string(action.micro_batch);
        if (width >= kDigitWidth * static_cast<double>(number.size())) {
          Write("<text class=\"n\" x=\"{:.2f}\" y=\"{:.2f}\">{}</text>\n", x + width / 2, y + kLane / 2 + 3, number);
        }
      }
    }
  }

  void Legend() {
    double x = kLeft;
    for (const Paint& paint : kPaints) {
      Write("<rect class=\"{}\" x=\"{}\" y=\"34\" width=\"14\" height=\"14\"/><text x=\"{}\" y=\"46\">{}</text>\n",
            paint.css_class, x, x + 20, paint.label);
      x += 140;
    }
    Write("<line class=\"m\" x1=\"{0}\" x2=\"{1}\" y1=\"34\" y2=\"48\"/><text x=\"{2}\" y=\"46\">message</text>\n", x,
          x + 14, x + 20);
    x += 90;
    Write(
        "<line class=\"c\" x1=\"{0}\" x2=\"{1}\" y1=\"41\" y2=\"41\"/><text x=\"{2}\" y=\"46\">crossing between "
        "sites</text>\n",
        x, x + 24, x + 30);
  }

  const SimulationResult& result_;
  const PipelineCosts& costs_;
  int64_t span_ns_ = 1;
  double chart_width_ = 0;
  double lanes_height_ = 0;
  std::string svg_;
};

}  // namespace

std::string ToSvg(const SimulationResult& result, const PipelineCosts& costs, std::string_view title) {
  return SvgChart(result, costs).Draw(title);
}

}  // namespace geopipe
