#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>

#include "coordinator/cli/render/format.h"
#include "coordinator/cli/render/svg_writer.h"
#include "coordinator/cli/render/timeline.h"
#include "coordinator/cli/render/timeline_layout.h"
#include "coordinator/cli/render/timeline_phases.h"
#include "optimizer/base/quantities.h"

namespace geopipe {
namespace {

constexpr double kBoxDigit = 5.3;    // width of a digit of the boxes' font, in pixels
constexpr double kSmallDigit = 4.3;  // of the smaller one, for boxes that are a little too narrow
constexpr double kShareStep = 5;     // pixels of one column where lanes show shares of time
constexpr double kTickDistance = 95;

struct Paint {
  std::string_view label;
  std::string_view css_class;
};

// Paints in the order of ActionKind.
constexpr std::array<Paint, 4> kPaints = {
    {{"F forward", "f"}, {"B backward", "b"}, {"I input gradient", "i"}, {"W weight gradient", "w"}}};

// Okabe and Ito's palette: sky blue, orange, bluish green and reddish purple (the two last made lighter, so that the
// numbers on them can be read), vermillion made darker for what crosses sites. v1 to v3: later stages of a device.
constexpr std::string_view kStyle =
    "text{font-size:11px;fill:#333} .h{font-size:16px;font-weight:bold;fill:#111} .s{font-size:12px;font-weight:bold;"
    "fill:#111} .n{font-size:9px;text-anchor:middle;fill:#111} .n.z{font-size:7.3px} .r{text-anchor:end} "
    ".t{text-anchor:middle} "
    ".k{fill:#A34700} .band{fill:#F1F3F5} .lane{fill:#E1E5E9} .e{fill:#B9C0C7} .hold{fill:url(#hatch)} "
    ".g{stroke:#C9CED3;stroke-width:.7} .p{stroke:#777;fill:none} .m{stroke:#A34700;stroke-opacity:.75;fill:none} "
    ".f{fill:#56B4E9} .b{fill:#E69F00} .i{fill:#2FB58C} .w{fill:#D48DB5} "
    ".v1{fill-opacity:.7} .v2{fill-opacity:.5} .v3{fill-opacity:.35}";

class TimelineSvg {
 public:
  TimelineSvg(const SimulationResult& result, const PipelineCosts& costs, const TimelineLabels& labels)
      : result_(result),
        costs_(costs),
        labels_(labels),
        layout_(LayOutTimeline(result, costs, labels)),
        svg_(layout_.width, layout_.height, kStyle),
        stage_ordinal_(static_cast<size_t>(costs.shape.stages), 0) {
    std::vector<size_t> stages_of(static_cast<size_t>(costs.shape.devices), 0);
    for (size_t stage = 0; stage < stage_ordinal_.size(); ++stage) {
      stage_ordinal_[stage] = std::min<size_t>(3, stages_of[static_cast<size_t>(costs.shape.placement[stage])]++);
    }
  }

  std::string Draw() {
    Title();
    Legend();
    for (int32_t system = 0; system < layout_.systems + (layout_.has_detail() ? 1 : 0); ++system) {
      if (layout_.is_detail(system)) {
        svg_.Text("s", 16, layout_.SystemTop(system) + 8, "a part of the steady phase, enlarged");
      }
      Bands(system);
      Lanes(system);
      Axis(system);
      Phases(system);
      if (layout_.shows_boxes(system)) {
        Holds(system);
        Boxes(system);
        Messages(system);
      } else {
        Shares(system);
      }
    }
    return std::move(svg_).Finish();
  }

 private:
  int32_t devices() const { return static_cast<int32_t>(layout_.lane_y.size()); }
  double Y(int32_t system, int32_t device) const {
    return layout_.SystemTop(system) + layout_.lane_y[static_cast<size_t>(device)];
  }
  double LanesEnd(int32_t system) const { return layout_.SystemTop(system) + layout_.lanes_end; }

  void Title() {
    svg_.Add(
        "<title>{}</title>\n<defs><pattern id=\"hatch\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" "
        "patternTransform=\"rotate(45)\"><rect width=\"5\" height=\"5\" fill=\"#E1E5E9\"/><rect width=\"1.6\" "
        "height=\"5\" fill=\"#A34700\" fill-opacity=\".55\"/></pattern></defs>\n",
        EscapeXml(labels_.title));
    svg_.Text("h", 16, 26, labels_.title);
    std::string figures =
        fmt::format("{} {}s × {} micro-batches · iteration {} · bubble {:.1f} %", devices(), labels_.device,
                    costs_.shape.micro_batches, ShortDuration(result_.iteration_ns), 100 * result_.bubble_ratio);
    if (labels_.lower_bound_ns > 0) {
      figures += fmt::format(" · {:.1f} % above the lower bound of {}",
                             100 * Excess(result_.iteration_ns, labels_.lower_bound_ns),
                             ShortDuration(labels_.lower_bound_ns));
    }
    svg_.Text("", 16, 45, figures);
  }

  // Draws a legend of the things that occur.
  void Legend() {
    double x = 16;
    const auto label = [&](std::string_view text) {
      svg_.Text("", x + 20, 66.5, text);
      x += 20 + TextWidth(text, 11) + 14;
    };
    std::array<bool, kPaints.size()> occurs{};
    for (const auto& lane : result_.timeline) {
      for (const ActionTiming& timing : lane) {
        occurs[static_cast<size_t>(timing.action.kind)] = true;
      }
    }
    const auto entry = [&](std::string_view css_class, std::string_view text) {
      svg_.Rect(css_class, x, 56, 14, 12);
      label(text);
    };
    for (size_t kind = 0; kind < kPaints.size(); ++kind) {
      if (occurs[kind]) {
        entry(kPaints[kind].css_class, kPaints[kind].label);
      }
    }
    entry("lane", "idle");
    const bool boxes = layout_.boxes || layout_.has_detail();
    if (boxes && costs_.comm == CommMode::kBlocking && !result_.messages.empty()) {
      entry("hold", "held by its own send");
    }
    if (costs_.epilogue_ns > 0) {
      entry("e", "weight update and synchronisation");
    }
    if (boxes && !result_.messages.empty()) {
      svg_.Line("m", x, 56, x + 14, 68);
      label("message between sites");
    }
    if (boxes && costs_.shape.stages > costs_.shape.devices) {
      label("lighter: later stages of a device");
    }
    if (!layout_.boxes) {
      const double column_ns = kShareStep * static_cast<double>(layout_.span_ns) / layout_.chart_width;
      label(fmt::format("heights are shares of {} each", ShortDuration(std::llround(column_ns))));
    }
  }

  void Bands(int32_t system) {
    for (int32_t first = 0; first < devices();) {
      int32_t last = first;
      while (last + 1 < devices() && !BeginsSite(labels_, last + 1)) {
        ++last;
      }
      const double top = Y(system, first) - 5;
      const double bottom = Y(system, last) + layout_.lane_height + 5;
      const std::string& site = labels_.sites[static_cast<size_t>(first)];
      svg_.Add("<rect class=\"band\" x=\"8\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"4\"/>\n", top,
               layout_.width - 16, bottom - top);
      // Characters of a long name that fit into the gutter; hovering shows the whole name.
      constexpr int32_t kMaxCharacters = 24;
      const bool fits = DisplayWidth(site) <= kMaxCharacters;
      svg_.Add("<text class=\"s\" x=\"16\" y=\"{:.1f}\"><title>{}</title>{}</text>\n", (top + bottom) / 2 + 4,
               EscapeXml(site), EscapeXml(fits ? site : Shortened(site, kMaxCharacters)));
      if (last + 1 < devices()) {
        svg_.Text("k", 16, bottom + 12, CrossingText(costs_, labels_, last + 1));
      }
      first = last + 1;
    }
  }

  static std::string Shortened(const std::string& text, int32_t characters) {
    size_t end = 0;
    for (int32_t count = 0; end < text.size() && count < characters; ++count) {
      do {
        ++end;
      } while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U);
    }
    return text.substr(0, end) + "…";
  }

  void Lanes(int32_t system) {
    const auto label_every = static_cast<int32_t>(std::ceil(11 / layout_.lane_height));
    for (int32_t device = 0; device < devices(); ++device) {
      const double y = Y(system, device);
      if (device % label_every == 0) {
        svg_.Text("r", layout_.left - 8, y + layout_.lane_height / 2 + 4, fmt::format("{} {}", labels_.device, device));
      }
      svg_.Rect("lane", layout_.left, y, layout_.chart_width, layout_.lane_height);
      if (costs_.epilogue_ns > 0) {
        Box("e", system, y, static_cast<double>(layout_.span_ns - costs_.epilogue_ns),
            static_cast<double>(layout_.span_ns), "");
      }
    }
  }

  void Axis(int32_t system) {
    static constexpr std::array<std::pair<double, std::string_view>, 4> kUnits = {
        {{1e9, "s"}, {1e6, "ms"}, {1e3, "µs"}, {1, "ns"}}};
    const auto span = static_cast<double>(layout_.span_ns);
    const auto* const unit =
        std::find_if(kUnits.begin(), kUnits.end() - 1, [&](const auto& candidate) { return span >= candidate.first; });
    const double bottom = LanesEnd(system) + 5;
    const double step = NiceStep(layout_.EndNs(system) - layout_.BeginNs(system), layout_.chart_width / kTickDistance);
    for (double tick = std::ceil(layout_.BeginNs(system) / step); tick * step <= layout_.EndNs(system); ++tick) {
      const double x = layout_.X(system, tick * step);
      svg_.Line("g", x, layout_.SystemTop(system) + layout_.lane_y.front() - 5, x, bottom + 4);
      svg_.Text("t", x, bottom + 16, fmt::format("{:.9g}", tick * step / unit->first));
    }
    svg_.Text("r", layout_.left - 14, bottom + 16, fmt::format("time, {}", unit->second));
  }

  void Phases(int32_t system) {
    const std::optional<TimelinePhases> phases = PhasesOf(result_);
    if (!phases.has_value() || layout_.is_detail(system)) {
      return;
    }
    const std::array<std::pair<std::string_view, std::pair<int64_t, int64_t>>, 3> named = {
        {{"warm-up", {0, phases->steady_ns}},
         {"steady", {phases->steady_ns, phases->drain_ns}},
         {"drain", {phases->drain_ns, result_.iteration_ns}}}};
    const double y = layout_.SystemTop(system) + layout_.lane_y.front() - 9;
    double free_x = 0;  // where the last label ends
    for (const auto& [name, times] : named) {
      const double begin_ns = std::max(static_cast<double>(times.first), layout_.BeginNs(system));
      const double end_ns = std::min(static_cast<double>(times.second), layout_.EndNs(system));
      const double x1 = layout_.X(system, begin_ns) + 1;
      const double x2 = layout_.X(system, end_ns) - 1;
      if (x2 <= x1) {
        continue;
      }
      svg_.Add("<path class=\"p\" d=\"M{0:.1f} {1:.1f}v-3H{2:.1f}v3\"/>\n", x1, y, x2);
      // A label that is wider than its bracket stands at the bracket's outer end: warm-up reaches to the right, drain
      // to the left.
      const double width = TextWidth(name, 11);
      const double wanted = x2 - x1 > width ? (x1 + x2) / 2 : name == "drain" ? x2 - width / 2 : x1 + width / 2;
      const double middle = std::min(std::max(wanted, free_x + width / 2 + 4), layout_.width - width / 2);
      if (name != "steady" || middle + width / 2 <= x2) {
        svg_.Text("t", middle, y - 7, name);
        free_x = middle + width / 2;
      }
    }
  }

  // The part of [begin_ns, end_ns] that lies in `system`; its width, 0 if there is none.
  double Box(std::string_view css_class, int32_t system, double y, double begin_ns, double end_ns,
             std::string_view title) {
    const double begin = std::max(begin_ns, layout_.BeginNs(system));
    const double end = std::min(end_ns, layout_.EndNs(system));
    if (end < begin || (end == begin && (system > 0 || begin_ns < end_ns))) {
      return 0;
    }
    const double x = layout_.X(system, begin);
    const double full = layout_.X(system, end) - x;
    const double width = full - std::min(0.8, 0.15 * full);  // a hair between neighbours
    svg_.Add("<rect class=\"{}\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\"", css_class, x, y, width,
             layout_.lane_height);
    if (title.empty()) {
      svg_.Add("/>\n");
    } else {
      svg_.Add("><title>{}</title></rect>\n", title);
    }
    return width;
  }

  void Boxes(int32_t system) {
    static constexpr std::array<std::string_view, 4> kStages = {"", " v1", " v2", " v3"};
    for (int32_t device = 0; device < devices(); ++device) {
      const double y = Y(system, device);
      for (const auto& [action, start_ns, end_ns] : result_.timeline[static_cast<size_t>(device)]) {
        const auto start = static_cast<double>(start_ns);
        const auto end = static_cast<double>(end_ns);
        if (end < layout_.BeginNs(system) || start > layout_.EndNs(system)) {
          continue;
        }
        const double width =
            Box(fmt::format("{}{}", kPaints[static_cast<size_t>(action.kind)].css_class,
                            kStages[stage_ordinal_[static_cast<size_t>(action.stage)]]),
                system, y, start, end,
                fmt::format("{}: {} to {}", ToString(action), ShortDuration(start_ns), ShortDuration(end_ns)));
        Number(width, layout_.X(system, std::max(start, layout_.BeginNs(system))), y, action.micro_batch);
      }
    }
  }

  void Number(double width, double x, double y, int32_t micro_batch) {
    const std::string number = std::to_string(micro_batch);
    const auto digits = static_cast<double>(number.size());
    if (layout_.lane_height < 12 || width < kSmallDigit * digits + 0.6) {
      return;
    }
    svg_.Add("<text class=\"{}\" x=\"{:.2f}\" y=\"{:.1f}\">{}</text>\n", width < kBoxDigit * digits + 1 ? "n z" : "n",
             x + width / 2, y + layout_.lane_height / 2 + 3.2, number);
  }

  int32_t SenderOf(const MessageTiming& message) const {
    return costs_.shape.placement[static_cast<size_t>(message.send.stage)];
  }

  // Draws blocking sends: from the end of the action to the message's acknowledgement.
  void Holds(int32_t system) {
    if (costs_.comm != CommMode::kBlocking) {
      return;
    }
    for (const MessageTiming& message : result_.messages) {
      const int32_t boundary = message.send.stage - (message.send.kind == ActionKind::kSendForward ? 0 : 1);
      const int64_t end_ns = message.arrive_ns + costs_.boundaries[static_cast<size_t>(boundary)].acknowledgement_ns;
      Box("hold", system, Y(system, SenderOf(message)), static_cast<double>(message.ready_ns),
          static_cast<double>(std::min(end_ns, layout_.span_ns)), "");
    }
  }

  // Draws messages: from the end of the sender's box, along it while the link is taken, and over to the receiver.
  void Messages(int32_t system) {
    for (const MessageTiming& message : result_.messages) {
      const int32_t from = SenderOf(message);
      const int32_t to_stage = message.send.stage + (message.send.kind == ActionKind::kSendForward ? 1 : -1);
      const int32_t to = costs_.shape.placement[static_cast<size_t>(to_stage)];
      const double y1 = Y(system, from) + (from < to ? layout_.lane_height : 0);
      const double y2 = Y(system, to) + (from < to ? 0 : layout_.lane_height);
      Segment(system, static_cast<double>(message.ready_ns), y1, static_cast<double>(message.enter_ns), y1);
      Segment(system, static_cast<double>(message.enter_ns), y1, static_cast<double>(message.arrive_ns), y2);
    }
  }

  void Segment(int32_t system, double begin_ns, double y1, double end_ns, double y2) {
    const double begin = std::max(begin_ns, layout_.BeginNs(system));
    const double end = std::min(end_ns, layout_.EndNs(system));
    if (begin >= end) {
      return;
    }
    const auto y = [&](double ns) { return y1 + (y2 - y1) * (ns - begin_ns) / (end_ns - begin_ns); };
    svg_.Line("m", layout_.X(system, begin), y(begin), layout_.X(system, end), y(end));
  }

  // Columns of a few pixels, in which each kind of action takes its share of the height.
  void Shares(int32_t system) {
    const auto columns = static_cast<size_t>(layout_.chart_width / kShareStep);
    for (int32_t device = 0; device < devices(); ++device) {
      const auto shares = SharesOf(result_.timeline[static_cast<size_t>(device)], layout_.span_ns, columns);
      std::vector<double> base(columns, 0);
      for (const ActionKind kind :
           {ActionKind::kBackward, ActionKind::kInputGradient, ActionKind::kWeightGradient, ActionKind::kForward}) {
        const std::vector<double>& share = shares[static_cast<size_t>(kind)];
        if (std::all_of(share.begin(), share.end(), [](double part) { return part == 0; })) {
          continue;
        }
        std::vector<double> top = base;
        for (size_t column = 0; column < columns; ++column) {
          top[column] = std::min(1.0, top[column] + share[column]);
        }
        Area(kPaints[static_cast<size_t>(kind)].css_class, Y(system, device), base, top);
        base = std::move(top);
      }
    }
  }

  void Area(std::string_view css_class, double y, const std::vector<double>& base, const std::vector<double>& top) {
    const double step = layout_.chart_width / static_cast<double>(base.size());
    const auto height = [&](double share) { return y + layout_.lane_height * (1 - share); };
    svg_.Add("<path class=\"{}\" d=\"M{:.1f} {:.1f}", css_class, layout_.left, height(base.front()));
    for (size_t column = 0; column < top.size(); ++column) {
      svg_.Add("V{:.1f}H{:.1f}", height(top[column]), layout_.left + step * static_cast<double>(column + 1));
    }
    for (size_t column = base.size(); column-- > 0;) {
      svg_.Add("V{:.1f}H{:.1f}", height(base[column]), layout_.left + step * static_cast<double>(column));
    }
    svg_.Add("Z\"/>\n");
  }

  const SimulationResult& result_;
  const PipelineCosts& costs_;
  const TimelineLabels& labels_;
  const TimelineLayout layout_;
  SvgWriter svg_;
  std::vector<size_t> stage_ordinal_;  // of a stage among those of its device
};

}  // namespace

std::string ToSvg(const SimulationResult& result, const PipelineCosts& costs, const TimelineLabels& labels) {
  return TimelineSvg(result, costs, labels).Draw();
}

}  // namespace geopipe
