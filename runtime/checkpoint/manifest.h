// manifest.json of a checkpoint: identifies the state, and lists every file with the checksums of its parts. It is
// written last, so a folder without a readable manifest is no checkpoint. It names the files of all nodes.
//
//   {"crc32c":"89abcdef",
//    "format": "geopipe-checkpoint", "version": 1,
//    "job": "mini", "incarnation": 17, "epoch": 3, "next_iteration": 200, "seed": 1, "tokens_per_iteration": 4096,
//    "sequence_length": 64, "model": {"hidden_size": 64, …}, "plan": "…",
//    "init_from": "/models/mini",
//    "files": [{"name": "layer-00000.weights.safetensors", "bytes": 1234, "header_bytes": 328,
//               "header_crc32c": "01234567",
//               "tensors": [{"name": "model.layers.0.input_layernorm.weight", "dtype": "F32", "shape": [64],
//                            "offset": 0, "elements": 64, "crc32c": "…"}, …]}, …]}
//
// A tensor whose columns are in parts has "column_parts" besides, and the manifest then has version 2, the only
// difference between the versions.
//
// The first key is the CRC-32C of every byte behind its comma, so that no damage passes for another state.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/model/model_spec.h"

namespace geopipe {

inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr int64_t kManifestVersion = 1;
inline constexpr int64_t kColumnPartsVersion = 2;  // written where a tensor has its columns in parts
inline constexpr int64_t kFamiliesVersion = 3;     // written for models that are no plain Llama's; all are read

// Limits for reader and writer alike.
struct CheckpointLimits {
  static constexpr size_t kMaxManifestBytes = size_t{64} << 20;
  static constexpr size_t kMaxPlanBytes = size_t{16} << 20;
  static constexpr size_t kMaxFiles = 100'000;
  static constexpr size_t kMaxFileTensors = 100'000;
  static constexpr size_t kMaxNameBytes = 255;
  static constexpr size_t kMaxPathBytes = 4096;
  static constexpr size_t kMaxDimensions = 8;
  static constexpr int64_t kMaxFileBytes = int64_t{1} << 50;
  static constexpr int64_t kMaxHeaderBytes = 100'000'000;  // as in the reference implementation of safetensors
  static constexpr int64_t kMaxIteration = 9'999'999'999;  // ten digits in the folder's name
};

// The elements [offset, offset + elements) of a tensor of fp32 in row-major order. Where its columns are divided into
// several equal parts, the order is that of one part after the other, each in row-major order, so that a
// tensor-parallel rank's share of a matrix divided by columns is contiguous, too.
struct TensorRange {
  std::string name{};            // as in Hugging Face
  std::vector<int64_t> shape{};  // of the whole tensor
  int64_t offset = 0;
  int64_t elements = 0;
  int64_t column_parts = 1;

  int64_t end() const { return offset + elements; }
  friend bool operator==(const TensorRange&, const TensorRange&) = default;
};

struct TensorEntry {
  TensorRange range{};
  uint32_t crc32c = 0;  // of its bytes

  friend bool operator==(const TensorEntry&, const TensorEntry&) = default;
};

// A .safetensors file: header, then the tensors without gaps in this order.
struct FileEntry {
  std::string name{};  // in the folder of the checkpoint
  int64_t bytes = 0;
  int64_t header_bytes = 0;  // the eight of the length included
  uint32_t header_crc32c = 0;
  std::vector<TensorEntry> tensors{};

  friend bool operator==(const FileEntry&, const FileEntry&) = default;
};

struct CheckpointManifest {
  std::string job{};
  int64_t incarnation = 0;  // of the run
  int64_t epoch = 0;
  int64_t next_iteration = 0;  // the state is the one before it
  uint64_t seed = 0;
  int64_t tokens_per_iteration = 0;
  int64_t sequence_length = 0;  // with these three, which samples come next
  ModelSpec model{};
  std::string plan{};  // opaque
  // Folder that the job took its first weights from, on the nodes where it ran: it has the tokenizer. Empty: none.
  std::string init_from{};
  std::vector<FileEntry> files{};

  friend bool operator==(const CheckpointManifest&, const CheckpointManifest&) = default;
};

// Elements of a shape; -1 when an extent is not positive, there are more than CheckpointLimits::kMaxDimensions extents,
// or more than CheckpointLimits::kMaxFileBytes bytes.
int64_t CountElements(const std::vector<int64_t>& shape);

// True when a checkpoint's file of tensors may have this name: one in the folder itself that no shell and no other file
// system trips over.
bool IsTensorFileName(std::string_view name);

// Checks the rules of a manifest: limits; names that are plain names; sizes that add up; ranges of one tensor that
// count its elements in the same order and are equal (copies, with the same checksum) or disjoint. Ranges need not
// cover the tensor. InvalidArgument names file, tensor and value.
absl::Status ValidateCheckpointManifest(const CheckpointManifest& manifest);

// Checks the rules that concern a single file.
absl::Status ValidateFileEntry(const FileEntry& file);

// REQUIRES: ValidateCheckpointManifest(manifest).ok().
std::string CheckpointManifestText(const CheckpointManifest& manifest);

// Reads a text of CheckpointManifestText; `path` is for the errors. DataLoss: damaged. Unimplemented: of another
// version. InvalidArgument: a value is missing or breaks a rule.
absl::StatusOr<CheckpointManifest> ParseCheckpointManifest(std::string_view text, const std::string& path);

// Calls `visit(name, member)` with every field of ModelSpec that all models have, named as in config.json.
template <class Visitor>
void ForEachModelField(Visitor&& visit) {
  // Does not compile with another number of fields: a new one is a new line below, or in ForEachFamilyField.
  [[maybe_unused]] const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = ModelSpec{};
  visit("hidden_size", &ModelSpec::hidden_size);
  visit("intermediate_size", &ModelSpec::intermediate_size);
  visit("num_hidden_layers", &ModelSpec::num_hidden_layers);
  visit("num_attention_heads", &ModelSpec::num_attention_heads);
  visit("num_key_value_heads", &ModelSpec::num_key_value_heads);
  visit("vocab_size", &ModelSpec::vocab_size);
  visit("max_position_embeddings", &ModelSpec::max_position_embeddings);
  visit("rope_theta", &ModelSpec::rope_theta);
  visit("rms_norm_eps", &ModelSpec::rms_norm_eps);
  visit("tie_word_embeddings", &ModelSpec::tie_word_embeddings);
}

// Calls `visit(path, value)` with every other field of `model`, with its path in config.json. Manifests have those that
// differ from a plain Llama model's.
template <class Model, class Visitor>
void ForEachFamilyField(Model& model, Visitor&& visit) {
  visit("/model_type", model.family);
  visit("/head_dim", model.given_head_dim);
  visit("/padded_vocab_size", model.padded_vocab_size);
  visit("/sliding_window", model.sliding_window);
  visit("/attention_bias", model.attention_bias);
  visit("/rope_scaling/rope_type", model.rope_scaling.type);
  visit("/rope_scaling/factor", model.rope_scaling.factor);
  visit("/rope_scaling/low_freq_factor", model.rope_scaling.low_freq_factor);
  visit("/rope_scaling/high_freq_factor", model.rope_scaling.high_freq_factor);
  visit("/rope_scaling/original_max_position_embeddings", model.rope_scaling.original_max_position_embeddings);
}
}  // namespace geopipe
