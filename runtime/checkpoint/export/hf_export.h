// Writes the weights of a checkpoint as a directory that Hugging Face's tools load.
//
// It has config.json and model.safetensors, or shards `model-00001-of-00003.safetensors` with
// model.safetensors.index.json, which names the shard of each tensor. config.json is written last, so a directory
// without it is one whose export was cut off. A checkpoint has no tokenizer: its files come from elsewhere
// (model_files.h).
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/export/model_files.h"
#include "runtime/weights/float_formats.h"

namespace geopipe {

struct HfExportOptions {
  FloatFormat format = FloatFormat::kFp32;
  // Most bytes of tensors in a file, as transformers' save_pretrained counts them; a larger tensor is alone in its
  // file.
  int64_t max_shard_bytes = 5'000'000'000;
  // Says whether the rows of a padded vocabulary that stand for no token are written as tokens too, or left out.
  bool keeps_padding = false;
  // Files that are written beside the weights.
  std::vector<ModelFile> model_files = {};
  // Called before each tensor. An error ends the export with that error.
  std::function<absl::Status(int64_t bytes_written, int64_t bytes_total)> progress = [](int64_t, int64_t) {
    return absl::OkStatus();
  };
};

struct HfExportSummary {
  int64_t tensors = 0;
  int64_t bytes = 0;  // of the tensors
  int64_t files = 0;  // that hold them

  friend bool operator==(const HfExportSummary&, const HfExportSummary&) = default;
};

// Makes `directory`, which may exist if it is empty, and writes into it. A tied model has no lm_head.weight. One tensor
// at a time is in memory. After an error nothing is left. Takes as long as the disks take. AlreadyExists: the directory
// is not empty or is a file. FailedPrecondition: a part of a weight is in no file. NotFound: a file of the checkpoint
// is not on this node. InvalidArgument: the manifest's model is not one that can be computed; a weight is too large for
// the format. DataLoss: a file of the checkpoint is damaged. Each names file and tensor. Others are those of NewFile
// and `progress`. REQUIRES: max_shard_bytes > 0.
absl::StatusOr<HfExportSummary> ExportHf(const Checkpoint& checkpoint, const std::string& directory,
                                         const HfExportOptions& options);

}  // namespace geopipe
