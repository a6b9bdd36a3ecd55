#include "coordinator/cli/sweep_flag.h"

#include <absl/status/status.h>
#include <fmt/format.h>

#include <charconv>
#include <cstdint>

#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/job_spec.h"

namespace geopipe {
namespace {

absl::Status Wrong(std::string_view text, std::string_view why) {
  return absl::InvalidArgumentError(fmt::format("--sweep {}: {}", text, why));
}

absl::StatusOr<SweepKey> ParseKey(std::string_view name) {
  for (const SweepKey key : {SweepKey::kBandwidth, SweepKey::kLatency, SweepKey::kDeltaN}) {
    if (name == SweepKeyName(key)) {
      return key;
    }
  }
  return absl::InvalidArgumentError(fmt::format("'{}' cannot be swept; use bandwidth, latency or delta_n", name));
}

absl::StatusOr<double> ParseValue(SweepKey key, std::string_view text) {
  if (key == SweepKey::kBandwidth) {
    return ParseBandwidth(text);
  }
  if (key == SweepKey::kLatency) {
    GP_ASSIGN_OR_RETURN(const int64_t latency_ns, ParseDuration(text));
    return static_cast<double>(latency_ns);
  }
  GP_ASSIGN_OR_RETURN(const int64_t delta_n, ParseInteger(text));
  if (delta_n < 0 || delta_n > kMaxDeltaN) {
    return absl::InvalidArgumentError(fmt::format("ΔN is {}; it must be from 0 to {}", delta_n, kMaxDeltaN));
  }
  return static_cast<double>(delta_n);
}

absl::StatusOr<SweepAxis> ParseAxis(std::string_view text, int32_t steps) {
  const size_t equals = text.find('=');
  const size_t dots = text.find("..");
  if (equals == std::string_view::npos || dots == std::string_view::npos || dots < equals) {
    return absl::InvalidArgumentError(
        "it must name a figure, its first value and its last, like bandwidth=10Gbps..400Gbps");
  }
  GP_ASSIGN_OR_RETURN(const SweepKey key, ParseKey(text.substr(0, equals)));
  GP_ASSIGN_OR_RETURN(const double low, ParseValue(key, text.substr(equals + 1, dots - equals - 1)));
  GP_ASSIGN_OR_RETURN(const double high, ParseValue(key, text.substr(dots + 2)));
  return MakeSweepAxis(key, low, high, steps);
}

absl::StatusOr<std::vector<int32_t>> ParseSteps(std::string_view text, size_t sweeps) {
  if (text.empty()) {
    return std::vector<int32_t>(sweeps, 0);
  }
  std::vector<int32_t> steps;
  std::string_view rest = text;
  while (true) {
    const std::string_view part = rest.substr(0, rest.find(','));
    int32_t value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (error != std::errc() || end != part.data() + part.size() || value < 1) {
      return absl::InvalidArgumentError(fmt::format("--steps {}: '{}' is not a number from 1 on", text, part));
    }
    steps.push_back(value);
    if (part.size() == rest.size()) {
      break;
    }
    rest.remove_prefix(part.size() + 1);
  }
  if (steps.size() == 1) {
    steps.assign(sweeps, steps.front());
  }
  if (steps.size() != sweeps) {
    return absl::InvalidArgumentError(fmt::format(
        "--steps {}: {} numbers for {} sweeps; give one for all or one for each", text, steps.size(), sweeps));
  }
  return steps;
}

}  // namespace

absl::StatusOr<std::vector<SweepAxis>> ParseSweeps(std::span<const std::string> texts, std::string_view steps) {
  if (texts.size() > 2) {
    return Wrong(texts[2], "a third figure; at most two can be swept at once");
  }
  GP_ASSIGN_OR_RETURN(const std::vector<int32_t> counts, ParseSteps(steps, texts.size()));
  std::vector<SweepAxis> axes;
  for (size_t i = 0; i < texts.size(); ++i) {
    absl::StatusOr<SweepAxis> axis = ParseAxis(texts[i], counts[i]);
    if (!axis.ok()) {
      return Wrong(texts[i], std::string(axis.status().message()));
    }
    if (!axes.empty() && axes.front().key == axis->key) {
      return Wrong(texts[i], "this figure is swept already; a grid needs two different ones");
    }
    axes.push_back(*std::move(axis));
  }
  return axes;
}

}  // namespace geopipe
