// The files that a job reads, where they lie on this machine: what every rank would refuse is told before a job begins.
#pragma once

#include <absl/status/status.h>

#include <string>

#include "optimizer/model/job_spec.h"

namespace geopipe {

// InvalidArgument, at the key's place in the job file: data of another format, weights that are no model of the job's.
// Files that are not here are the nodes' own affair. Reads first bytes and headers, and of a tied model with a head of
// its own both tensors.
absl::Status CheckInputsHere(const JobSpec& job, const std::string& job_path);

}  // namespace geopipe
