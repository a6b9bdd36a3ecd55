#include "optimizer/model/model_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

namespace geopipe {
namespace {

// Names stand in the order of the enumerations.
constexpr std::array<std::string_view, 4> kFamilyNames{"llama", "mistral", "qwen2", "qwen3"};
constexpr std::array<std::string_view, 3> kRopeTypeNames{"default", "linear", "llama3"};

template <class Enum, size_t kCount>
std::optional<Enum> Of(const std::array<std::string_view, kCount>& names, std::string_view name) {
  const auto* const found = std::ranges::find(names, name);
  return found == names.end() ? std::nullopt : std::optional(static_cast<Enum>(found - names.begin()));
}

struct Preset {
  std::string_view name;
  ModelSpec model;
};

// Shapes that the sizes of a family differ in.
struct Size {
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  bool tied = false;
};

ModelSpec Shaped(ModelSpec family, const Size& size) {
  family.hidden_size = size.hidden;
  family.intermediate_size = size.intermediate;
  family.num_hidden_layers = size.layers;
  family.num_attention_heads = size.heads;
  family.num_key_value_heads = size.kv_heads;
  family.tie_word_embeddings = size.tied;
  DropDefaults(family);
  return family;
}

ModelSpec Llama2(const Size& size) {
  return Shaped({.vocab_size = 32000, .max_position_embeddings = 4096, .rms_norm_eps = 1e-5}, size);
}

ModelSpec Llama3(const Size& size) {
  return Shaped({.vocab_size = 128256, .max_position_embeddings = 8192, .rope_theta = 500000.0, .rms_norm_eps = 1e-5},
                size);
}

// From 3.1 on: 131,072 positions.
ModelSpec Llama31(const Size& size, double factor = 8) {
  ModelSpec model = Llama3(size);
  model.max_position_embeddings = 131072;
  model.rope_scaling = {.type = RopeScaling::Type::kLlama3,
                        .factor = factor,
                        .low_freq_factor = 1,
                        .high_freq_factor = 4,
                        .original_max_position_embeddings = 8192};
  return model;
}

ModelSpec Mistral7b(int64_t vocab_size, double rope_theta, int64_t sliding_window) {
  return Shaped({.family = ModelFamily::kMistral,
                 .vocab_size = vocab_size,
                 .max_position_embeddings = 32768,
                 .rope_theta = rope_theta,
                 .sliding_window = sliding_window,
                 .rms_norm_eps = 1e-5},
                {4096, 14336, 32, 32, 8});
}

ModelSpec Qwen25(const Size& size, int64_t vocab_size, int64_t positions, double rms_norm_eps) {
  return Shaped({.family = ModelFamily::kQwen2,
                 .vocab_size = vocab_size,
                 .max_position_embeddings = positions,
                 .rope_theta = 1e6,
                 .rms_norm_eps = rms_norm_eps},
                size);
}

ModelSpec Qwen3(const Size& size) {
  return Shaped({.family = ModelFamily::kQwen3,
                 .given_head_dim = 128,
                 .vocab_size = 151936,
                 .max_position_embeddings = 40960,
                 .rope_theta = 1e6,
                 .rms_norm_eps = 1e-6},
                size);
}

// The published config.json of each checkpoint.
const std::vector<Preset>& Presets() {
  static const auto& presets = *new std::vector<Preset>{
      {"llama-2-7b", Llama2({4096, 11008, 32, 32, 32})},
      {"llama-2-13b", Llama2({5120, 13824, 40, 40, 40})},
      {"llama-2-70b", Llama2({8192, 28672, 80, 64, 8})},
      {"llama-3-8b", Llama3({4096, 14336, 32, 32, 8})},
      {"llama-3-70b", Llama3({8192, 28672, 80, 64, 8})},
      {"llama-3.1-8b", Llama31({4096, 14336, 32, 32, 8})},
      {"llama-3.1-70b", Llama31({8192, 28672, 80, 64, 8})},
      {"llama-3.1-405b", Llama31({16384, 53248, 126, 128, 8})},
      {"llama-3.2-1b", Llama31({2048, 8192, 16, 32, 8, true}, 32)},
      {"llama-3.2-3b", Llama31({3072, 8192, 28, 24, 8, true}, 32)},
      {"llama-3.3-70b", Llama31({8192, 28672, 80, 64, 8})},
      {"mistral-7b-v0.1", Mistral7b(32000, 10000.0, 4096)},
      {"mistral-7b-v0.3", Mistral7b(32768, 1e6, 0)},
      {"qwen2.5-0.5b", Qwen25({896, 4864, 24, 14, 2, true}, 151936, 32768, 1e-6)},
      {"qwen2.5-1.5b", Qwen25({1536, 8960, 28, 12, 2, true}, 151936, 131072, 1e-6)},
      {"qwen2.5-3b", Qwen25({2048, 11008, 36, 16, 2, true}, 151936, 32768, 1e-6)},
      {"qwen2.5-7b", Qwen25({3584, 18944, 28, 28, 4}, 152064, 131072, 1e-6)},
      {"qwen2.5-14b", Qwen25({5120, 13824, 48, 40, 8}, 152064, 131072, 1e-5)},
      {"qwen2.5-32b", Qwen25({5120, 27648, 64, 40, 8}, 152064, 131072, 1e-5)},
      {"qwen2.5-72b", Qwen25({8192, 29568, 80, 64, 8}, 152064, 131072, 1e-5)},
      {"qwen3-0.6b", Qwen3({1024, 3072, 28, 16, 8, true})},
      {"qwen3-1.7b", Qwen3({2048, 6144, 28, 16, 8, true})},
      {"qwen3-4b", Qwen3({2560, 9728, 36, 32, 8, true})},
      {"qwen3-8b", Qwen3({4096, 12288, 36, 32, 8})},
      {"qwen3-14b", Qwen3({5120, 17408, 40, 40, 8})},
      {"qwen3-32b", Qwen3({5120, 25600, 64, 64, 8})},
  };
  return presets;
}

absl::Status ValidateRopeScaling(const RopeScaling& scaling) {
  const auto unused = [&](std::string_view key, double value) {
    return absl::InvalidArgumentError(
        fmt::format("model.rope_scaling.{} is {}; rope_type {} does not use it, leave it out or give another rope_type",
                    key, value, RopeTypeName(scaling.type)));
  };
  const RopeScaling none;
  if (scaling.type == RopeScaling::Type::kDefault && scaling.factor != none.factor) {
    return unused("factor", scaling.factor);
  }
  if (scaling.type == RopeScaling::Type::kLlama3) {
    return scaling.low_freq_factor < scaling.high_freq_factor
               ? absl::OkStatus()
               : absl::InvalidArgumentError(fmt::format(
                     "model.rope_scaling.low_freq_factor is {}; it must be below model.rope_scaling.high_freq_factor "
                     "{}",
                     scaling.low_freq_factor, scaling.high_freq_factor));
  }
  if (scaling.low_freq_factor != none.low_freq_factor) {
    return unused("low_freq_factor", scaling.low_freq_factor);
  }
  if (scaling.high_freq_factor != none.high_freq_factor) {
    return unused("high_freq_factor", scaling.high_freq_factor);
  }
  if (scaling.original_max_position_embeddings != none.original_max_position_embeddings) {
    return unused("original_max_position_embeddings", static_cast<double>(scaling.original_max_position_embeddings));
  }
  return absl::OkStatus();
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

std::string_view ModelFamilyName(ModelFamily family) { return kFamilyNames[static_cast<size_t>(family)]; }

std::optional<ModelFamily> ModelFamilyOf(std::string_view name) { return Of<ModelFamily>(kFamilyNames, name); }

std::string_view RopeTypeName(RopeScaling::Type type) { return kRopeTypeNames[static_cast<size_t>(type)]; }

std::optional<RopeScaling::Type> RopeTypeOf(std::string_view name) {
  return Of<RopeScaling::Type>(kRopeTypeNames, name);
}

double RopeFrequency(const ModelSpec& model, int64_t pair) {
  const double frequency =
      std::pow(model.rope_theta, -2.0 * static_cast<double>(pair) / static_cast<double>(model.head_dim()));
  const RopeScaling& scaling = model.rope_scaling;
  if (scaling.type == RopeScaling::Type::kDefault) {
    return frequency;
  }
  if (scaling.type == RopeScaling::Type::kLinear) {
    return frequency / scaling.factor;
  }
  const auto original = static_cast<double>(scaling.original_max_position_embeddings);
  const double waves = original * frequency / (2 * std::numbers::pi);  // within the original length
  if (waves < scaling.low_freq_factor) {
    return frequency / scaling.factor;
  }
  if (waves > scaling.high_freq_factor) {
    return frequency;
  }
  const double smooth = (waves - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
}

void DropDefaults(ModelSpec& model) {
  if (model.given_head_dim * model.num_attention_heads == model.hidden_size) {
    model.given_head_dim = 0;
  }
  if (model.padded_vocab_size == model.vocab_size) {
    model.padded_vocab_size = 0;
  }
}

absl::Status ValidateModel(const ModelSpec& model) {
  if (model.given_head_dim == 0 && model.hidden_size % model.num_attention_heads != 0) {
    return absl::InvalidArgumentError(
        fmt::format("model.num_attention_heads is {}; it must divide model.hidden_size {}, or give model.head_dim",
                    model.num_attention_heads, model.hidden_size));
  }
  constexpr int64_t kMaxQueryWidth = int64_t{1} << 20;
  if (model.query_width() > kMaxQueryWidth) {
    return absl::InvalidArgumentError(
        fmt::format("model.head_dim is {}; with model.num_attention_heads {} queries would be {} wide, more than {}",
                    model.head_dim(), model.num_attention_heads, model.query_width(), kMaxQueryWidth));
  }
  if (model.num_attention_heads % model.num_key_value_heads != 0) {
    return absl::InvalidArgumentError(
        fmt::format("model.num_key_value_heads is {}; it must divide model.num_attention_heads {}",
                    model.num_key_value_heads, model.num_attention_heads));
  }
  if (model.given_head_dim % 2 != 0) {
    return absl::InvalidArgumentError(
        fmt::format("model.head_dim is {}; RoPE turns pairs, so it must be even", model.given_head_dim));
  }
  if (model.head_dim() % 2 != 0) {
    return absl::InvalidArgumentError(fmt::format(
        "model.num_attention_heads is {}; head size (hidden_size / num_attention_heads) is then {}, it must "
        "be even",
        model.num_attention_heads, model.head_dim()));
  }
  if (model.padded_vocab_size > 0 && model.padded_vocab_size < model.vocab_size) {
    return absl::InvalidArgumentError(
        fmt::format("model.padded_vocab_size is {}; it must be at least model.vocab_size {}", model.padded_vocab_size,
                    model.vocab_size));
  }
  const bool may_have_bias = model.family == ModelFamily::kLlama || model.family == ModelFamily::kQwen3;
  if (model.attention_bias && !may_have_bias) {
    return absl::InvalidArgumentError(
        fmt::format("model.attention_bias is true; a {} model has none{}", ModelFamilyName(model.family),
                    model.family == ModelFamily::kQwen2 ? " but those of q, k and v, which it always has" : ""));
  }
  if (model.sliding_window > 0 && model.family != ModelFamily::kMistral) {
    return absl::InvalidArgumentError(fmt::format("model.sliding_window is {}; a {} model has none, only mistral has",
                                                  model.sliding_window, ModelFamilyName(model.family)));
  }
  return ValidateRopeScaling(model.rope_scaling);
}

}  // namespace geopipe
