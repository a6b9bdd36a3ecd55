// config.json of a Hugging Face Llama directory.
#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "optimizer/model/model_spec.h"
#include "runtime/tensor/tensor.h"

namespace geopipe {

// Reads and validates <directory>/config.json. Absent keys have the defaults of transformers' LlamaConfig. NotFound: no
// config.json. InvalidArgument names file, key and value: not JSON, a key missing or of the wrong type, or a model that
// is no plain Llama (another model_type, biases, scaled RoPE, an activation that is not silu, a head_dim of its own).
absl::StatusOr<ModelSpec> ReadHfConfig(const std::string& directory);

// InvalidArgument names the first key on which a job's model and that of its init_from directory differ.
absl::Status CheckSameModel(const ModelSpec& job, const ModelSpec& directory, const std::string& path);

// What transformers reads back as the same model, with "torch_dtype" float32 or bfloat16.
std::string HfConfigJson(const ModelSpec& model, DType dtype);

}  // namespace geopipe
