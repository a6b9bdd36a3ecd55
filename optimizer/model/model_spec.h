// The model to train: a Llama-family decoder, named as in Hugging Face config.json.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace geopipe {

// Families of models, by their model_type. They differ in what a layer has besides its seven products and two norms.
enum class ModelFamily : uint8_t { kLlama, kMistral, kQwen2, kQwen3 };

// Change of the rotary frequencies for sequences longer than those of pre-training (rope_scaling of config.json).
struct RopeScaling {
  enum class Type : uint8_t { kDefault, kLinear, kLlama3 };

  Type type = Type::kDefault;
  double factor = 1;  // kLinear, kLlama3: by which frequencies are divided, with kLlama3 the low ones alone
  // kLlama3: waves longer than original / low are low, those shorter than original / high stay as they are.
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_max_position_embeddings = 8192;

  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

struct ModelSpec {
  ModelFamily family = ModelFamily::kLlama;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t given_head_dim = 0;  // 0: hidden_size / num_attention_heads
  int64_t vocab_size = 0;
  int64_t padded_vocab_size = 0;  // rows of embedding and head, the last of which stand for no token; 0: vocab_size
  int64_t max_position_embeddings = 2048;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling = {};
  int64_t sliding_window = 0;   // tokens that a position attends to; sequences are no longer. 0: all before it
  bool attention_bias = false;  // kLlama, kQwen3: of q, k, v and o
  double rms_norm_eps = 1e-5;
  bool tie_word_embeddings = false;

  int64_t head_dim() const { return given_head_dim > 0 ? given_head_dim : hidden_size / num_attention_heads; }
  int64_t query_width() const { return num_attention_heads * head_dim(); }
  int64_t key_value_width() const { return num_key_value_heads * head_dim(); }  // of K, and of V
  // Width on one of `tensor` ranks: where there are more ranks than heads, several ranks share one.
  int64_t key_value_width_per_rank(int64_t tensor) const {
    return tensor > num_key_value_heads ? head_dim() : key_value_width() / tensor;
  }

  int64_t longest_sequence() const {
    return sliding_window > 0 ? std::min(sliding_window, max_position_embeddings) : max_position_embeddings;
  }
  int64_t vocab_rows() const { return padded_vocab_size > 0 ? padded_vocab_size : vocab_size; }
  bool has_qkv_bias() const { return attention_bias || family == ModelFamily::kQwen2; }
  bool has_output_bias() const { return attention_bias; }
  bool has_head_norms() const { return family == ModelFamily::kQwen3; }  // of each head of q and k, before RoPE

  friend bool operator==(const ModelSpec&, const ModelSpec&) = default;
};

// The words of config.json: "llama", "qwen2"; "default", "linear", "llama3". By word nullopt if it is none of them.
std::string_view ModelFamilyName(ModelFamily family);
std::optional<ModelFamily> ModelFamilyOf(std::string_view name);
std::string_view RopeTypeName(RopeScaling::Type type);
std::optional<RopeScaling::Type> RopeTypeOf(std::string_view name);

// Frequency of pair `pair` of a head in radians per position, scaling included (Hugging Face transformers 4.57,
// modeling_rope_utils.py).
double RopeFrequency(const ModelSpec& model, int64_t pair);

// Models by the name of their checkpoint: "llama-3.1-8b". NotFound lists the known names.
absl::StatusOr<ModelSpec> ModelPreset(std::string_view name);
std::vector<std::string> ModelPresetNames();

// Sets what is given and equal to what would hold anyway to 0: given_head_dim and padded_vocab_size.
void DropDefaults(ModelSpec& model);

// Rules that span keys: heads divide hidden if the head's size is not given, kv heads divide heads, an even head
// dimension for RoPE, no fewer rows than tokens, only what the family has. InvalidArgument names the key, its value and
// the rule. REQUIRES: every value in the range of its key (runtime/manifest/job_schema).
absl::Status ValidateModel(const ModelSpec& model);

// A run of consecutive layers [first, last] (from 0, both included) with or without the model's ends. It is what one
// stage holds: the embedding belongs to the first stage, final norm and head to the last.
struct LayerRange {
  int64_t first = 0;
  int64_t last = -1;
  bool has_embedding = false;
  bool has_head = false;

  int64_t count() const { return last - first + 1; }
  friend bool operator==(const LayerRange&, const LayerRange&) = default;
};

}  // namespace geopipe
