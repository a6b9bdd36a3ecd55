#include "optimizer/model/model_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>

namespace geopipe {
namespace {

struct Preset {
  std::string_view name;
  ModelSpec model;
};

// The published config.json of each checkpoint (arXiv 2307.09288).
const std::array<Preset, 3>& Presets() {
  static const std::array<Preset, 3> presets{{
      {"llama-2-7b",
       {.hidden_size = 4096,
        .intermediate_size = 11008,
        .num_hidden_layers = 32,
        .num_attention_heads = 32,
        .num_key_value_heads = 32,
        .vocab_size = 32000,
        .max_position_embeddings = 4096}},
      {"llama-2-13b",
       {.hidden_size = 5120,
        .intermediate_size = 13824,
        .num_hidden_layers = 40,
        .num_attention_heads = 40,
        .num_key_value_heads = 40,
        .vocab_size = 32000,
        .max_position_embeddings = 4096}},
      {"llama-2-70b",
       {.hidden_size = 8192,
        .intermediate_size = 28672,
        .num_hidden_layers = 80,
        .num_attention_heads = 64,
        .num_key_value_heads = 8,
        .vocab_size = 32000,
        .max_position_embeddings = 4096}},
  }};
  return presets;
}

}  // namespace

absl::StatusOr<ModelSpec> ModelPreset(std::string_view name) {
  for (const Preset& preset : Presets()) {
    if (preset.name == name) {
      return preset.model;
    }
  }
  return absl::NotFoundError(
      fmt::format("model.preset \"{}\" is not known; use one of {}", name, fmt::join(ModelPresetNames(), ", ")));
}

std::vector<std::string> ModelPresetNames() {
  std::vector<std::string> names;
  names.reserve(Presets().size());
  for (const Preset& preset : Presets()) {
    names.emplace_back(preset.name);
  }
  return names;
}

absl::Status ValidateModel(const ModelSpec& model) {
  if (model.hidden_size % model.num_attention_heads != 0) {
    return absl::InvalidArgumentError(
        fmt::format("model.num_attention_heads is {}; it must divide model.hidden_size {}", model.num_attention_heads,
                    model.hidden_size));
  }
  if (model.num_attention_heads % model.num_key_value_heads != 0) {
    return absl::InvalidArgumentError(
        fmt::format("model.num_key_value_heads is {}; it must divide model.num_attention_heads {}",
                    model.num_key_value_heads, model.num_attention_heads));
  }
  if (model.head_dim() % 2 != 0) {
    return absl::InvalidArgumentError(fmt::format(
        "model.num_attention_heads is {}; head size (hidden_size / num_attention_heads) is then {}, it must "
        "be even",
        model.num_attention_heads, model.head_dim()));
  }
  return absl::OkStatus();
}

}  // namespace geopipe
