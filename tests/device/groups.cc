#include <fmt/format.h>

#include <string>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "tests/device/device_grid.h"
#include "tests/runtime/executor/random_grid.h"

namespace geopipe {
namespace {

constexpr int64_t kIterations = 3;

struct Division {
  std::string name;
  int32_t tensor = 1;
  int32_t data = 1;
  int32_t zero_stage = 0;
  bool sequence_parallel = false;
};

std::vector<Division> DivisionsOf(Precision precision) {
  std::vector<Division> divisions = {{.name = "tensor 2, sequence parallel", .tensor = 2, .sequence_parallel = true},
                                     {.name = "data 2, zero 3", .data = 2, .zero_stage = 3}};
  if (precision == Precision::kFp32) {
    divisions.push_back({.name = "tensor 2", .tensor = 2});
    divisions.push_back({.name = "data 2", .data = 2});
    divisions.push_back({.name = "data 2, zero 1", .data = 2, .zero_stage = 1});
    divisions.push_back({.name = "data 2, zero 2", .data = 2, .zero_stage = 2});
    divisions.push_back({.name = "tensor 2, data 2, zero 1", .tensor = 2, .data = 2, .zero_stage = 1});
  }
  return divisions;
}

absl::Status CheckGroupsIn(const DeviceCheckOptions& options, Precision precision, double tolerance, Report& report) {
  GridOptions alone = OnDevice(ModelOf(options, precision), options);
  alone.iterations = kIterations;
  GP_ASSIGN_OR_RETURN(const GridResult expected, Train(alone));
  for (const Division& division : DivisionsOf(precision)) {
    const std::string thing = fmt::format("{}, {}", NameOf(precision), division.name);
    if (options.IsOver()) {
      report.LeaveOut(thing);
      continue;
    }
    GridOptions grid = alone;
    grid.grid = {.pipeline = 1, .data = division.data, .tensor = division.tensor};
    grid.zero_stage = division.zero_stage;
    grid.sequence_parallel = division.sequence_parallel;
    GP_ASSIGN_OR_RETURN(const GridResult result, Train(grid));
    report.Check(thing + ": losses from one rank's", Farthest(result.losses, expected.losses), tolerance);
    report.Check(thing + ": norms from one rank's", Farthest(result.norms, expected.norms), tolerance);
    GP_ASSIGN_OR_RETURN(const GridResult again, Train(grid));
    CheckSameBits(thing + ", again", again, result, report);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int64_t> CheckGroups(const DeviceCheckOptions& options) {
  GP_ASSIGN_OR_RETURN(Report report, Report::Create(options.folder, "groups.tsv"));
  GP_RETURN_IF_ERROR(CheckGroupsIn(options, Precision::kFp32, 1e-5, report));
  GP_RETURN_IF_ERROR(CheckGroupsIn(options, Precision::kBf16, 2e-2, report));
  fmt::print("{}\n", report.Summary("groups", options.SecondsSoFar()));
  return report.failed();
}

}  // namespace geopipe
