// Reads a checkpoint by the names of tensors, whichever ranks, replicas and stages wrote it.
//
// A checkpoint is a folder `<root>/iteration-<ten digits>`: the state before that iteration. For each unit of the model
// (checkpoint_units.h) it has a file of weights (fp32, Hugging Face names) and one of moments (AdamW's two of each
// tensor), or several that hold ranges of these, and beside them manifest.json (manifest.h), which names them. A node
// need not have all files.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "optimizer/model/model_spec.h"
#include "optimizer/model/parameter_buckets.h"
#include "runtime/checkpoint/manifest.h"

namespace geopipe {

// Move-only and immutable; holds no file open. Any thread may read.
class Checkpoint {
 public:
  // Reads the manifest, no tensors. NotFound: there is none, so this is no checkpoint, or no longer one.
  // FailedPrecondition: the folder's name says another iteration. OutOfRange: longer than kMaxManifestBytes. Other
  // errors are those of ParseCheckpointManifest and CheckpointFile.
  static absl::StatusOr<Checkpoint> Open(const std::string& folder);

  Checkpoint(Checkpoint&&) noexcept = default;
  Checkpoint& operator=(Checkpoint&&) noexcept = default;

  const std::string& folder() const { return folder_; }
  const CheckpointManifest& manifest() const { return manifest_; }

  // Fills `values` (row-major, as many as `shape` has elements) with a weight ("model.norm.weight") or a moment
  // ("model.norm.weight.exp_avg"), assembled from its ranges, each of which must lie in a file of this node. Checks the
  // checksum of all it reads. After an error `values` are undefined.
  // NotFound: the checkpoint has no such tensor, or the file is not on this node. InvalidArgument: another shape.
  // FailedPrecondition: no file holds a part of it. DataLoss: file or tensor is damaged. Each names file and tensor.
  // REQUIRES: values.size() is the number of elements of `shape`.
  absl::Status Read(std::string_view tensor, const std::vector<int64_t>& shape, std::span<float> values) const;

  // Reads a piece of the tensor, which is the piece's parameter or one of its moments. Reads the ranges that have
  // elements of the piece, each to its end, because a checksum covers a whole range; elements outside the piece take no
  // memory. Errors as above, of the ranges read. REQUIRES: piece.count values.
  absl::Status ReadPiece(std::string_view tensor, const TensorPiece& piece, std::span<float> values) const;

  // Returns the files that hold elements of a piece of a tensor, by their place in it; copies are adjacent. Valid as
  // long as the checkpoint. Empty where the tensor has another shape.
  std::vector<const FileEntry*> FilesOf(std::string_view tensor, const TensorPiece& piece) const;

  // Checks that this is a state of `model`: the same description, and each weight and moment there, whole, in its
  // shape, and nothing besides. FailedPrecondition names the first field or tensor that differs. Looks at the manifest
  // alone.
  absl::Status CheckSameModel(const ModelSpec& model) const;
  // Checks the same for the model that the manifest describes.
  absl::Status CheckWhole() const { return CheckTensors(manifest_.model); }

 private:
  // A range of a tensor in a file.
  struct Place {
    const FileEntry* file = nullptr;
    const TensorEntry* entry = nullptr;
    int64_t position = 0;  // in the file
  };
  // Places by offset; copies of a range are adjacent.
  using Places = std::vector<Place>;
  // Elements that are contiguous both in the order of a tensor's ranges and in the wanted piece.
  struct Run {
    int64_t stored = 0;
    int64_t wanted = 0;
    int64_t elements = 0;

    int64_t end() const { return stored + elements; }
  };

  Checkpoint(std::string folder, CheckpointManifest manifest);

  // Runs of a piece, in the order of the ranges. REQUIRES: the tensor has the piece's shape.
  static std::vector<Run> RunsOf(const TensorPiece& piece, int64_t column_parts);
  static std::span<const Run> RunsIn(const TensorRange& range, std::span<const Run> runs);

  std::string PathOf(std::string_view file) const;
  absl::Status CheckCovered(std::string_view tensor, const Places& places) const;
  absl::Status CheckTensors(const ModelSpec& model) const;
  std::string FirstOtherTensor(const ModelSpec& model) const;
  // Fills `values` with the elements that the range has of these runs.
  absl::Status ReadPlace(const Place& place, std::span<const Run> runs, std::span<float> values) const;

  std::string folder_;
  CheckpointManifest manifest_;  // its entries are what `places_` points to; a move leaves them where they are
  std::map<std::string_view, Places, std::less<>> places_;
};

}  // namespace geopipe
