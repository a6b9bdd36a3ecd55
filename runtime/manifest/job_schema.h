// The one description of a job: every key with its type, range, default, meaning and place in JobSpec.
#pragma once

#include <string>

#include "optimizer/model/job_spec.h"
#include "runtime/base/config/schema.h"

namespace geopipe {

// The keys of a model, named as in Hugging Face's config.json.
const Schema<ModelSpec>& ModelSchema();

// A job file as a whole. Relative paths are taken from `folder`.
Schema<JobSpec> JobSchema(const std::string& folder);

}  // namespace geopipe
