// Checks the files that a job reads, where they lie on this machine, so that inputs which every rank would refuse are
// reported before the job begins.
#pragma once

#include <absl/status/status.h>

#include <string>

#include "optimizer/model/job_spec.h"

namespace geopipe {

// InvalidArgument, at the key's place in the job file: data of another format, or weights of another model than the
// job's. Files that are not here are left to the nodes. Reads first bytes and headers, and both tensors of a tied model
// with a head of its own.
absl::Status CheckInputsHere(const JobSpec& job, const std::string& job_path);

}  // namespace geopipe
