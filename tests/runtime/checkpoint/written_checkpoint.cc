#include "tests/runtime/checkpoint/written_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "optimizer/base/splitmix64.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/crc32c.h"
#include "runtime/checkpoint/checkpoint_folders.h"
#include "runtime/checkpoint/tensor_file_writer.h"

namespace geopipe {

ModelSpec SmallModel(int64_t layers, bool tied) {
  return {.hidden_size = 8,
          .intermediate_size = 12,
          .num_hidden_layers = layers,
          .num_attention_heads = 2,
          .num_key_value_heads = 1,
          .vocab_size = 20,
          .max_position_embeddings = 16,
          .rope_theta = 10000.5,
          .rms_norm_eps = 1e-6,
          .tie_word_embeddings = tied};
}

std::vector<float> StateValues(int64_t iteration, std::string_view tensor, int64_t elements) {
  SplitMix64 random(SplitMix64::Mix(static_cast<uint64_t>(iteration)) + Crc32c(std::as_bytes(std::span(tensor))));
  std::vector<float> values(static_cast<size_t>(elements));
  for (float& value : values) {
    value = std::bit_cast<float>(static_cast<uint32_t>(random.Next()));
  }
  values.front() = std::bit_cast<float>(0x7fa00001U + static_cast<uint32_t>(iteration));  // a signalling NaN
  values.back() = std::bit_cast<float>(0x80000001U);                                      // the denormal next to -0
  return values;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<TensorRange> UnitTensors(const ModelSpec& model, const CheckpointUnit& unit) {
  std::vector<TensorRange> tensors = UnitWeights(model, unit);
  std::ranges::copy(UnitMoments(model, unit), std::back_inserter(tensors));
  return tensors;
}

absl::Status WriteUnit(const std::string& folder, const ModelSpec& model, const CheckpointUnit& unit, int64_t iteration,
                       std::vector<FileEntry>& files, const std::function<void()>& wrote) {
  const auto write = [&](const std::string& name, const std::vector<TensorRange>& tensors) -> absl::Status {
    GP_ASSIGN_OR_RETURN(TensorFileWriter writer, TensorFileWriter::Create(folder, name, tensors));
    for (const TensorRange& tensor : tensors) {
      const std::vector<float> values = StateValues(iteration, tensor.name, tensor.elements);
      GP_RETURN_IF_ERROR(writer.Append(tensor.name, tensor.shape, values));
    }
    GP_ASSIGN_OR_RETURN(FileEntry entry, writer.Finish());
    files.push_back(std::move(entry));
    wrote();
    return absl::OkStatus();
  };
  GP_RETURN_IF_ERROR(write(unit.weights_file(kTag), UnitWeights(model, unit)));
  return write(unit.moments_file(kTag), UnitMoments(model, unit));
}

CheckpointManifest ManifestOf(const ModelSpec& model, int64_t iteration) {
  return {.job = "mini",
          .incarnation = 1795574968339194340,
          .epoch = 3,
          .next_iteration = iteration,
          .seed = 18446744073709551615U,
          .tokens_per_iteration = 4096,
          .sequence_length = 64,
          .model = model,
          .plan = "stages: 2\nsites: [\"n\u00f6rd\", \"east\"]\n"};
}

absl::Status WriteCheckpoint(const std::string& root, const ModelSpec& model, int64_t iteration,
                             const std::function<void()>& wrote) {
  GP_ASSIGN_OR_RETURN(const std::string folder, BeginCheckpoint(root, iteration));
  CheckpointManifest manifest = ManifestOf(model, iteration);
  for (const CheckpointUnit& unit : UnitsOf(model)) {
    GP_RETURN_IF_ERROR(WriteUnit(folder, model, unit, iteration, manifest.files, wrote));
  }
  return WriteCheckpointManifest(folder, manifest);
}

std::string WrittenCheckpoint(const std::string& root, const ModelSpec& model, int64_t iteration) {
  const absl::Status status = WriteCheckpoint(root, model, iteration);
  INFO(status);
  REQUIRE(status.ok());
  return CheckpointFolder(root, iteration);
}

std::string Content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

void Poke(const std::string& path, size_t byte, char value) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(byte)).put(value).flush();
  REQUIRE(file.good());
}

void Overwrite(const std::string& path, std::string_view content) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << content << std::flush;
  REQUIRE(file.good());
}

std::vector<std::string> Names(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

std::string Resealed(const std::string& text) {
  constexpr size_t kSealBytes = 21;  // {"crc32c":"01234567",
  const std::string body = text.size() < kSealBytes ? "" : text.substr(kSealBytes);
  return fmt::format("{{\"crc32c\":\"{:08x}\",{}", Crc32c(std::as_bytes(std::span(body))), body);
}

}  // namespace geopipe
