// Reads the model of a Hugging Face directory, its config.json, by the same keys as a job's model; and that of a
// checkpoint.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "optimizer/model/model_spec.h"

namespace geopipe {

// Reads <folder>/config.json of a Llama, Mistral, Qwen2 or Qwen3 model, or, if there is none, the model that
// <folder>/manifest.json of a checkpoint names; absent keys have the defaults of the family's class in transformers. An
// embedding beside it with more rows than the vocabulary is a padded one (padded_vocab_size).
// InvalidArgument names file, line, key and value of a model that this engine does not compute (another architecture,
// other rotary embeddings, quantised weights, dropout, ...).
absl::StatusOr<ModelSpec> ReadHfConfig(const std::filesystem::path& folder);

// The same from the text of a config.json that errors call `file`.
absl::StatusOr<ModelSpec> ParseHfConfig(std::string_view text, std::string_view file);

// Text that ParseHfConfig and transformers read back as the same model.
std::string FormatHfConfig(const ModelSpec& model, std::string_view torch_dtype);

// Reads <folder>/config.json; InvalidArgument begins with the first key on which `model` differs from it.
// max_position_embeddings and padded_vocab_size may differ: they change no number.
absl::Status CheckSameModel(const ModelSpec& model, const std::filesystem::path& folder);

}  // namespace geopipe
