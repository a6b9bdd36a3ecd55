#include "runtime/weights/hf_config.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "optimizer/base/status_macros.h"
#include "runtime/base/mapped_file.h"

namespace geopipe {
namespace {

using nlohmann::json;

// One config.json and the file it is from, for errors.
class Config {
 public:
  Config(std::string path, json root) : path_(std::move(path)), root_(std::move(root)) {}

  bool Has(std::string_view key) const { return root_.contains(key) && !root_.find(key)->is_null(); }

  absl::Status Integer(std::string_view key, std::optional<int64_t> absent, int64_t& value) const {
    if (!Has(key) && absent.has_value()) {
      value = *absent;
      return absl::OkStatus();
    }
    if (!Has(key) || !root_.find(key)->is_number_integer()) {
      return Wrong(key, "a whole number");
    }
    value = root_.find(key)->get<int64_t>();
    return absl::OkStatus();
  }

  absl::Status Number(std::string_view key, double absent, double& value) const {
    if (Has(key) && !root_.find(key)->is_number()) {
      return Wrong(key, "a number");
    }
    value = Has(key) ? root_.find(key)->get<double>() : absent;
    return absl::OkStatus();
  }

  absl::Status Flag(std::string_view key, bool& value) const {
    if (Has(key) && !root_.find(key)->is_boolean()) {
      return Wrong(key, "true or false");
    }
    value = Has(key) && root_.find(key)->get<bool>();
    return absl::OkStatus();
  }

  // Refuses every value but `only`, when the key is there.
  absl::Status Only(std::string_view key, const json& only) const {
    return !Has(key) || *root_.find(key) == only ? absl::OkStatus() : Wrong(key, only.dump());
  }

  absl::Status Wrong(std::string_view key, std::string_view needed) const {
    return absl::InvalidArgumentError(
        fmt::format("{}: {} is {}; it must be {} for a Llama model that can be trained here", path_, key,
                    root_.contains(key) ? root_.find(key)->dump() : "missing", needed));
  }

  const json& root() const { return root_; }

 private:
  std::string path_;
  json root_;
};

absl::StatusOr<Config> Load(const std::string& directory) {
  const std::string path = directory + "/config.json";
  GP_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  const auto* begin = reinterpret_cast<const char*>(file.bytes().data());
  json root = json::parse(begin, begin + file.bytes().size(), nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) {
    return absl::InvalidArgumentError(fmt::format("{}: not a JSON object; name a Hugging Face directory", path));
  }
  return Config(path, std::move(root));
}

absl::Status RefuseOtherModels(const Config& config, const ModelSpec& model) {
  GP_RETURN_IF_ERROR(config.Only("model_type", "llama"));
  GP_RETURN_IF_ERROR(config.Only("hidden_act", "silu"));
  GP_RETURN_IF_ERROR(config.Only("attention_bias", false));
  GP_RETURN_IF_ERROR(config.Only("mlp_bias", false));
  if (config.Has("rope_scaling")) {
    return config.Wrong("rope_scaling", "null");
  }
  if (model.num_attention_heads > 0) {
    GP_RETURN_IF_ERROR(config.Only("head_dim", model.head_dim()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelSpec> ReadHfConfig(const std::string& directory) {
  GP_ASSIGN_OR_RETURN(const Config config, Load(directory));
  ModelSpec model;
  GP_RETURN_IF_ERROR(config.Integer("hidden_size", std::nullopt, model.hidden_size));
  GP_RETURN_IF_ERROR(config.Integer("intermediate_size", std::nullopt, model.intermediate_size));
  GP_RETURN_IF_ERROR(config.Integer("num_hidden_layers", std::nullopt, model.num_hidden_layers));
  GP_RETURN_IF_ERROR(config.Integer("num_attention_heads", std::nullopt, model.num_attention_heads));
  GP_RETURN_IF_ERROR(config.Integer("num_key_value_heads", model.num_attention_heads, model.num_key_value_heads));
  GP_RETURN_IF_ERROR(config.Integer("vocab_size", std::nullopt, model.vocab_size));
  GP_RETURN_IF_ERROR(config.Integer("max_position_embeddings", 2048, model.max_position_embeddings));
  GP_RETURN_IF_ERROR(config.Number("rope_theta", 10000.0, model.rope_theta));
  GP_RETURN_IF_ERROR(config.Number("rms_norm_eps", 1e-6, model.rms_norm_eps));
  GP_RETURN_IF_ERROR(config.Flag("tie_word_embeddings", model.tie_word_embeddings));
  GP_RETURN_IF_ERROR(RefuseOtherModels(config, model));
  if (absl::Status status = ValidateModel(model); !status.ok()) {
    return absl::InvalidArgumentError(fmt::format("{}/config.json: {}", directory, std::string(status.message())));
  }
  return model;
}

absl::Status CheckSameModel(const ModelSpec& job, const ModelSpec& directory, const std::string& path) {
  const auto same = [&](std::string_view key, auto ours, auto theirs) {
    return ours == theirs ? absl::OkStatus()
                          : absl::InvalidArgumentError(fmt::format("{}/config.json: {} is {}, but the job's model says "
                                                                   "{}; make them the same, or leave out init_from",
                                                                   path, key, theirs, ours));
  };
  GP_RETURN_IF_ERROR(same("hidden_size", job.hidden_size, directory.hidden_size));
  GP_RETURN_IF_ERROR(same("intermediate_size", job.intermediate_size, directory.intermediate_size));
  GP_RETURN_IF_ERROR(same("num_hidden_layers", job.num_hidden_layers, directory.num_hidden_layers));
  GP_RETURN_IF_ERROR(same("num_attention_heads", job.num_attention_heads, directory.num_attention_heads));
  GP_RETURN_IF_ERROR(same("num_key_value_heads", job.num_key_value_heads, directory.num_key_value_heads));
  GP_RETURN_IF_ERROR(same("vocab_size", job.vocab_size, directory.vocab_size));
  GP_RETURN_IF_ERROR(same("rope_theta", job.rope_theta, directory.rope_theta));
  GP_RETURN_IF_ERROR(same("rms_norm_eps", job.rms_norm_eps, directory.rms_norm_eps));
  // max_position_embeddings bounds the sequence length and changes no number, so a job may choose its own.
  return same("tie_word_embeddings", job.tie_word_embeddings, directory.tie_word_embeddings);
}

std::string HfConfigJson(const ModelSpec& model, DType dtype) {
  const nlohmann::ordered_json config = {
      {"architectures", {"LlamaForCausalLM"}},
      {"model_type", "llama"},
      {"hidden_act", "silu"},
      {"attention_bias", false},
      {"mlp_bias", false},
      {"hidden_size", model.hidden_size},
      {"intermediate_size", model.intermediate_size},
      {"num_hidden_layers", model.num_hidden_layers},
      {"num_attention_heads", model.num_attention_heads},
      {"num_key_value_heads", model.num_key_value_heads},
      {"vocab_size", model.vocab_size},
      {"max_position_embeddings", model.max_position_embeddings},
      {"rope_theta", model.rope_theta},
      {"rms_norm_eps", model.rms_norm_eps},
      {"tie_word_embeddings", model.tie_word_embeddings},
      {"torch_dtype", dtype == DType::kBf16 ? "bfloat16" : "float32"},
  };
  return config.dump(2) + "\n";
}

}  // namespace geopipe
