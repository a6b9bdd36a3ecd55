#include "runtime/worker/checkpoint_messages.h"

#include <algorithm>

#include "optimizer/base/status_macros.h"

namespace geopipe {

v1::CheckpointFile ToProto(const FileEntry& file) {
  v1::CheckpointFile message;
  message.set_name(file.name);
  message.set_bytes(file.bytes);
  message.set_header_bytes(file.header_bytes);
  message.set_header_crc32c(file.header_crc32c);
  for (const TensorEntry& tensor : file.tensors) {
    v1::CheckpointTensor& each = *message.add_tensors();
    each.set_name(tensor.range.name);
    each.mutable_shape()->Assign(tensor.range.shape.begin(), tensor.range.shape.end());
    each.set_offset(tensor.range.offset);
    each.set_elements(tensor.range.elements);
    each.set_crc32c(tensor.crc32c);
    if (tensor.range.column_parts > 1) {
      each.set_column_parts(tensor.range.column_parts);
    }
  }
  return message;
}

absl::StatusOr<FileEntry> FromProto(const v1::CheckpointFile& message) {
  FileEntry file{.name = message.name(),
                 .bytes = message.bytes(),
                 .header_bytes = message.header_bytes(),
                 .header_crc32c = message.header_crc32c(),
                 .tensors = {}};
  for (const v1::CheckpointTensor& tensor : message.tensors()) {
    file.tensors.push_back({.range = {.name = tensor.name(),
                                      .shape = {tensor.shape().begin(), tensor.shape().end()},
                                      .offset = tensor.offset(),
                                      .elements = tensor.elements(),
                                      .column_parts = std::max<int64_t>(1, tensor.column_parts())},
                            .crc32c = tensor.crc32c()});
  }
  GP_RETURN_IF_ERROR(ValidateFileEntry(file));
  return file;
}

}  // namespace geopipe
