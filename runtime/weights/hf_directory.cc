#include "runtime/weights/hf_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <utility>

#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/transformer.h"
#include "runtime/base/config/json_reader.h"
#include "runtime/base/format_of_file.h"
#include "runtime/base/utf8.h"
#include "runtime/weights/mapped_file.h"

namespace geopipe {
namespace {

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";
constexpr std::string_view kHead = "lm_head.weight";
constexpr std::string_view kEmbedding = "model.embed_tokens.weight";

// The index of shards.
struct ShardIndex {
  std::map<std::string, std::string, std::less<>> file_of;  // "weight_map": tensor name to the name of a file beside it
  std::optional<double> total_bytes;                        // "metadata.total_size"
};

absl::StatusOr<ShardIndex> ParseIndex(const MappedFile& file) {
  GP_ASSIGN_OR_RETURN(
      const YamlDocument document,
      ParseJsonDocument({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, file.path()));
  const YamlEntry* map = document.root.Find("weight_map");
  if (map == nullptr || !map->value.is_map()) {
    return absl::InvalidArgumentError(
        fmt::format("{}: no JSON object with a \"weight_map\"; copy or download the file again", file.path()));
  }
  ShardIndex index;
  for (const YamlEntry& entry : map->value.entries) {
    const std::string& shard = entry.value.scalar;
    if (!entry.value.quoted || shard.empty() || shard == "." || shard == ".." || shard.find('/') != std::string::npos) {
      return absl::InvalidArgumentError(
          fmt::format("{}: tensor {} is mapped to {}, which is not the name of a file beside the index", file.path(),
                      Printable(entry.key), Printable(entry.value.Description())));
    }
    index.file_of.emplace(entry.key, shard);
  }
  const YamlEntry* metadata = document.root.Find("metadata");
  const YamlEntry* total = metadata == nullptr ? nullptr : metadata->value.Find("total_size");
  if (total != nullptr && !total->value.is_null()) {
    const absl::StatusOr<double> bytes = ParseNumber(total->value.scalar);
    if (!bytes.ok() || total->value.quoted || *bytes < 0) {
      return document.Error(total->value.mark, "metadata.total_size",
                            fmt::format("is {}; it must be a number of bytes", total->value.Description()));
    }
    index.total_bytes = *bytes;
  }
  return index;
}

std::vector<ParameterTensor> AllTensors(const ModelSpec& model) {
  return ParameterTensors(model,
                          {.first = 0, .last = model.num_hidden_layers - 1, .has_embedding = true, .has_head = true});
}

bool FollowsFromConfiguration(std::string_view tensor) { return tensor.ends_with(".rotary_emb.inv_freq"); }

}  // namespace

absl::StatusOr<HfDirectory> HfDirectory::Open(const std::string& directory) {
  HfDirectory result(directory);
  GP_RETURN_IF_ERROR(result.OpenShards());
  return result;
}

absl::Status HfDirectory::OpenShards() {
  const absl::StatusOr<MappedFile> index = MappedFile::Open(fmt::format("{}/{}", directory_, kIndexFile));
  if (index.ok()) {
    return OpenIndexed(*index);
  }
  if (!absl::IsNotFound(index.status())) {
    return index.status();
  }
  if (const absl::Status status = OpenShard(std::string(kSingleFile)); !status.ok()) {
    const std::string other = absl::IsNotFound(status) ? DescribeOtherWeights(directory_) : "";
    return !absl::IsNotFound(status) ? status
           : other.empty()
               ? absl::NotFoundError(
                     fmt::format("{}: holds neither {} nor {}; init_from needs a Hugging Face directory "
                                 "with weights in safetensors",
                                 directory_, kSingleFile, kIndexFile))
               : absl::NotFoundError(fmt::format("{}: no {} is there; it {}", directory_, kSingleFile, other));
  }
  const auto& [file_name, shard] = *shards_.begin();
  for (const auto& [tensor, stored] : shard.tensors()) {
    file_of_.emplace(tensor, file_name);
  }
  return absl::OkStatus();
}

absl::Status HfDirectory::OpenIndexed(const MappedFile& index_file) {
  const auto contradicts = [&](const std::string& what) {
    return absl::InvalidArgumentError(
        fmt::format("{}: {}; copy or download the directory again", index_file.path(), what));
  };
  GP_ASSIGN_OR_RETURN(ShardIndex index, ParseIndex(index_file));
  file_of_ = std::move(index.file_of);
  double bytes = 0;
  for (const auto& [tensor, file_name] : file_of_) {
    const absl::Status opened = OpenShard(file_name);
    if (absl::IsNotFound(opened)) {
      return contradicts(fmt::format("tensor {} is said to be in {}, a file that is not there", tensor, file_name));
    }
    GP_RETURN_IF_ERROR(opened);
    const auto& tensors = shards_.at(file_name).tensors();
    const auto stored = tensors.find(tensor);
    if (stored == tensors.end()) {
      return contradicts(fmt::format("tensor {} is said to be in {}, which does not hold it", tensor, file_name));
    }
    bytes += static_cast<double>(stored->second.bytes.size());
  }
  for (const auto& [file_name, shard] : shards_) {
    for (const auto& [tensor, stored] : shard.tensors()) {
      const auto named = file_of_.find(tensor);
      if (named == file_of_.end() ? !FollowsFromConfiguration(tensor) : named->second != file_name) {
        return contradicts(fmt::format("{} holds tensor {}, which the index {}", file_name, tensor,
                                       named == file_of_.end() ? "does not name" : "says is in " + named->second));
      }
    }
  }
  return index.total_bytes.value_or(bytes) == bytes
             ? absl::OkStatus()
             : contradicts(fmt::format("metadata.total_size is {:.0f}, but the tensors have {:.0f} bytes",
                                       *index.total_bytes, bytes));
}

absl::Status HfDirectory::OpenShard(const std::string& file_name) {
  if (!shards_.contains(file_name)) {
    GP_ASSIGN_OR_RETURN(SafetensorsFile shard, SafetensorsFile::Open(fmt::format("{}/{}", directory_, file_name)));
    shards_.emplace(file_name, std::move(shard));
  }
  return absl::OkStatus();
}

int64_t HfDirectory::EmbeddingRows() const {
  const auto file = file_of_.find(kEmbedding);
  if (file == file_of_.end()) {
    return 0;
  }
  const std::vector<int64_t>& shape = shards_.at(file->second).tensors().find(kEmbedding)->second.shape;
  return shape.empty() ? 0 : shape.front();
}

absl::Status HfDirectory::CheckHoldsOnly(const ModelSpec& model) const {
  // A tied head may be stored, too, and the frequencies of rotary embeddings follow from rope_theta.
  std::set<std::string, std::less<>> known = {std::string(kHead)};
  for (const ParameterTensor& tensor : AllTensors(model)) {
    known.insert(tensor.name);
  }
  for (const auto& [tensor, file] : file_of_) {
    if (!known.contains(tensor) && !FollowsFromConfiguration(tensor)) {
      return absl::InvalidArgumentError(fmt::format(
          "{}/{}: tensor {} is not part of the model that config.json describes, which would train without it; check "
          "config.json",
          directory_, file, tensor));
    }
  }
  return absl::OkStatus();
}

absl::Status HfDirectory::CheckHoldsAll(const ModelSpec& model) const {
  for (const ParameterTensor& tensor : AllTensors(model)) {
    GP_ASSIGN_OR_RETURN(const Found found, Find(tensor.name, tensor.shape));
    GP_RETURN_IF_ERROR(found.shard->CheckTensor(tensor.name, found.shape));
    const bool has_rows = tensor.name == kHead || tensor.name == kEmbedding;
    if (has_rows && found.shape.front() < model.vocab_size) {
      return found.shard->CheckTensor(tensor.name, {model.vocab_size, model.hidden_size});  // names both shapes
    }
  }
  return absl::OkStatus();
}

absl::Status HfDirectory::CheckTiedHead(const ModelSpec& model) const {
  const auto head = file_of_.find(kHead);
  const auto embedding = file_of_.find(kEmbedding);
  if (!model.tie_word_embeddings || head == file_of_.end() || embedding == file_of_.end()) {
    return absl::OkStatus();
  }
  const SafetensorsFile& head_file = shards_.at(head->second);
  const SafetensorsFile& embedding_file = shards_.at(embedding->second);
  GP_ASSIGN_OR_RETURN(const bool equal, EqualTensors(head_file, kHead, embedding_file, kEmbedding));
  return equal
             ? absl::OkStatus()
             : absl::InvalidArgumentError(fmt::format(
                   "{}/{}: {} differs from {}, but config.json says tie_word_embeddings: true, by which the model has "
                   "no head of its own; say tie_word_embeddings: false there, or remove the tensor",
                   directory_, head->second, kHead, kEmbedding));
}

absl::StatusOr<HfDirectory::Found> HfDirectory::Find(std::string_view name, const std::vector<int64_t>& shape) const {
  const auto file = file_of_.find(name);
  if (file == file_of_.end()) {
    return absl::NotFoundError(fmt::format("{}: tensor {} is missing; {}", directory_, name,
                                           name == kHead
                                               ? "is the model tied (tie_word_embeddings: true in config.json)?"
                                               : "the model needs it, copy or download the directory again"));
  }
  const SafetensorsFile& shard = shards_.at(file->second);
  const std::vector<int64_t>& stored = shard.tensors().find(name)->second.shape;
  const bool has_rows = (name == kHead || name == kEmbedding) && stored.size() == 2 && shape.size() == 2;
  if (has_rows && stored[1] == shape[1] && stored[0] > shape[0]) {
    return absl::InvalidArgumentError(
        fmt::format("{}: tensor {} has {} rows, {} more than the model's {}: its vocabulary was padded, and the rows "
                    "would be lost; "
                    "say padded_vocab_size: {} in the job's model, which keeps them and predicts none",
                    shard.path(), name, stored[0], stored[0] - shape[0], shape[0], stored[0]));
  }
  const bool is_padded = has_rows && stored[1] == shape[1] && stored[0] < shape[0];
  return Found{&shard, is_padded ? stored : shape};
}

absl::Status HfDirectory::Read(std::string_view name, const std::vector<int64_t>& shape,
                               std::span<float> values) const {
  GP_ASSIGN_OR_RETURN(const Found found, Find(name, shape));
  size_t stored = 1;
  for (const int64_t extent : found.shape) {
    stored *= static_cast<size_t>(extent);
  }
  std::ranges::fill(values.subspan(stored), 0.0F);
  return found.shard->Read(name, found.shape, values.first(stored));
}

}  // namespace geopipe
