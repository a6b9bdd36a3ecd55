#include "runtime/manifest/hf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/files.h"
#include "runtime/manifest/job_schema.h"

namespace geopipe {
namespace {

constexpr size_t kMaxConfigBytes = size_t{1} << 20;
constexpr size_t kMaxCheckpointManifestBytes = size_t{64} << 20;  // as those who write it

// Keys that would change what the model computes, with the one value that leaves it as it is; empty: null alone.
struct Fixed {
  std::string_view key;
  std::string_view value;
};
constexpr std::array<Fixed, 12> kFixed = {{{"model_type", "llama"},
                                           {"hidden_act", "silu"},
                                           {"attention_bias", "false"},
                                           {"mlp_bias", "false"},
                                           {"attention_dropout", "0"},
                                           {"partial_rotary_factor", "1"},
                                           {"pretraining_tp", "1"},
                                           {"use_sliding_window", "false"},
                                           {"add_cross_attention", "false"},
                                           {"is_encoder_decoder", "false"},
                                           {"quantization_config", ""},
                                           {"compression_config", ""}}};

// Keys for which other readers of config.json insist on a number with a point.
constexpr std::array<std::string_view, 2> kReals = {"rope_theta", "rms_norm_eps"};

bool IsValue(const YamlNode& node, std::string_view value) {
  if (node.is_null() || (node.is_scalar() && node.scalar == value)) {
    return true;
  }
  const absl::StatusOr<double> number = ParseNumber(node.scalar);  // 1.0 is 1
  return node.is_scalar() && number.ok() && fmt::format("{}", *number) == value;
}

absl::Status Refuse(const YamlDocument& document, const YamlEntry& entry, std::string_view allowed) {
  return document.Error(entry.value.mark, entry.key,
                        fmt::format("is {}; only {} is supported", entry.value.Description(),
                                    allowed.empty() ? "null, or no such key," : allowed));
}

absl::Status CheckEntry(const YamlDocument& document, const YamlEntry& entry) {
  for (const Fixed& fixed : kFixed) {
    if (entry.key == fixed.key && !IsValue(entry.value, fixed.value)) {
      return Refuse(document, entry, fixed.value);
    }
  }
  const auto lists_only = [&](std::string_view word) {
    return std::ranges::all_of(entry.value.items, [&](const YamlNode& item) { return IsValue(item, word); });
  };
  if (entry.key == "architectures" && !lists_only("LlamaForCausalLM")) {
    return Refuse(document, entry, "[LlamaForCausalLM]");
  }
  if (entry.key == "layer_types" && !lists_only("full_attention")) {
    return Refuse(document, entry, "full_attention in all layers");
  }
  const YamlEntry* window = document.root.Find("use_sliding_window");
  if (entry.key == "sliding_window" && !entry.value.is_null() && window == nullptr) {
    return Refuse(document, entry, "null, or no such key");
  }
  if ((entry.key == "rope_scaling" || entry.key == "rope_parameters") && !entry.value.is_null()) {
    for (const YamlEntry& part : entry.value.entries) {
      if (((part.key == "rope_type" || part.key == "type") && !IsValue(part.value, "default")) ||
          (part.key == "partial_rotary_factor" && !IsValue(part.value, "1"))) {
        return Refuse(document, part, part.key == "partial_rotary_factor" ? "1" : "default");
      }
    }
    const bool typed = entry.value.Find("rope_type") != nullptr || entry.value.Find("type") != nullptr;
    if (!entry.value.is_map() || (!typed && entry.value.Find("factor") != nullptr)) {
      return Refuse(document, entry, "rope_type default");
    }
  }
  return absl::OkStatus();
}

// A checkpoint's manifest has the model as one flat object, by the keys of config.json. Whether the manifest is intact
// is seen by those who read tensors by it.
absl::StatusOr<ModelSpec> ModelOfManifest(std::string_view text, std::string_view file) {
  constexpr std::string_view kBegin = R"("model":{)";
  const size_t begin = text.find(kBegin);
  const size_t end = begin == std::string_view::npos ? begin : text.find('}', begin);
  if (end == std::string_view::npos) {
    return absl::DataLossError(fmt::format("{}: names no model; choose another checkpoint", file));
  }
  const size_t object = begin + kBegin.size() - 1;
  return ParseHfConfig(text.substr(object, end + 1 - object), file);
}

}  // namespace

absl::StatusOr<ModelSpec> ParseHfConfig(std::string_view text, std::string_view file) {
  GP_ASSIGN_OR_RETURN(YamlDocument document, ParseYaml(text, file));  // JSON is YAML
  if (!document.root.is_map()) {
    return document.Error({}, "", "no JSON object; it must be a model's config.json");
  }
  YamlDocument model_keys{document.file, {}};
  model_keys.root.kind = YamlNode::Kind::kMap;
  const std::vector<std::string> known = ModelSchema().KeyPaths();
  for (const YamlEntry& entry : document.root.entries) {
    GP_RETURN_IF_ERROR(CheckEntry(document, entry));
    // Newer configurations keep rope_theta among rope_parameters.
    const YamlEntry* theta = entry.key == "rope_parameters" ? entry.value.Find("rope_theta") : nullptr;
    const YamlEntry& given = theta == nullptr ? entry : *theta;
    if (std::ranges::find(known, given.key) != known.end() && !given.value.is_null()) {
      model_keys.root.entries.push_back(given);
    }
  }
  ModelSpec model;
  model.rms_norm_eps = 1e-6;
  GP_RETURN_IF_ERROR(ModelSchema().Overlay(model_keys, &model));
  if (model.num_key_value_heads == 0) {
    model.num_key_value_heads = model.num_attention_heads;
  }
  for (const std::string& key : known) {
    if (ModelSchema().Show(key, model) == "0") {
      return document.Error({}, key, "missing; a Llama model needs it");
    }
  }
  if (const absl::Status valid = ValidateModel(model); !valid.ok()) {
    return document.Error({}, "", std::string(valid.message()));
  }
  const YamlEntry* head_dim = document.root.Find("head_dim");
  if (head_dim != nullptr && !IsValue(head_dim->value, fmt::format("{}", model.head_dim()))) {
    return Refuse(document, *head_dim, fmt::format("{}, its hidden_size / num_attention_heads,", model.head_dim()));
  }
  return model;
}

absl::StatusOr<ModelSpec> ReadHfConfig(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "config.json";
  const absl::StatusOr<std::string> text = ReadFile(file, kMaxConfigBytes);
  if (text.ok()) {
    return ParseHfConfig(*text, file.string());
  }
  const absl::StatusOr<std::string> manifest = ReadFile(folder / "manifest.json", kMaxCheckpointManifestBytes);
  return manifest.ok() ? ModelOfManifest(*manifest, (folder / "manifest.json").string()) : text.status();
}

std::string FormatHfConfig(const ModelSpec& model, std::string_view torch_dtype) {
  std::string text = fmt::format(
      "{{\n  \"architectures\": [\"LlamaForCausalLM\"],\n  \"model_type\": \"llama\",\n  \"hidden_act\": \"silu\",\n"
      "  \"attention_bias\": false,\n  \"mlp_bias\": false,\n  \"torch_dtype\": \"{}\"",
      torch_dtype);
  for (const std::string& key : ModelSchema().KeyPaths()) {
    std::string value = ModelSchema().Show(key, model);
    const bool is_real = std::ranges::find(kReals, key) != kReals.end();
    if (is_real && value.find_first_not_of("0123456789") == std::string::npos) {
      value += ".0";
    }
    text += fmt::format(",\n  \"{}\": {}", key, value);
  }
  return text + "\n}\n";
}

absl::Status CheckSameModel(const ModelSpec& model, const std::filesystem::path& folder) {
  GP_ASSIGN_OR_RETURN(const ModelSpec stored, ReadHfConfig(folder));
  for (const std::string& key : ModelSchema().KeyPaths()) {
    const std::string ours = ModelSchema().Show(key, model);
    const std::string theirs = ModelSchema().Show(key, stored);
    if (ours != theirs && key != "max_position_embeddings") {
      return absl::InvalidArgumentError(
          fmt::format("model.{} is {}, but {} says {}; leave the key out", key, ours, folder.string(), theirs));
    }
  }
  return absl::OkStatus();
}

}  // namespace geopipe
