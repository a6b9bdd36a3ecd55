// Flags of a submission (RunOptions), shared by apply and playground.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>

#include "optimizer/model/run_options.h"
#include "runtime/base/flags.h"

namespace geopipe {

struct RunFlags {
  std::string schedule;
  std::string comm = "nonblocking";
  std::string delta_n;
  std::string backend = "cpu";
  std::string case_path;
  bool pace = false;
  bool resume = false;
  int64_t iterations = 0;

  void Register(FlagSet& flags);

  // Reads the case file when one is named. InvalidArgument names the flag.
  absl::StatusOr<RunOptions> Resolve() const;
};

}  // namespace geopipe
