#include "coordinator/cli/render/timeline_labels.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "coordinator/cli/render/svg_writer.h"
#include "optimizer/base/quantities.h"

namespace geopipe {
namespace {

// The first crossing boundary between a device and the one before it; nullptr: none.
const BoundaryCost* CrossingBefore(const PipelineCosts& costs, int32_t device) {
  for (size_t boundary = 0; boundary < costs.boundaries.size(); ++boundary) {
    const int32_t a = costs.shape.placement[boundary];
    const int32_t b = costs.shape.placement[boundary + 1];
    if (costs.boundaries[boundary].crosses && std::max(a, b) == device && std::min(a, b) == device - 1) {
      return &costs.boundaries[boundary];
    }
  }
  return nullptr;
}

}  // namespace

TimelineLabels LabelsOfCosts(const PipelineCosts& costs, std::string title, int64_t lower_bound_ns) {
  TimelineLabels labels;
  labels.title = std::move(title);
  labels.lower_bound_ns = lower_bound_ns;
  std::vector<bool> crossed(static_cast<size_t>(costs.shape.devices), false);
  for (size_t boundary = 0; boundary < costs.boundaries.size(); ++boundary) {
    const int32_t a = costs.shape.placement[boundary];
    const int32_t b = costs.shape.placement[boundary + 1];
    if (costs.boundaries[boundary].crosses && std::max(a, b) - std::min(a, b) == 1) {
      crossed[static_cast<size_t>(std::max(a, b))] = true;
    }
  }
  const bool any = std::find(crossed.begin(), crossed.end(), true) != crossed.end();
  int32_t site = 0;
  for (const bool crosses : crossed) {
    site += crosses ? 1 : 0;
    labels.sites.push_back(any ? fmt::format("site {}", site) : "");
  }
  return labels;
}

std::vector<std::string> DeviceNames(const TimelineLabels& labels, int32_t devices) {
  std::vector<std::string> names;
  for (int32_t device = 0; device < devices; ++device) {
    const auto index = static_cast<size_t>(device);
    std::string where = index < labels.sites.size() ? labels.sites[index] : "";
    if (index < labels.places.size() && !labels.places[index].empty()) {
      where += fmt::format("{}{}", where.empty() ? "" : ", ", labels.places[index]);
    }
    names.push_back(where.empty() ? fmt::format("{} {}", labels.device, device)
                                  : fmt::format("{} {} ({})", labels.device, device, where));
  }
  return names;
}

bool BeginsSite(const TimelineLabels& labels, int32_t device) {
  return device > 0 && labels.sites[static_cast<size_t>(device)] != labels.sites[static_cast<size_t>(device) - 1];
}

std::string CrossingText(const PipelineCosts& costs, const TimelineLabels& labels, int32_t device) {
  const BoundaryCost* crossing = CrossingBefore(costs, device);
  if (crossing == nullptr) {
    return "";
  }
  std::string text = ShortDuration(crossing->latency_ns);
  if (crossing->serialization_ns > 0 && crossing->message_bytes > 0) {
    text += fmt::format(", {}", ShortBandwidth(1e9 * labels.pipelines * static_cast<double>(crossing->message_bytes) /
                                               static_cast<double>(crossing->serialization_ns)));
  }
  return text;
}

}  // namespace geopipe
