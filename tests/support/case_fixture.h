// The golden cases of tests/golden/cases: explicit costs in YAML and the results that every simulator must reproduce.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/model/pipeline_costs.h"
#include "optimizer/schedule/schedule_table.h"

namespace geopipe {

struct ExpectedRow {
  ScheduleKind schedule = ScheduleKind::kGpipe;
  CommMode comm = CommMode::kNonBlocking;
  std::vector<int32_t> delta_n;  // per crossing, ascending; empty unless geopipe
  double iteration_s = 0;
  double bubble_ratio = 0;
  bool fits = true;
  std::optional<std::vector<int64_t>> peak_bytes;
};

struct GoldenCase {
  std::string name;
  PipelineCosts costs;
  double lower_bound_s = 0;
  std::vector<ExpectedRow> rows;
};

// All cases of expected.json. Fails the running test if a file is missing or malformed.
std::vector<GoldenCase> LoadGoldenCases();

// One ΔN per crossing, ascending, spread over all boundaries: 0 where no link crosses.
std::vector<int32_t> SpreadDeltaN(const PipelineCosts& costs, const std::vector<int32_t>& delta_n);

}  // namespace geopipe
