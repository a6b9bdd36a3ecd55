// The model to train: a Llama-family decoder, named as in Hugging Face config.json.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace geopipe {

struct ModelSpec {
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t vocab_size = 0;
  int64_t max_position_embeddings = 2048;
  double rope_theta = 10000.0;
  double rms_norm_eps = 1e-5;
  bool tie_word_embeddings = false;

  int64_t head_dim() const { return hidden_size / num_attention_heads; }
  int64_t key_value_width() const { return num_key_value_heads * head_dim(); }  // of K, and of V
  // Width on one of `tensor` ranks: where there are more ranks than heads, several ranks share one.
  int64_t key_value_width_per_rank(int64_t tensor) const {
    return tensor > num_key_value_heads ? head_dim() : key_value_width() / tensor;
  }

  friend bool operator==(const ModelSpec&, const ModelSpec&) = default;
};

// "llama-2-7b", "llama-2-13b", "llama-2-70b". NotFound lists the known names.
absl::StatusOr<ModelSpec> ModelPreset(std::string_view name);
std::vector<std::string> ModelPresetNames();

// Rules that span keys: heads divide hidden, kv heads divide heads, an even head dimension for RoPE. InvalidArgument
// names the key, its value and the rule. REQUIRES: every value in the range of its key (runtime/manifest/job_schema).
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
