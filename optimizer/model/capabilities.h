// The capabilities of each backend: the one table that command line, coordinator and worker ask before they run a job.
#pragma once

#include <absl/status/status.h>

#include <cstdint>

#include "optimizer/model/job_spec.h"
#include "optimizer/model/run_options.h"

namespace geopipe {

struct Capabilities {
  BackendKind backend = BackendKind::kCpu;
  bool built = false;     // into this version
  bool computes = false;  // real numbers; else it takes the modelled time
};

const Capabilities& CapabilitiesOf(BackendKind backend);

// InvalidArgument when the backend is not built, with the ones that are.
absl::Status CheckBuilt(BackendKind backend);

// InvalidArgument when the backend cannot run the job: begins with the key and its value, ends with the remedy.
// REQUIRES: CheckBuilt(backend).ok().
absl::Status CheckCapabilities(const JobSpec& job, BackendKind backend);

}  // namespace geopipe
