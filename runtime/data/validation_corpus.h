// The data on which a job's weights are evaluated.
#pragma once

#include <absl/status/statusor.h>

#include <memory>

#include "optimizer/model/job_spec.h"
#include "runtime/data/corpus.h"

namespace geopipe {

// Opens evaluation.data. Errors: those of OpenCorpus, with the keys of evaluation; InvalidArgument when it holds fewer
// samples than an evaluation takes, however long they are. REQUIRES: job.evaluates().
absl::StatusOr<std::unique_ptr<Corpus>> OpenValidationCorpus(const JobSpec& job);

}  // namespace geopipe
