// Writes a model as a Hugging Face Llama directory.
#pragma once

#include <absl/status/status.h>

#include <string>

#include "optimizer/model/model_spec.h"
#include "runtime/model/weight_source.h"
#include "runtime/tensor/tensor.h"

namespace geopipe {

// Writes config.json and model.safetensors (`dtype` fp32 or bf16) into the existing folder `directory`, reading every
// tensor of `model` from `weights`, one at a time. A tied model gets no lm_head.weight. Files get their names only when
// they are whole. Errors: those of `weights`; Unavailable names the file that cannot be written and why.
absl::Status ExportHf(const std::string& directory, const ModelSpec& model, WeightSource& weights, DType dtype);

}  // namespace geopipe
