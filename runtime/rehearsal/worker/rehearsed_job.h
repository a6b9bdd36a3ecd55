// Rehearsed jobs: links that are shaped, devices that are paced or modelled.
#pragma once

#include <memory>

#include "runtime/worker/job_extension.h"

namespace geopipe {

// An ExtendJob; null for a job that rehearses nothing.
std::unique_ptr<JobExtension> RehearseJob(const RankPreparation& preparation, Allocator& allocator, Clock& clock);

}  // namespace geopipe
