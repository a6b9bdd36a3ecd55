// The text of `plan --sweep` and `--steps`.
#pragma once

#include <absl/status/statusor.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/plan/sweep.h"

namespace geopipe {

// "bandwidth=10Gbps..400Gbps", "latency=0.5ms..50ms", "delta_n=0..16": one axis per text, in their order. `steps` is
// empty, one number for all, or one for each ("7,14"). InvalidArgument begins with the flag and its text.
absl::StatusOr<std::vector<SweepAxis>> ParseSweeps(std::span<const std::string> texts, std::string_view steps);

}  // namespace geopipe
