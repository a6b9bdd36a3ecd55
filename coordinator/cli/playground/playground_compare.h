// `geopipectl playground --compare`: the same job under several schedules, one after the other, and one table.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <string_view>
#include <vector>

#include "coordinator/cli/run_report.h"
#include "optimizer/model/run_options.h"
#include "runtime/base/wrap.h"

namespace geopipe {

struct PlaygroundVariant {
  std::string label;   // as it was asked for: "geopipe:1/1"
  std::string suffix;  // of job name and folder: "geopipe-1-1"
  RunOptions run;
};

// "1f1b:blocking,1f1b,geopipe:1/1": schedules, each with a communication mode (non-blocking when none is given) or, for
// geopipe, ΔN (searched when not given): one for all crossings, or one for each with '/' between. Everything else is
// `common`'s. InvalidArgument names the variant; also when fewer than two, or twice the same.
absl::StatusOr<std::vector<PlaygroundVariant>> ParseVariants(std::string_view text, const RunOptions& common);

struct VariantReport {
  std::string label;
  RunReport report;
};

// True when the losses of all iterations are those of the first variant to the last bit.
bool SameLosses(const RunReport& first, const RunReport& other);

// Predicted and measured iteration time and bubble of each variant, its speed-up against the first, and whether the
// losses are the first one's; below, the variants during which processor time was stolen. REQUIRES: every report is of
// a completed job.
std::string ComparisonTable(const std::vector<VariantReport>& reports, int32_t columns = kAnyColumns);

// {"job","variants":[{"variant", …as RunReportToJson…, "speedup","losses_equal"}…]}: losses_equal is null where there
// are none. REQUIRES: as ComparisonTable.
absl::StatusOr<Json> ComparisonToJson(const std::string& job, const std::vector<VariantReport>& reports);

}  // namespace geopipe
