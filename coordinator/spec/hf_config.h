// The model of a Hugging Face directory.
#pragma once

#include <absl/status/statusor.h>

#include <filesystem>
#include <string_view>

#include "optimizer/model/model_spec.h"

namespace geopipe {

// Reads <folder>/config.json of a Llama model, with Hugging Face's defaults for keys that are not there.
// InvalidArgument names file, key and value: another architecture, biases, scaled rotary embeddings or another
// activation are not what this engine computes.
absl::StatusOr<ModelSpec> ReadHfConfig(const std::filesystem::path& folder);

// The same from the text of a config.json that errors call `file`.
absl::StatusOr<ModelSpec> ParseHfConfig(std::string_view text, std::string_view file);

}  // namespace geopipe
