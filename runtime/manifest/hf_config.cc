#include "runtime/manifest/hf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
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

namespace geopipe {
namespace {

constexpr size_t kMaxConfigBytes = size_t{1} << 20;
constexpr size_t kMaxCheckpointManifestBytes = size_t{64} << 20;  // as those who write it

// Keys that would change what the model computes, with the one value that leaves it as it is; empty: null alone.
struct Fixed {
  std::string_view key;
  std::string_view value;
};
constexpr std::array<Fixed, 30> kFixed = {{{"model_type", "llama"},
                                           {"hidden_act", "silu"},
                                           {"hidden_activation", "silu"},
                                           {"attention_bias", "false"},
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

// Keys for which other readers of config.json insist on a number with a point.
constexpr std::array<std::string_view, 2> kReals = {"rope_theta", "rms_norm_eps"};

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

// "rope_scaling" or "rope_parameters".
absl::Status CheckRope(const YamlDocument& document, const YamlEntry& rope) {
  if (rope.value.is_null()) {
    return absl::OkStatus();
  }
  if (!rope.value.is_map()) {
    return Refuse(document, rope.key, rope.value, "rope_type default");
  }
  for (const YamlEntry& part : rope.value.entries) {
    const std::string path = fmt::format("{}.{}", rope.key, part.key);
    if ((part.key == "rope_type" || part.key == "type") && !IsValue(part.value, "default")) {
      return Refuse(document, path, part.value, "default");
    }
    if (part.key == "partial_rotary_factor" && !IsValue(part.value, "1")) {
      return Refuse(document, path, part.value, "1");
    }
    if (part.value.is_map()) {  // other frequencies for each type of layer
      return Refuse(document, path, part.value, "one rotary embedding for all layers");
    }
  }
  if (rope.value.Find("rope_type") == nullptr && rope.value.Find("type") == nullptr &&
      rope.value.Find("factor") != nullptr) {
    return Refuse(document, rope.key, rope.value, "rope_type default");
  }
  const YamlEntry* theta = rope.value.Find("rope_theta");
  const YamlEntry* other = document.root.Find("rope_theta");
  if (theta != nullptr && other != nullptr && !IsValue(other->value, theta->value.scalar) &&
      ParseNumber(theta->value.scalar).value_or(0) != ParseNumber(other->value.scalar).value_or(1)) {
    return document.Error(theta->value.mark, fmt::format("{}.rope_theta", rope.key),
                          fmt::format("is {}, but rope_theta is {}; keep one of the two", theta->value.Description(),
                                      other->value.Description()));
  }
  return absl::OkStatus();
}

absl::Status CheckEntry(const YamlDocument& document, const YamlEntry& entry) {
  for (const Fixed& fixed : kFixed) {
    if (entry.key == fixed.key && !IsValue(entry.value, fixed.value)) {
      return Refuse(document, entry.key, entry.value, fixed.value);
    }
  }
  const YamlEntry* window = document.root.Find("use_sliding_window");
  if (entry.key == "sliding_window" && !entry.value.is_null() && window == nullptr) {
    return Refuse(document, entry.key, entry.value, "null");
  }
  const bool is_rope = entry.key == "rope_scaling" || entry.key == "rope_parameters";
  return is_rope ? CheckRope(document, entry) : absl::OkStatus();
}

// Checks the family of models before all else: in another family, other keys may mean other things.
absl::Status CheckFamily(const YamlDocument& document) {
  GP_RETURN_IF_ERROR(CheckWords(document, "architectures", "LlamaForCausalLM"));
  GP_RETURN_IF_ERROR(CheckWords(document, "model_type", "llama"));
  return CheckWords(document, "layer_types", "full_attention");
}

// Comes before ValidateModel: a config.json with a head_dim need not have heads that divide hidden_size.
absl::Status CheckHeadSize(const YamlDocument& document, const ModelSpec& model) {
  const YamlEntry* head_dim = document.root.Find("head_dim");
  if (head_dim == nullptr || head_dim->value.is_null()) {
    return absl::OkStatus();
  }
  const bool divides = model.hidden_size % model.num_attention_heads == 0;
  if (divides && IsValue(head_dim->value, fmt::format("{}", model.head_dim()))) {
    return absl::OkStatus();
  }
  return document.Error(head_dim->value.mark, head_dim->key,
                        fmt::format("is {}; only hidden_size / num_attention_heads, {} / {}, is supported",
                                    head_dim->value.Description(), model.hidden_size, model.num_attention_heads));
}

// The keys of ModelSchema that the document gives.
absl::StatusOr<YamlDocument> ModelKeys(const YamlDocument& document, const std::vector<std::string>& known) {
  YamlDocument model_keys{document.file, {}};
  model_keys.root.kind = YamlNode::Kind::kMap;
  for (const YamlEntry& entry : document.root.entries) {
    GP_RETURN_IF_ERROR(CheckEntry(document, entry));
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
  GP_ASSIGN_OR_RETURN(const YamlDocument document, ParseJsonDocument(text, file));
  if (!document.root.is_map()) {
    return document.Error(document.root.mark, "", "no JSON object; it must be a model's config.json");
  }
  GP_RETURN_IF_ERROR(CheckFamily(document));
  const std::vector<std::string> known = ModelSchema().KeyPaths();
  GP_ASSIGN_OR_RETURN(const YamlDocument model_keys, ModelKeys(document, known));
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
  GP_RETURN_IF_ERROR(CheckHeadSize(document, model));
  if (const absl::Status valid = ValidateModel(model); !valid.ok()) {
    constexpr std::string_view kPrefix = "model.";
    const std::string message(valid.message());
    return AttributeToKey(document, "", absl::InvalidArgumentError(message.substr(kPrefix.size())));
  }
  return model;
}

absl::StatusOr<ModelSpec> ReadHfConfig(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "config.json";
  const absl::StatusOr<std::string> text = ReadFile(file, kMaxConfigBytes);
  if (text.ok()) {
    const FileFormat* format = RecogniseFormat(*text);
    return format == nullptr || format->kind == FormatKind::kText
               ? ParseHfConfig(*text, file.string())
               : absl::InvalidArgumentError(fmt::format("{}: is {}, not JSON; {}", file.string(), format->name,
                                                        RemedyFor(*format, WantedFile::kConfiguration)));
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
