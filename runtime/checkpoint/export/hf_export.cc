#include "runtime/checkpoint/export/hf_export.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/transformer.h"
#include "runtime/base/files.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/new_file.h"
#include "runtime/manifest/hf_config.h"
#include "runtime/weights/safetensors_header.h"

namespace geopipe {
namespace {

namespace fs = std::filesystem;

// Elements converted at a time.
constexpr size_t kPieceElements = size_t{1} << 16;

// The folder of an export: its files are removed again unless it is kept.
class OutputFolder {
 public:
  explicit OutputFolder(std::string path) : path_(std::move(path)) {}
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;
  ~OutputFolder() {
    std::error_code ignored;
    for (const std::string& file : files_) {
      fs::remove(file, ignored);
    }
    if (lock_.valid()) {
      fs::remove(PathOf(kLockName), ignored);
    }
    if (made_) {
      fs::remove(path_, ignored);  // which leaves the files of others
    }
  }

  // The folder, empty and for this export alone. AlreadyExists: it is neither.
  absl::Status Make() {
    std::error_code error;
    if (fs::exists(path_, error) && !fs::is_directory(path_, error)) {
      return absl::AlreadyExistsError(fmt::format("{}: is no folder; remove it or choose another folder", path_));
    }
    const bool made = fs::create_directories(path_, error);
    if (error) {
      return CheckpointIoError(path_, "made", error.value());
    }
    made_ = made;
    GP_RETURN_IF_ERROR(Lock());
    const bool is_empty = std::distance(fs::directory_iterator(path_, error), fs::directory_iterator()) == 1;
    if (error) {
      return CheckpointIoError(path_, "read", error.value());
    }
    if (!is_empty) {
      return absl::AlreadyExistsError(fmt::format("{}: is not empty; remove it or choose another folder", path_));
    }
    return made ? SyncFolder(path_ + "/..") : absl::OkStatus();
  }

  std::string PathOf(std::string_view name) const { return fmt::format("{}/{}", path_, name); }

  absl::Status Commit(std::string_view name, NewFile file) {
    files_.push_back(PathOf(name));
    return file.Commit();
  }

  absl::Status WriteText(std::string_view name, std::string_view text) {
    GP_ASSIGN_OR_RETURN(NewFile file, NewFile::Create(PathOf(name)));
    GP_RETURN_IF_ERROR(file.Write(std::as_bytes(std::span(text))));
    return Commit(name, std::move(file));
  }

  void Keep() {
    files_.clear();
    made_ = false;
  }

 private:
  static constexpr std::string_view kLockName = ".geopipe-export.lock";

  // Another export may be at work, or have just ended and taken its lock's file away while this one waited to open it.
  absl::Status Lock() {
    const std::string file = PathOf(kLockName);
    absl::StatusOr<UniqueFd> lock = LockFile(file);
    struct stat held {};
    struct stat there {};
    const bool is_there = lock.ok() && fstat(lock->get(), &held) == 0 && stat(file.c_str(), &there) == 0 &&
                          held.st_dev == there.st_dev && held.st_ino == there.st_ino;
    if (absl::IsAlreadyExists(lock.status()) || absl::IsNotFound(lock.status()) || (lock.ok() && !is_there)) {
      return absl::AlreadyExistsError(
          fmt::format("{}: another export writes there; wait for it or choose another folder", path_));
    }
    GP_RETURN_IF_ERROR(lock.status());
    lock_ = *std::move(lock);
    return absl::OkStatus();
  }

  std::string path_;
  std::vector<std::string> files_;
  bool made_ = false;
  UniqueFd lock_;
};

using Shard = std::vector<DeclaredTensor>;

int64_t BytesOf(const Shard& shard) {
  int64_t bytes = 0;
  for (const DeclaredTensor& tensor : shard) {
    bytes += tensor.bytes();
  }
  return bytes;
}

// Divides all tensors of the model, in its order, into shards: a new one begins where the next tensor would make it too
// large.
std::vector<Shard> ShardsOf(const ModelSpec& model, const HfExportOptions& options) {
  const LayerRange whole{.first = 0, .last = model.num_hidden_layers - 1, .has_embedding = true, .has_head = true};
  std::vector<Shard> shards(1);
  int64_t bytes = 0;
  for (ParameterTensor& parameter : ParameterTensors(model, whole)) {
    DeclaredTensor tensor{
        .name = std::move(parameter.name), .shape = std::move(parameter.shape), .format = options.format};
    if (!shards.back().empty() && bytes + tensor.bytes() > options.max_shard_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += tensor.bytes();
    shards.back().push_back(std::move(tensor));
  }
  return shards;
}

std::string FileName(size_t shard, size_t shards) {
  return shards == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards);
}

std::string IndexText(const std::vector<Shard>& shards) {
  nlohmann::ordered_json files = nlohmann::ordered_json::object();
  int64_t bytes = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    bytes += BytesOf(shards[i]);
    for (const DeclaredTensor& tensor : shards[i]) {
      files[tensor.name] = FileName(i, shards.size());
    }
  }
  const nlohmann::ordered_json index{{"metadata", {{"total_size", bytes}}}, {"weight_map", std::move(files)}};
  return index.dump(2) + "\n";
}

// The model as its readers have it, whose vocabulary is not padded.
ModelSpec ExportedModel(ModelSpec model, const HfExportOptions& options) {
  model.vocab_size = options.keeps_padding ? model.vocab_rows() : model.vocab_size;
  model.padded_vocab_size = 0;
  return model;
}

// The text of config.json. A manifest may describe any model, so the text is parsed as an import would parse it.
absl::StatusOr<std::string> ConfigText(const Checkpoint& checkpoint, const HfExportOptions& options) {
  const ModelSpec model = ExportedModel(checkpoint.manifest().model, options);
  std::string text = FormatHfConfig(model, RowOf(options.format).torch);
  const std::string path = fmt::format("{}/{}", checkpoint.folder(), kManifestName);
  const absl::StatusOr<ModelSpec> read = ParseHfConfig(text, "config.json");
  if (!read.ok()) {
    return absl::InvalidArgumentError(fmt::format("{}: its model cannot be exported: {}; choose another checkpoint",
                                                  path, std::string(read.status().message())));
  }
  GP_CHECK(*read == model, "{}: its model reads back as another", path);
  return text;
}

bool IsOfVocabulary(std::string_view tensor) {
  return tensor == "model.embed_tokens.weight" || tensor == "lm_head.weight";
}

class Exporter {
 public:
  Exporter(const Checkpoint& checkpoint, const HfExportOptions& options, OutputFolder& output, int64_t bytes)
      : checkpoint_(checkpoint), options_(options), output_(output), bytes_total_(bytes) {}

  absl::Status WriteShard(const std::string& name, const Shard& shard) {
    const std::string header = SafetensorsHeader(shard);
    GP_ASSIGN_OR_RETURN(NewFile file, NewFile::Create(output_.PathOf(name)));
    GP_RETURN_IF_ERROR(file.Reserve(static_cast<int64_t>(header.size()) + BytesOf(shard)));
    GP_RETURN_IF_ERROR(file.Write(std::as_bytes(std::span(header))));
    for (const DeclaredTensor& tensor : shard) {
      GP_RETURN_IF_ERROR(options_.progress(bytes_written_, bytes_total_));
      // Rows of padding that are left out come last.
      std::vector<int64_t> shape = tensor.shape;
      const ModelSpec& model = checkpoint_.manifest().model;
      shape.front() = shape.size() == 2 && IsOfVocabulary(tensor.name) ? model.vocab_rows() : shape.front();
      values_.resize(static_cast<size_t>(tensor.elements() / tensor.shape.front() * shape.front()));
      GP_RETURN_IF_ERROR(checkpoint_.Read(tensor.name, shape, values_));
      values_.resize(static_cast<size_t>(tensor.elements()));
      GP_RETURN_IF_ERROR(Append(tensor, file));
      bytes_written_ += tensor.bytes();
    }
    return output_.Commit(name, std::move(file));
  }

 private:
  absl::Status Append(const DeclaredTensor& tensor, NewFile& file) {
    const FloatFormatRow& format = RowOf(options_.format);
    for (std::span<const float> rest = values_; !rest.empty();) {
      const std::span<const float> piece = rest.first(std::min(kPieceElements, rest.size()));
      for (const float value : piece) {
        if (std::isfinite(value) && std::abs(value) >= format.overflow) {
          return absl::InvalidArgumentError(
              fmt::format("{}: tensor {} has an element {}, which {} cannot hold; export in another format",
                          checkpoint_.folder(), tensor.name, value, format.name));
        }
      }
      encoded_.resize(piece.size() * static_cast<size_t>(format.bytes));
      EncodeFloats(options_.format, piece, encoded_);
      GP_RETURN_IF_ERROR(file.Write(encoded_));
      rest = rest.subspan(piece.size());
    }
    return absl::OkStatus();
  }

  const Checkpoint& checkpoint_;
  const HfExportOptions& options_;
  OutputFolder& output_;
  const int64_t bytes_total_;
  int64_t bytes_written_ = 0;
  std::vector<float> values_;
  std::vector<std::byte> encoded_;
};

}  // namespace

absl::StatusOr<HfExportSummary> ExportHf(const Checkpoint& checkpoint, const std::string& directory,
                                         const HfExportOptions& options) {
  GP_CHECK(options.max_shard_bytes > 0, "shards of {} bytes", options.max_shard_bytes);
  GP_ASSIGN_OR_RETURN(const std::string config, ConfigText(checkpoint, options));
  GP_RETURN_IF_ERROR(checkpoint.CheckSameModel(checkpoint.manifest().model));
  const std::vector<Shard> shards = ShardsOf(ExportedModel(checkpoint.manifest().model, options), options);
  HfExportSummary summary{.files = static_cast<int64_t>(shards.size())};
  for (const Shard& shard : shards) {
    summary.tensors += static_cast<int64_t>(shard.size());
    summary.bytes += BytesOf(shard);
  }
  OutputFolder output(directory);
  GP_RETURN_IF_ERROR(output.Make());
  Exporter exporter(checkpoint, options, output, summary.bytes);
  for (size_t i = 0; i < shards.size(); ++i) {
    GP_RETURN_IF_ERROR(exporter.WriteShard(FileName(i, shards.size()), shards[i]));
  }
  if (shards.size() > 1) {
    GP_RETURN_IF_ERROR(output.WriteText("model.safetensors.index.json", IndexText(shards)));
  }
  for (const ModelFile& file : options.model_files) {
    GP_RETURN_IF_ERROR(output.WriteText(file.name, file.content));
  }
  GP_RETURN_IF_ERROR(output.WriteText("config.json", config));
  output.Keep();
  return summary;
}

}  // namespace geopipe
