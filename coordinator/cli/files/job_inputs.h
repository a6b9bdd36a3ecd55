// Checks the files that a job reads, where they lie on this machine, so that inputs which every rank would refuse are
// reported before the job begins.
#pragma once

#include <absl/status/status.h>

#include <string>

#include "optimizer/model/capabilities.h"
#include "optimizer/model/job_spec.h"

namespace geopipe {

// InvalidArgument, at the key's place in the job file: data, to train on or to evaluate with, that is refused (another
// format, dtype or vocabulary; too little for an evaluation). Files that are not here are left to the nodes. Reads a
// few hundred blocks, however large the data is.
absl::Status CheckDataHere(const JobSpec& job, const std::string& job_path);

// CheckDataHere, and InvalidArgument for data too short for an iteration and for weights that are no model of the
// job's, of which it reads headers, and of a tied model with a head of its own both tensors. A backend that computes
// nothing reads none of them.
absl::Status CheckInputsHere(const JobSpec& job, BackendKind backend, const std::string& job_path);

}  // namespace geopipe
