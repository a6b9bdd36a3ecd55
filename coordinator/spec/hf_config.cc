#include "coordinator/spec/hf_config.h"

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "optimizer/base/status_macros.h"
#include "runtime/base/files.h"

namespace geopipe {
namespace {

using nlohmann::json;

constexpr size_t kMaxConfigBytes = size_t{1} << 20;

// Reads keys of one JSON object; the first error stays.
class KeyReader {
 public:
  KeyReader(const json& object, std::string_view file) : object_(object), file_(file) {}

  const absl::Status& status() const { return status_; }

  bool Has(const char* key) const { return object_.contains(key) && !object_[key].is_null(); }

  void Integer(const char* key, int64_t* value, bool required) {
    if (Has(key) && object_[key].is_number_integer()) {
      *value = object_[key].get<int64_t>();
    } else if (Has(key)) {
      Fail(fmt::format("{} is {}; it must be an integer", key, object_[key].dump()));
    } else if (required) {
      Fail(fmt::format("{} is missing; a Llama model needs it", key));
    }
  }

  void Number(const char* key, double* value) {
    if (Has(key) && object_[key].is_number()) {
      *value = object_[key].get<double>();
    } else if (Has(key)) {
      Fail(fmt::format("{} is {}; it must be a number", key, object_[key].dump()));
    }
  }

  void Boolean(const char* key, bool* value) {
    if (Has(key) && object_[key].is_boolean()) {
      *value = object_[key].get<bool>();
    } else if (Has(key)) {
      Fail(fmt::format("{} is {}; it must be true or false", key, object_[key].dump()));
    }
  }

  // Where the key is given at all, it must have this value.
  void Expect(const char* key, const json& expected, std::string_view why) {
    if (Has(key) && object_[key] != expected) {
      Fail(fmt::format("{} is {}; only {} is supported ({})", key, object_[key].dump(), expected.dump(), why));
    }
  }

  void Fail(std::string_view message) {
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(fmt::format("{}: {}", file_, message));
    }
  }

 private:
  const json& object_;
  std::string_view file_;
  absl::Status status_;
};

void ReadRope(const json& config, KeyReader& reader, std::string_view file, ModelSpec* model) {
  reader.Number("rope_theta", &model->rope_theta);
  if (reader.Has("rope_scaling")) {
    reader.Fail("rope_scaling is given; scaled rotary embeddings are not supported");
  }
  // Newer configurations keep theta here.
  if (reader.Has("rope_parameters") && config["rope_parameters"].is_object()) {
    KeyReader rope(config["rope_parameters"], file);
    rope.Number("rope_theta", &model->rope_theta);
    rope.Expect("rope_type", "default", "scaled rotary embeddings are not");
    if (!rope.status().ok()) {
      reader.Fail("rope_parameters are not those of plain rotary embeddings, the only ones supported");
    }
  }
}

}  // namespace

absl::StatusOr<ModelSpec> ParseHfConfig(std::string_view text, std::string_view file) {
  const json config = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (config.is_discarded() || !config.is_object()) {
    return absl::InvalidArgumentError(fmt::format("{}: not a JSON object; it must be a model's config.json", file));
  }
  KeyReader reader(config, file);
  reader.Expect("model_type", "llama", "the engine computes Llama models");
  reader.Expect("hidden_act", "silu", "the engine computes SwiGLU");
  reader.Expect("attention_bias", false, "the engine has no biases");
  reader.Expect("mlp_bias", false, "the engine has no biases");
  ModelSpec model;
  model.max_position_embeddings = 2048;
  model.rms_norm_eps = 1e-6;
  reader.Integer("hidden_size", &model.hidden_size, /*required=*/true);
  reader.Integer("intermediate_size", &model.intermediate_size, /*required=*/true);
  reader.Integer("num_hidden_layers", &model.num_hidden_layers, /*required=*/true);
  reader.Integer("num_attention_heads", &model.num_attention_heads, /*required=*/true);
  model.num_key_value_heads = model.num_attention_heads;
  reader.Integer("num_key_value_heads", &model.num_key_value_heads, /*required=*/false);
  reader.Integer("vocab_size", &model.vocab_size, /*required=*/true);
  reader.Integer("max_position_embeddings", &model.max_position_embeddings, /*required=*/false);
  reader.Number("rms_norm_eps", &model.rms_norm_eps);
  reader.Boolean("tie_word_embeddings", &model.tie_word_embeddings);
  ReadRope(config, reader, file, &model);
  GP_RETURN_IF_ERROR(reader.status());
  const absl::Status valid = ValidateModel(model);
  if (!valid.ok()) {
    return absl::InvalidArgumentError(fmt::format("{}: {}", file, std::string(valid.message())));
  }
  reader.Expect("head_dim", model.head_dim(), "hidden_size / num_attention_heads");
  GP_RETURN_IF_ERROR(reader.status());
  return model;
}

absl::StatusOr<ModelSpec> ReadHfConfig(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "config.json";
  GP_ASSIGN_OR_RETURN(const std::string text, ReadFile(file, kMaxConfigBytes));
  return ParseHfConfig(text, file.string());
}

}  // namespace geopipe
