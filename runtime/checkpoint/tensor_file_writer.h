// Writes one .safetensors file of a checkpoint, tensor by tensor, so that no second copy of a model is in memory.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/new_file.h"

namespace geopipe {

// The header of a file of these tensors, in fp32. A tensor that is whole has its shape; a part of one is a vector of
// its elements.
std::string TensorFileHeader(const std::vector<TensorRange>& tensors);

// Move-only; one thread at a time. Errors are those of NewFile; after one, and until Finish, no file has the final
// name.
class TensorFileWriter {
 public:
  // Begins `file_name` in the existing folder of a checkpoint with the header of `tensors`, and takes room for them.
  // InvalidArgument names a tensor or a name that a manifest may not have.
  static absl::StatusOr<TensorFileWriter> Create(const std::string& folder, const std::string& file_name,
                                                 const std::vector<TensorRange>& tensors);

  // Appends the next of the declared tensors: `values` are its elements in row-major order, `shape` that of the whole
  // tensor. REQUIRES: name, shape and number of values are as declared.
  absl::Status Append(std::string_view name, const std::vector<int64_t>& shape, std::span<const float> values);

  // Syncs the file and gives it its name. Returns its entry in the manifest. Once. REQUIRES: all tensors were appended.
  absl::StatusOr<FileEntry> Finish();

 private:
  TensorFileWriter(NewFile file, FileEntry entry) : file_(std::move(file)), entry_(std::move(entry)) {}

  NewFile file_;
  FileEntry entry_;
  size_t appended_ = 0;
};

}  // namespace geopipe
