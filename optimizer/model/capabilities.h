// The capabilities of each backend: the one table that command line, coordinator and worker ask before they run a job;
// and which backends a host has, which is a fact of that host: its worker program says it, its agent passes it on.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/model/job_spec.h"
#include "optimizer/model/run_options.h"

namespace geopipe {

struct Capabilities {
  BackendKind backend = BackendKind::kCpu;
  bool computes = false;    // real numbers; else it takes the modelled time
  bool own_memory = false;  // its devices have one beside the host's
};

const Capabilities& CapabilitiesOf(BackendKind backend);

// InvalidArgument when the backend cannot run the job: begins with the key and its value, ends with the remedy.
absl::Status CheckCapabilities(const JobSpec& job, BackendKind backend);

// The job as its ranks account it on the backend's devices, which the cluster that it was planned for says too
// (JobOnCluster in optimizer/model/plan/plan_costs.h).
JobSpec JobOnBackend(JobSpec job, BackendKind backend);

// A backend that the workers of a host cannot run.
struct RefusedBackend {
  BackendKind backend = BackendKind::kCpu;
  std::string reason;  // one sentence with the remedy

  friend bool operator==(const RefusedBackend&, const RefusedBackend&) = default;
};

// The answer of `geopipe-worker --backends`: one line for each backend, its name, and for one of `refused` behind a
// colon the reason, in one line.
std::string WriteBackends(std::span<const RefusedBackend> refused);
// The refused ones of such an answer, in the order of the kinds. InvalidArgument when it does not say of every backend
// once whether it can be run.
absl::StatusOr<std::vector<RefusedBackend>> ParseBackends(std::string_view text);

}  // namespace geopipe
