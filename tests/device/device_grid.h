// Grids of ranks, each a thread, that train on the device that is checked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/device/phases.h"
#include "tests/runtime/executor/grid_run.h"

namespace geopipe {

// One rank on the processor: a small model, or one of real widths.
GridOptions ModelOf(const DeviceCheckOptions& options, Precision precision);
// The same with a device for each rank, anew in every run.
GridOptions OnDevice(GridOptions grid, const DeviceCheckOptions& options);

// Trains the grid to its end.
absl::StatusOr<GridResult> Train(const GridOptions& grid);

std::string NameOf(Precision precision);  // "fp32"

// Reports whether two runs have the same bits, as far as the shorter one goes.
void CheckSameBits(std::string_view thing, const GridResult& actual, const GridResult& expected, Report& report);

// The bits of losses and norms, in hexadecimal.
std::string DigestOf(const GridResult& result);

}  // namespace geopipe
