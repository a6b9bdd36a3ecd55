// The weights of a Hugging Face Llama directory: model.safetensors, or shards named by model.safetensors.index.json.
#pragma once

#include <absl/status/statusor.h>

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
  // Reads index and headers, no weights. NotFound: none of the files. InvalidArgument names the file: that of
  // SafetensorsFile::Open; an index without "weight_map", or one that names a tensor that its shard does not hold.
  static absl::StatusOr<HfDirectory> Open(const std::string& directory);

  // InvalidArgument names a tensor that is no part of `model`, which would train without it.
  absl::Status CheckHoldsOnly(const ModelSpec& model) const;

  // Fills `values` (row-major, as many as `shape` has elements) with a tensor as fp32. NotFound names directory and
  // tensor, and for a missing lm_head.weight the likely cause; other errors are those of SafetensorsFile::Read. A tied
  // model has no lm_head.weight, and none is asked for.
  absl::Status Read(std::string_view name, const std::vector<int64_t>& shape, std::span<float> values) const;

 private:
  explicit HfDirectory(std::string directory) : directory_(std::move(directory)) {}

  absl::Status OpenShards();
  absl::Status OpenShard(const std::string& file_name);

  std::string directory_;
  std::map<std::string, SafetensorsFile> shards_;            // by file name
  std::map<std::string, std::string, std::less<>> file_of_;  // tensor name to file name
};

}  // namespace geopipe
