// Checkpoint files on rehearsed links: they take their turn with the messages of training.
#pragma once

#include "runtime/worker/job_extension.h"

namespace geopipe {

// A PaceExchange; the result is empty for a job that shapes no link of the rank's site.
PaceOfSite RehearseExchange(const RankPreparation& preparation);

}  // namespace geopipe
