#include "tests/runtime/weights/written_hf_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "runtime/weights/safetensors.h"
#include "tests/runtime/weights/written_safetensors.h"

namespace geopipe {
namespace {

constexpr size_t kFiles = 3;

void WriteJson(const std::string& path, const nlohmann::json& json) {
  std::ofstream file(path);
  file << json.dump(2) << "\n";
  file.flush();
  REQUIRE(file.good());
}

}  // namespace

void WriteShardedBf16(const std::string& folder, const ModelSpec& model,
                      const std::function<std::vector<float>(const ParameterTensor& tensor)>& values) {
  std::vector<ParameterTensor> tensors = ParameterTensors(
      model, {.first = 0, .last = model.num_hidden_layers - 1, .has_embedding = true, .has_head = true});
  std::ranges::sort(tensors, {}, &ParameterTensor::name);
  std::array<std::vector<DeclaredTensor>, kFiles> declared;
  std::array<std::vector<std::vector<float>>, kFiles> of_file;
  nlohmann::json files;
  int64_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const size_t file = i * kFiles / tensors.size();
    declared[file].push_back({.name = tensors[i].name, .shape = tensors[i].shape, .format = FloatFormat::kBf16});
    of_file[file].push_back(values(tensors[i]));
    bytes += declared[file].back().bytes();
    files[tensors[i].name] = fmt::format("model-{:05}-of-{:05}.safetensors", file + 1, kFiles);
  }
  for (size_t file = 0; file < kFiles; ++file) {
    WriteSafetensors(fmt::format("{}/model-{:05}-of-{:05}.safetensors", folder, file + 1, kFiles), declared[file],
                     of_file[file]);
  }
  WriteJson(folder + "/model.safetensors.index.json", {{"metadata", {{"total_size", bytes}}}, {"weight_map", files}});
  constexpr std::array kArchitectures{"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"};
  const RopeScaling& rope = model.rope_scaling;
  const bool is_scaled = rope.type == RopeScaling::Type::kLlama3;
  WriteJson(folder + "/config.json",
            {{"architectures", {kArchitectures.at(static_cast<size_t>(model.family))}},
             {"attention_bias", model.attention_bias},
             {"bos_token_id", 1},
             {"eos_token_id", 2},
             {"head_dim", model.head_dim()},
             {"hidden_act", "silu"},
             {"hidden_size", model.hidden_size},
             {"initializer_range", 0.02},
             {"intermediate_size", model.intermediate_size},
             {"max_position_embeddings", model.max_position_embeddings},
             {"model_type", ModelFamilyName(model.family)},
             {"num_attention_heads", model.num_attention_heads},
             {"num_hidden_layers", model.num_hidden_layers},
             {"num_key_value_heads", model.num_key_value_heads},
             {"rms_norm_eps", model.rms_norm_eps},
             {"rope_scaling",
              is_scaled ? nlohmann::json{{"rope_type", "llama3"},
                                         {"factor", rope.factor},
                                         {"low_freq_factor", rope.low_freq_factor},
                                         {"high_freq_factor", rope.high_freq_factor},
                                         {"original_max_position_embeddings", rope.original_max_position_embeddings}}
                        : nlohmann::json(nullptr)},
             {"rope_theta", model.rope_theta},
             {"tie_word_embeddings", model.tie_word_embeddings},
             {"torch_dtype", "bfloat16"},
             {"transformers_version", "4.40.0"},
             {"use_cache", true},
             {"vocab_size", model.vocab_size}});
}

std::map<std::string, TensorContent> TensorsIn(const std::string& folder) {
  std::map<std::string, TensorContent> all;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (file.path().extension() != ".safetensors") {
      continue;
    }
    const absl::StatusOr<SafetensorsFile> opened = SafetensorsFile::Open(file.path().string());
    INFO(opened.status().ToString());
    REQUIRE(opened.ok());
    for (const auto& [name, tensor] : opened->tensors()) {
      INFO(file.path() << " " << name);
      const std::string bytes(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
      REQUIRE(all.emplace(name, TensorContent{tensor.dtype, tensor.shape, bytes}).second);
    }
  }
  return all;
}

std::vector<std::string> Differing(const std::map<std::string, TensorContent>& a,
                                   const std::map<std::string, TensorContent>& b) {
  std::set<std::string> names;
  for (const auto& [one, other] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    for (const auto& [name, tensor] : *one) {
      const auto found = other->find(name);
      if (found == other->end() || found->second != tensor) {
        names.insert(name);
      }
    }
  }
  return {names.begin(), names.end()};
}

}  // namespace geopipe
