#include "runtime/manifest/hf_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/config/json_reader.h"
#include "runtime/base/config/located_error.h"
#include "runtime/base/files.h"
#include "runtime/base/format_of_file.h"
#include "runtime/manifest/job_schema.h"
#include "runtime/weights/hf_directory.h"

namespace geopipe {
namespace {

constexpr size_t kMaxConfigBytes = size_t{1} << 20;
constexpr size_t kMaxCheckpointManifestBytes = size_t{64} << 20;  // as those who write it

// Keys that would change what the model computes, with the one value that leaves it as it is; empty: null alone.
struct Fixed {
  std::string_view key;
  std::string_view value;
};
constexpr std::array<Fixed, 28> kFixed = {{{"hidden_act", "silu"},
                                           {"hidden_activation", "silu"},
                                           {"attention_out_bias", "false"},
                                           {"mlp_bias", "false"},
                                           {"use_bias", "false"},
                                           {"qkv_bias", "false"},
                                           {"use_qk_norm", "false"},
                                           {"attention_dropout", "0"},
                                           {"partial_rotary_factor", "1"},
                                           {"pretraining_tp", "1"},
                                           {"use_sliding_window", "false"},
                                           {"add_cross_attention", "false"},
                                           {"is_encoder_decoder", "false"},
                                           {"embedding_multiplier", "1"},
                                           {"residual_multiplier", "1"},
                                           {"logits_scaling", "1"},
                                           {"logit_scale", "1"},
                                           {"num_local_experts", "0"},
                                           {"num_experts", "0"},
                                           {"n_routed_experts", "0"},
                                           {"attention_multiplier", ""},
                                           {"attn_logit_softcapping", ""},
                                           {"final_logit_softcapping", ""},
                                           {"clip_qkv", ""},
                                           {"text_config", ""},
                                           {"vision_config", ""},
                                           {"quantization_config", ""},
                                           {"compression_config", ""}}};

// A family, and what its config.json means where it leaves a key out (the classes of Hugging Face transformers 4.57).
struct Family {
  ModelFamily family;
  std::string_view architecture;
  int64_t num_key_value_heads;  // 0: num_attention_heads
  int64_t head_dim;             // 0: hidden_size / num_attention_heads
  int64_t sliding_window;       // 0: none
  int64_t max_position_embeddings;
};
constexpr std::array<Family, 4> kFamilies = {{{ModelFamily::kLlama, "LlamaForCausalLM", 0, 0, 0, 2048},
                                              {ModelFamily::kMistral, "MistralForCausalLM", 8, 0, 4096, 131072},
                                              {ModelFamily::kQwen2, "Qwen2ForCausalLM", 32, 0, 0, 32768},
                                              {ModelFamily::kQwen3, "Qwen3ForCausalLM", 32, 128, 0, 32768}}};

const Family& RowOf(ModelFamily family) { return kFamilies[static_cast<size_t>(family)]; }

// Keys for which other readers of config.json insist on a number with a point.
constexpr std::array<std::string_view, 2> kReals = {"rope_theta", "rms_norm_eps"};

// A number that other readers take for one with a point.
std::string RealText(double value) {
  const std::string text = fmt::format("{}", value);
  return text.find_first_not_of("0123456789") == std::string::npos ? text + ".0" : text;
}

bool IsValue(const YamlNode& node, std::string_view value) {
  if (node.is_null() || (node.is_scalar() && node.scalar == value)) {
    return true;
  }
  const absl::StatusOr<double> number = ParseNumber(node.scalar);  // 1.0 is 1
  return node.is_scalar() && number.ok() && fmt::format("{}", *number) == value;
}

absl::Status Refuse(const YamlDocument& document, const std::string& path, const YamlNode& node,
                    std::string_view supported) {
  return document.Error(
      node.mark, path,
      fmt::format("is {}; only {} is supported", node.Description(), supported.empty() ? "null" : supported));
}

// Checks that the key is absent, `word`, or a list of `word` alone. The error names the first other word of a list.
absl::Status CheckWords(const YamlDocument& document, std::string_view key, std::string_view word) {
  const YamlEntry* entry = document.root.Find(key);
  if (entry == nullptr || (!entry->value.is_list() && IsValue(entry->value, word))) {
    return absl::OkStatus();
  }
  if (!entry->value.is_list()) {
    return Refuse(document, entry->key, entry->value, word);
  }
  for (const YamlNode& item : entry->value.items) {
    if (!item.is_scalar() || item.scalar != word) {
      return document.Error(item.mark, entry->key,
                            fmt::format("names {}; only {} is supported",
                                        item.is_scalar() ? item.scalar.substr(0, 100) : item.Description(), word));
    }
  }
  return absl::OkStatus();
}

// Checks "rope_scaling" or "rope_parameters", and returns its keys by their names in ModelSchema; empty: the
// frequencies are not scaled.
absl::StatusOr<std::vector<YamlEntry>> RopeKeys(const YamlDocument& document, const YamlEntry& rope) {
  std::vector<YamlEntry> keys;
  if (rope.value.is_null()) {
    return keys;
  }
  if (!rope.value.is_map()) {
    return Refuse(document, rope.key, rope.value, "a map");
  }
  const YamlEntry* type = rope.value.Find("rope_type");
  type = type == nullptr ? rope.value.Find("type") : type;
  const std::optional<RopeScaling::Type> known =
      type == nullptr ? RopeScaling::Type::kDefault : RopeTypeOf(type->value.scalar);
  if (type != nullptr && (!type->value.is_scalar() || !known.has_value())) {
    return Refuse(document, fmt::format("{}.{}", rope.key, type->key), type->value, "default, linear or llama3");
  }
  std::vector<std::string_view> needed;
  if (*known == RopeScaling::Type::kLinear) {
    needed = {"factor"};
  } else if (*known == RopeScaling::Type::kLlama3) {
    needed = {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"};
  }
  for (const YamlEntry& part : rope.value.entries) {
    const std::string path = fmt::format("{}.{}", rope.key, part.key);
    if (part.value.is_map()) {  // other frequencies for each type of layer
      return Refuse(document, path, part.value, "one rotary embedding for all layers");
    }
    if (part.key == "partial_rotary_factor" && !IsValue(part.value, "1")) {
      return Refuse(document, path, part.value, "1");
    }
    const bool is_named = part.key == "rope_type" || part.key == "type" || part.key == "rope_theta" ||
                          part.key == "partial_rotary_factor" || std::ranges::find(needed, part.key) != needed.end();
    if (!is_named && !part.value.is_null() && (type == nullptr ? part.key == "factor" : !needed.empty())) {
      return Refuse(document, path, part.value, "null");  // another type's
    }
  }
  if (!needed.empty()) {
    keys.push_back(*type);
    keys.back().key = "rope_type";
    keys.back().value.quoted = false;
  }
  for (const std::string_view key : needed) {
    const YamlEntry* given = rope.value.Find(key);
    if (given == nullptr || given->value.is_null()) {
      return document.Error(rope.value.mark, fmt::format("{}.{}", rope.key, key),
                            fmt::format("missing; rope_type {} needs it", type->value.scalar));
    }
    keys.push_back(*given);
  }
  const YamlEntry* theta = rope.value.Find("rope_theta");
  const YamlEntry* other = document.root.Find("rope_theta");
  if (theta != nullptr && other != nullptr && !IsValue(other->value, theta->value.scalar) &&
      ParseNumber(theta->value.scalar).value_or(0) != ParseNumber(other->value.scalar).value_or(1)) {
    return document.Error(theta->value.mark, fmt::format("{}.rope_theta", rope.key),
                          fmt::format("is {}, but rope_theta is {}; keep one of the two", theta->value.Description(),
                                      other->value.Description()));
  }
  return keys;
}

absl::Status CheckEntry(const YamlDocument& document, const YamlEntry& entry) {
  for (const Fixed& fixed : kFixed) {
    if (entry.key == fixed.key && !IsValue(entry.value, fixed.value)) {
      return Refuse(document, entry.key, entry.value, fixed.value);
    }
  }
  return absl::OkStatus();
}

// The family, which comes before all else: in another family, other keys may mean other things. A manifest's model has
// a model_type alone, or none.
absl::StatusOr<Family> FamilyOf(const YamlDocument& document) {
  std::vector<std::string_view> types;
  std::vector<std::string_view> architectures;
  for (const Family& family : kFamilies) {
    types.push_back(ModelFamilyName(family.family));
    architectures.push_back(family.architecture);
  }
  const Family* family = nullptr;
  const YamlEntry* named = document.root.Find("architectures");
  if (named != nullptr && !named->value.is_null()) {
    if (!named->value.is_list() || named->value.items.size() != 1) {
      return document.Error(named->value.mark, named->key,
                            fmt::format("is {}; it must be a list of one", named->value.Description()));
    }
    const std::string& name = named->value.items.front().scalar;
    const auto* const found = std::ranges::find(kFamilies, name, &Family::architecture);
    if (found == kFamilies.end()) {
      return document.Error(
          named->value.mark, named->key,
          fmt::format("names {}; supported are {}", name.substr(0, 100), fmt::join(architectures, ", ")));
    }
    family = found;
  }
  const YamlEntry* type = document.root.Find("model_type");
  if (type != nullptr && !type->value.is_null()) {
    const std::optional<ModelFamily> known = ModelFamilyOf(type->value.scalar);
    if (!type->value.is_scalar() || !known.has_value()) {
      return document.Error(type->value.mark, type->key,
                            fmt::format("is {}; supported are {}", type->value.Description(), fmt::join(types, ", ")));
    }
    if (family != nullptr && family->family != *known) {
      return document.Error(type->value.mark, type->key,
                            fmt::format("is {}; architectures names {}, of another family", type->value.Description(),
                                        family->architecture));
    }
    family = &RowOf(*known);
  }
  GP_RETURN_IF_ERROR(CheckWords(document, "layer_types", "full_attention"));
  return family == nullptr ? kFamilies.front() : *family;
}

// The keys of ModelSchema that the document gives.
absl::StatusOr<YamlDocument> ModelKeys(const YamlDocument& document, ModelFamily family,
                                       const std::vector<std::string>& known) {
  YamlDocument model_keys{document.file, {}};
  model_keys.root.kind = YamlNode::Kind::kMap;
  for (const YamlEntry& entry : document.root.entries) {
    GP_RETURN_IF_ERROR(CheckEntry(document, entry));
    if (entry.key == "rope_scaling" || entry.key == "rope_parameters") {
      GP_ASSIGN_OR_RETURN(std::vector<YamlEntry> rope, RopeKeys(document, entry));
      if (!rope.empty()) {
        YamlEntry scaling = entry;
        scaling.key = "rope_scaling";
        scaling.value.entries = std::move(rope);
        model_keys.root.entries.push_back(std::move(scaling));
      }
    }
    // A Llama has no window whatever the file says, and a Qwen only with use_sliding_window, which kFixed refuses.
    if (entry.key == "model_type" || (entry.key == "sliding_window" && family != ModelFamily::kMistral)) {
      continue;
    }
    // Newer configurations keep rope_theta among rope_parameters.
    const YamlEntry* theta = entry.key == "rope_parameters" ? entry.value.Find("rope_theta") : nullptr;
    const YamlEntry& given = theta == nullptr ? entry : *theta;
    if (std::ranges::find(known, given.key) == known.end() || given.value.is_null()) {
      continue;
    }
    if (given.value.quoted) {
      return document.Error(given.value.mark, given.key,
                            fmt::format("is the text {}; write the value without quotes", given.value.Description()));
    }
    model_keys.root.entries.push_back(given);
  }
  return model_keys;
}

// A config.json leaves out what its family's class has as its default, a checkpoint's manifest what a plain Llama has.
enum class WhatIsLeftOut : uint8_t { kOfFamily, kAsLlama };

absl::StatusOr<ModelSpec> ParseModel(std::string_view text, std::string_view file, WhatIsLeftOut left_out) {
  GP_ASSIGN_OR_RETURN(const YamlDocument document, ParseJsonDocument(text, file));
  if (!document.root.is_map()) {
    return document.Error(document.root.mark, "", "no JSON object; it must be a model's config.json");
  }
  GP_ASSIGN_OR_RETURN(const Family family, FamilyOf(document));
  const std::vector<std::string> known = ModelSchema().KeyPaths();
  GP_ASSIGN_OR_RETURN(const YamlDocument model_keys, ModelKeys(document, family.family, known));
  ModelSpec model;
  model.family = family.family;
  model.rms_norm_eps = 1e-6;
  // A key that is there but null has no default of its class.
  const auto default_of = [&](std::string_view key, int64_t of_class) {
    return left_out == WhatIsLeftOut::kOfFamily && document.root.Find(key) == nullptr ? of_class : 0;
  };
  model.num_key_value_heads = default_of("num_key_value_heads", family.num_key_value_heads);
  model.given_head_dim = default_of("head_dim", family.head_dim);
  model.sliding_window = default_of("sliding_window", family.sliding_window);
  model.max_position_embeddings = family.max_position_embeddings;
  GP_RETURN_IF_ERROR(ModelSchema().Overlay(model_keys, &model));
  if (model.num_key_value_heads == 0) {
    model.num_key_value_heads = model.num_attention_heads;
  }
  for (const std::string& key : known) {
    if (ModelSchema().Show(key, model) == "0") {
      return document.Error({}, key, "missing; every model needs it");
    }
  }
  if (const absl::Status valid = ValidateModel(model); !valid.ok()) {
    constexpr std::string_view kPrefix = "model.";
    const std::string message(valid.message());
    return AttributeToKey(document, "", absl::InvalidArgumentError(message.substr(kPrefix.size())));
  }
  DropDefaults(model);
  return model;
}

// A checkpoint's manifest has the model as one object, by the keys of config.json. Whether the manifest is intact
// is seen by those who read tensors by it.
absl::StatusOr<ModelSpec> ModelOfManifest(std::string_view text, std::string_view file) {
  constexpr std::string_view kBegin = R"("model":{)";
  const size_t begin = text.find(kBegin);
  size_t end = begin == std::string_view::npos ? text.size() : begin + kBegin.size();
  for (int depth = 1; end < text.size(); ++end) {
    depth += text[end] == '{' ? 1 : text[end] == '}' ? -1 : 0;
    if (depth == 0) {
      break;
    }
  }
  if (end >= text.size()) {
    return absl::DataLossError(fmt::format("{}: names no model; choose another checkpoint", file));
  }
  const size_t object = begin + kBegin.size() - 1;
  return ParseModel(text.substr(object, end + 1 - object), file, WhatIsLeftOut::kAsLlama);
}

}  // namespace

absl::StatusOr<ModelSpec> ParseHfConfig(std::string_view text, std::string_view file) {
  return ParseModel(text, file, WhatIsLeftOut::kOfFamily);
}

absl::StatusOr<ModelSpec> ReadHfConfig(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "config.json";
  const absl::StatusOr<std::string> text = ReadFile(file, kMaxConfigBytes);
  if (text.ok()) {
    const FileFormat* format = RecogniseFormat(*text);
    if (format != nullptr && format->kind != FormatKind::kText) {
      return absl::InvalidArgumentError(fmt::format("{}: is {}, not JSON; {}", file.string(), format->name,
                                                    RemedyFor(*format, WantedFile::kConfiguration)));
    }
    GP_ASSIGN_OR_RETURN(ModelSpec model, ParseHfConfig(*text, file.string()));
    // Weights that cannot be read are reported by those who read them.
    const absl::StatusOr<HfDirectory> weights = HfDirectory::Open(folder.string());
    if (weights.ok() && weights->EmbeddingRows() > model.vocab_size) {
      model.padded_vocab_size = weights->EmbeddingRows();
    }
    return model;
  }
  const std::filesystem::path manifest_file = folder / "manifest.json";
  const absl::StatusOr<std::string> manifest = ReadFile(manifest_file, kMaxCheckpointManifestBytes);
  if (manifest.ok()) {
    return ModelOfManifest(*manifest, manifest_file.string());
  }
  std::error_code error;
  const std::string other = absl::IsNotFound(text.status()) || std::filesystem::is_regular_file(folder, error)
                                ? DescribeOtherWeights(folder.string())
                                : "";
  return other.empty()
             ? text.status()
             : absl::InvalidArgumentError(fmt::format("{}: no config.json is there; it {}", folder.string(), other));
}

std::string FormatHfConfig(const ModelSpec& model, std::string_view torch_dtype) {
  const Family& family = RowOf(model.family);
  std::string text = fmt::format(
      "{{\n  \"architectures\": [\"{}\"],\n  \"model_type\": \"{}\",\n  \"hidden_act\": \"silu\",\n  "
      "\"torch_dtype\": \"{}\"",
      family.architecture, ModelFamilyName(model.family), torch_dtype);
  const auto add = [&](std::string_view key, std::string_view value) {
    text += fmt::format(",\n  \"{}\": {}", key, value);
  };
  if (model.family == ModelFamily::kLlama) {
    add("mlp_bias", "false");
  }
  if (model.family == ModelFamily::kQwen2 || model.family == ModelFamily::kQwen3) {
    add("use_sliding_window", "false");
  }
  for (const std::string& key : ModelSchema().KeyPaths()) {
    std::string value = ModelSchema().Show(key, model);
    const bool is_real = std::ranges::find(kReals, key) != kReals.end();
    if (is_real && value.find_first_not_of("0123456789") == std::string::npos) {
      value += ".0";
    }
    const bool has_bias = model.family == ModelFamily::kLlama || model.family == ModelFamily::kQwen3;
    if (key == "head_dim") {
      // A manifest may say that there are no heads.
      add(key, fmt::format("{}", model.num_attention_heads > 0 ? model.head_dim() : model.given_head_dim));
    } else if (key == "sliding_window") {
      // The family's class has a window where the key is left out.
      if (model.family == ModelFamily::kMistral) {
        add(key, model.sliding_window == 0 ? "null" : value);
      }
    } else if (key != "model_type" && key != "padded_vocab_size" && !key.starts_with("rope_scaling.") &&
               (key != "attention_bias" || has_bias)) {
      add(key, value);
    }
  }
  const RopeScaling& rope = model.rope_scaling;
  if (rope.type == RopeScaling::Type::kDefault) {
    add("rope_scaling", "null");
  } else if (rope.type == RopeScaling::Type::kLinear) {
    add("rope_scaling", fmt::format(R"({{"rope_type": "linear", "factor": {}}})", RealText(rope.factor)));
  } else {
    add("rope_scaling",
        fmt::format(R"({{"rope_type": "llama3", "factor": {}, "low_freq_factor": {}, "high_freq_factor": {}, )"
                    R"("original_max_position_embeddings": {}}})",
                    RealText(rope.factor), RealText(rope.low_freq_factor), RealText(rope.high_freq_factor),
                    rope.original_max_position_embeddings));
  }
  return text + "\n}\n";
}

absl::Status CheckSameModel(const ModelSpec& model, const std::filesystem::path& folder) {
  GP_ASSIGN_OR_RETURN(const ModelSpec stored, ReadHfConfig(folder));
  for (const std::string& key : ModelSchema().KeyPaths()) {
    const std::string ours = ModelSchema().Show(key, model);
    const std::string theirs = ModelSchema().Show(key, stored);
    if (ours != theirs && key != "max_position_embeddings" && key != "padded_vocab_size") {
      return absl::InvalidArgumentError(
          fmt::format("model.{} is {}, but {} says {}; leave the key out", key, ours, folder.string(), theirs));
    }
  }
  return absl::OkStatus();
}

}  // namespace geopipe
