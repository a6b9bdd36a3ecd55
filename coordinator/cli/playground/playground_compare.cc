#include "coordinator/cli/playground/playground_compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "coordinator/cli/render/format.h"
#include "coordinator/cli/run_flags.h"
#include "coordinator/cli/verb.h"
#include "optimizer/base/status_macros.h"
#include "proto/wire/schedule_wire.h"

namespace geopipe {
namespace {

absl::StatusOr<PlaygroundVariant> ParseVariant(const std::string& label, const RunOptions& common) {
  PlaygroundVariant variant{.label = label, .suffix = label, .run = common};
  for (char& c : variant.suffix) {
    c = c == ':' || c == '/' ? '-' : c;
  }
  const std::vector<std::string> parts = Split(label, ':');
  GP_ASSIGN_OR_RETURN(variant.run.schedule, ParseScheduleKind(parts.front()));
  variant.run.comm = CommMode::kNonBlocking;
  variant.run.delta_n.clear();
  for (size_t i = 1; i < parts.size(); ++i) {
    std::string numbers = parts[i];
    std::ranges::replace(numbers, '/', ',');
    const absl::StatusOr<std::vector<int32_t>> delta_n = ParseDeltaN(numbers);
    const bool takes_delta_n = RowOf(*variant.run.schedule).uses_delta_n;
    if (delta_n.ok() && takes_delta_n) {
      variant.run.delta_n = *delta_n;
    } else if (parts[i] == CommModeName(CommMode::kBlocking)) {
      variant.run.comm = CommMode::kBlocking;
    } else if (parts[i] != CommModeName(CommMode::kNonBlocking)) {
      return absl::InvalidArgumentError(
          fmt::format("'{}' is not nonblocking, blocking{}", parts[i],
                      takes_delta_n ? " or ΔN as 2 or 2/1"
                                    : fmt::format("; ΔN belongs to {}", ScheduleNames(&ScheduleRow::uses_delta_n))));
    }
  }
  return variant;
}

// The median over the iterations after warm-up.
int64_t MeasuredNs(const RunReport& report) { return report.detail.measured().iteration_ns(); }

double SpeedUp(const RunReport& first, const RunReport& other) { return Ratio(MeasuredNs(first), MeasuredNs(other)); }

bool HasLosses(const RunReport& report) { return report.detail.run().backend() != v1::BACKEND_KIND_MODELLED; }

std::optional<bool> LossesEqual(const RunReport& first, const RunReport& other) {
  return HasLosses(other) ? std::optional(SameLosses(first, other)) : std::nullopt;
}

}  // namespace

absl::StatusOr<std::vector<PlaygroundVariant>> ParseVariants(std::string_view text, const RunOptions& common) {
  std::vector<PlaygroundVariant> variants;
  std::set<std::string> seen;
  for (const std::string& label : Split(text, ',')) {
    absl::StatusOr<PlaygroundVariant> variant = ParseVariant(label, common);
    if (!variant.ok()) {
      return absl::InvalidArgumentError(
          fmt::format("--compare: variant '{}': {}; an example: 1f1b:blocking,1f1b,geopipe", label,
                      std::string(variant.status().message())));
    }
    if (!seen.insert(variant->suffix).second) {
      return absl::InvalidArgumentError(fmt::format("--compare: variant '{}' is given twice", label));
    }
    variants.push_back(*std::move(variant));
  }
  if (variants.size() < 2) {
    return absl::InvalidArgumentError(
        fmt::format("--compare {}: give two variants or more, as in 1f1b:blocking,1f1b,geopipe", text));
  }
  return variants;
}

bool SameLosses(const RunReport& first, const RunReport& other) {
  return std::ranges::equal(first.iterations, other.iterations,
                            [](const v1::IterationSummary& a, const v1::IterationSummary& b) {
                              return a.iteration() == b.iteration() && a.loss() == b.loss() &&
                                     a.has_grad_norm() == b.has_grad_norm() && a.grad_norm() == b.grad_norm();
                            });
}

std::string ComparisonTable(const std::vector<VariantReport>& reports, int32_t columns) {
  Table table({"VARIANT", "ΔN", "PREDICTED", "MEASURED", "ERROR", "BUBBLE PREDICTED", "BUBBLE MEASURED",
               "95 % OF STARTS WITHIN", "SPEED-UP", "LOSSES"});
  const RunReport& first = reports.front().report;
  for (const VariantReport& variant : reports) {
    const RunReport& report = variant.report;
    const int64_t predicted_ns = report.detail.prediction().iteration_ns();
    const std::vector<int32_t> delta_n(report.detail.plan().delta_n().begin(), report.detail.plan().delta_n().end());
    const bool advances = report.detail.plan().schedule() == v1::SCHEDULE_KIND_GEOPIPE ||
                          report.detail.plan().schedule() == v1::SCHEDULE_KIND_GEOPIPE_ZB;
    const std::optional<bool> equal = LossesEqual(first, report);
    table.AddRow(
        {variant.label, advances ? FormatList(delta_n) : "-", HumanDuration(predicted_ns),
         HumanDuration(MeasuredNs(report)), fmt::format("{:+.1f} %", Excess(MeasuredNs(report), predicted_ns) * 100),
         HumanPercent(report.detail.prediction().bubble_ratio()), HumanPercent(report.detail.measured().bubble_ratio()),
         report.start_error_p95_ns < 0 ? "-" : HumanDuration(report.start_error_p95_ns),
         fmt::format("{:.2f}x", SpeedUp(first, report)),
         !equal.has_value() ? "none"
         : *equal           ? "equal"
                            : "DIFFER"});
  }
  std::string text = table.Render(columns);
  for (const VariantReport& variant : reports) {
    if (const std::string stolen = StolenNote(variant.report.stolen_share); !stolen.empty()) {
      text += fmt::format("{}: {}\n", variant.label, stolen);
    }
  }
  return text;
}

absl::StatusOr<Json> ComparisonToJson(const std::string& job, const std::vector<VariantReport>& reports) {
  Json json{{"job", job}, {"variants", Json::array()}};
  const RunReport& first = reports.front().report;
  for (const VariantReport& variant : reports) {
    GP_ASSIGN_OR_RETURN(const Json report, RunReportToJson(variant.report));
    Json row{{"variant", variant.label}};
    row.update(report);
    row["speedup"] = SpeedUp(first, variant.report);
    const std::optional<bool> equal = LossesEqual(first, variant.report);
    row["losses_equal"] = equal.has_value() ? Json(*equal) : Json(nullptr);
    json["variants"].push_back(std::move(row));
  }
  return json;
}

}  // namespace geopipe
