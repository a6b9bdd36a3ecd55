#include "runtime/weights/hf_directory.h"

#include <fmt/format.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "optimizer/model/transformer.h"
#include "runtime/base/mapped_file.h"
#include "runtime/weights/json_text.h"

namespace geopipe {
namespace {

using nlohmann::json;

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";

// "weight_map" of the index: tensor name to the name of a file beside it.
absl::StatusOr<std::map<std::string, std::string, std::less<>>> ParseIndex(const MappedFile& file) {
  const json root = ParseJson({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()});
  if (!root.is_object() || !root.contains("weight_map") || !root["weight_map"].is_object()) {
    return absl::InvalidArgumentError(
        fmt::format("{}: no JSON object with a \"weight_map\"; copy or download the file again", file.path()));
  }
  std::map<std::string, std::string, std::less<>> file_of;
  for (const auto& [tensor, shard] : root["weight_map"].items()) {
    if (!shard.is_string() || shard.get<std::string>().find('/') != std::string::npos) {
      return absl::InvalidArgumentError(
          fmt::format("{}: tensor {} is mapped to {}, which is not the name of a file beside the index", file.path(),
                      tensor, shard.is_string() ? shard.dump() : shard.type_name()));
    }
    file_of.emplace(tensor, shard.get<std::string>());
  }
  return file_of;
}

}  // namespace

absl::StatusOr<HfDirectory> HfDirectory::Open(const std::string& directory) {
  HfDirectory result(directory);
  GP_RETURN_IF_ERROR(result.OpenShards());
  return result;
}

absl::Status HfDirectory::OpenShards() {
  const absl::StatusOr<MappedFile> index = MappedFile::Open(fmt::format("{}/{}", directory_, kIndexFile));
  if (index.ok()) {
    GP_ASSIGN_OR_RETURN(file_of_, ParseIndex(*index));
    for (const auto& [tensor, file_name] : file_of_) {
      GP_RETURN_IF_ERROR(OpenShard(file_name));
      if (!shards_.at(file_name).tensors().contains(tensor)) {
        return absl::InvalidArgumentError(
            fmt::format("{}/{}: tensor {} is said to be in {}, which does not hold it; copy or download the directory "
                        "again",
                        directory_, kIndexFile, tensor, file_name));
      }
    }
    return absl::OkStatus();
  }
  if (!absl::IsNotFound(index.status())) {
    return index.status();
  }
  if (const absl::Status status = OpenShard(std::string(kSingleFile)); !status.ok()) {
    return absl::IsNotFound(status) ? absl::NotFoundError(fmt::format(
                                          "{}: holds neither {} nor {}; init_from needs a Hugging Face directory "
                                          "with weights in safetensors",
                                          directory_, kSingleFile, kIndexFile))
                                    : status;
  }
  const auto& [file_name, shard] = *shards_.begin();
  for (const auto& [tensor, stored] : shard.tensors()) {
    file_of_.emplace(tensor, file_name);
  }
  return absl::OkStatus();
}

absl::Status HfDirectory::OpenShard(const std::string& file_name) {
  if (!shards_.contains(file_name)) {
    GP_ASSIGN_OR_RETURN(SafetensorsFile shard, SafetensorsFile::Open(fmt::format("{}/{}", directory_, file_name)));
    shards_.emplace(file_name, std::move(shard));
  }
  return absl::OkStatus();
}

absl::Status HfDirectory::CheckHoldsOnly(const ModelSpec& model) const {
  // A tied head may be stored, too, and the frequencies of rotary embeddings follow from rope_theta.
  std::set<std::string, std::less<>> known = {"lm_head.weight"};
  for (const ParameterTensor& tensor : ParameterTensors(
           model, {.first = 0, .last = model.num_hidden_layers - 1, .has_embedding = true, .has_head = true})) {
    known.insert(tensor.name);
  }
  for (const auto& [tensor, file] : file_of_) {
    if (!known.contains(tensor) && !tensor.ends_with(".rotary_emb.inv_freq")) {
      return absl::InvalidArgumentError(fmt::format(
          "{}/{}: tensor {} is not part of the model that config.json describes, which would train without it; check "
          "config.json",
          directory_, file, tensor));
    }
  }
  return absl::OkStatus();
}

absl::Status HfDirectory::Read(std::string_view name, const std::vector<int64_t>& shape,
                               std::span<float> values) const {
  const auto file = file_of_.find(name);
  if (file == file_of_.end()) {
    return absl::NotFoundError(fmt::format("{}: tensor {} is missing; {}", directory_, name,
                                           name == "lm_head.weight"
                                               ? "is the model tied (tie_word_embeddings: true in config.json)?"
                                               : "the model needs it, copy or download the directory again"));
  }
  return shards_.at(file->second).Read(name, shape, values);
}

}  // namespace geopipe
