// The weights of a Hugging Face Llama directory: model.safetensors, or shards named by model.safetensors.index.json.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/model/model_spec.h"
#include "runtime/weights/safetensors.h"

namespace geopipe {

// Memory-mapped: a stage touches the pages of its own layers alone. Any thread may read.
class HfDirectory {
 public:
  // Reads index and headers, no weights. NotFound: none of the files; says what else is there (PyTorch weights, an
  // adapter, ...). InvalidArgument names the file: that of SafetensorsFile::Open; an index that is no JSON with a
  // "weight_map", or that contradicts the shards (a tensor or file that is not there or not named, another total_size).
  static absl::StatusOr<HfDirectory> Open(const std::string& directory);

  // Rows of the embedding as it is stored; 0 when there is none.
  int64_t EmbeddingRows() const;

  // InvalidArgument names a tensor that is no part of `model`, which would train without it.
  absl::Status CheckHoldsOnly(const ModelSpec& model) const;

  // Errors of Read for the first tensor of `model` that is missing, or of another shape or kind. Reads no weights.
  absl::Status CheckHoldsAll(const ModelSpec& model) const;

  // InvalidArgument: a tied model has a head of its own here that differs from the embedding. Reads both tensors.
  absl::Status CheckTiedHead(const ModelSpec& model) const;

  // Fills `values` (row-major, as many as `shape` has elements) with a tensor as fp32; an embedding or head that has
  // fewer rows here gets rows of zeros. NotFound names directory and tensor, and for a missing lm_head.weight the
  // likely cause; InvalidArgument says of an embedding or head with more rows how many and why; other errors are those
  // of SafetensorsFile::Read. A tied model has no lm_head.weight, and none is asked for.
  absl::Status Read(std::string_view name, const std::vector<int64_t>& shape, std::span<float> values) const;

 private:
  explicit HfDirectory(std::string directory) : directory_(std::move(directory)) {}

  // A tensor's shard, and its shape there: `shape`, or of an embedding or head fewer rows. Errors: those of Read.
  struct Found {
    const SafetensorsFile* shard = nullptr;
    std::vector<int64_t> shape;
  };
  absl::StatusOr<Found> Find(std::string_view name, const std::vector<int64_t>& shape) const;

  absl::Status OpenShards();
  absl::Status OpenIndexed(const MappedFile& index_file);
  absl::Status OpenShard(const std::string& file_name);

  std::string directory_;
  std::map<std::string, SafetensorsFile> shards_;            // by file name
  std::map<std::string, std::string, std::less<>> file_of_;  // tensor name to file name
};

}  // namespace geopipe
