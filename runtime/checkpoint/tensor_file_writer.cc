#include "runtime/checkpoint/tensor_file_writer.h"

#include <fmt/format.h>

#include <bit>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/crc32c.h"
#include "runtime/weights/safetensors_header.h"

namespace geopipe {
namespace {

static_assert(std::endian::native == std::endian::little, "the elements of a .safetensors file are little-endian");

// Checks a declared file against the rules of a manifest.
absl::Status CheckDeclared(const std::string& path, FileEntry entry) {
  entry.header_bytes = 8;
  entry.bytes = entry.header_bytes;
  for (const TensorEntry& tensor : entry.tensors) {
    // The sum may wrap around: sizes out of range are refused before it is looked at.
    entry.bytes = static_cast<int64_t>(static_cast<uint64_t>(entry.bytes) +
                                       sizeof(float) * static_cast<uint64_t>(tensor.range.elements));
  }
  const absl::Status status = ValidateFileEntry(entry);
  return status.ok() ? status
                     : absl::InvalidArgumentError(fmt::format("{}: cannot be written: {}; declare other tensors", path,
                                                              std::string(status.message())));
}

}  // namespace

std::string TensorFileHeader(const std::vector<TensorRange>& tensors) {
  std::vector<DeclaredTensor> declared;
  declared.reserve(tensors.size());
  for (const TensorRange& tensor : tensors) {
    const bool whole = tensor.elements == CountElements(tensor.shape) && tensor.column_parts == 1;
    declared.push_back({.name = tensor.name, .shape = whole ? tensor.shape : std::vector{tensor.elements}});
  }
  return SafetensorsHeader(declared);
}

absl::StatusOr<TensorFileWriter> TensorFileWriter::Create(const std::string& folder, const std::string& file_name,
                                                          const std::vector<TensorRange>& tensors) {
  const std::string path = fmt::format("{}/{}", folder, file_name);
  FileEntry entry{.name = file_name};
  for (const TensorRange& tensor : tensors) {
    entry.tensors.push_back({.range = tensor});
  }
  GP_RETURN_IF_ERROR(CheckDeclared(path, entry));
  const std::string header = TensorFileHeader(tensors);
  entry.header_bytes = static_cast<int64_t>(header.size());
  entry.header_crc32c = Crc32c(std::as_bytes(std::span(header)));
  entry.bytes = entry.header_bytes;
  for (const TensorRange& tensor : tensors) {
    entry.bytes += static_cast<int64_t>(sizeof(float)) * tensor.elements;
  }
  GP_ASSIGN_OR_RETURN(NewFile file, NewFile::Create(path));
  GP_RETURN_IF_ERROR(file.Reserve(entry.bytes));
  GP_RETURN_IF_ERROR(file.Write(std::as_bytes(std::span(header))));
  return TensorFileWriter(std::move(file), std::move(entry));
}

absl::Status TensorFileWriter::Append(std::string_view name, const std::vector<int64_t>& shape,
                                      std::span<const float> values) {
  GP_CHECK(appended_ < entry_.tensors.size(), "{} is one more tensor than the {} declared of {}", name,
           entry_.tensors.size(), entry_.name);
  TensorEntry& tensor = entry_.tensors[appended_];
  GP_CHECK(tensor.range.name == name && tensor.range.shape == shape, "{} is appended to {} in place of {}", name,
           entry_.name, tensor.range.name);
  GP_CHECK(static_cast<int64_t>(values.size()) == tensor.range.elements, "{} values for {} of {} elements",
           values.size(), name, tensor.range.elements);
  tensor.crc32c = Crc32c(std::as_bytes(values));
  ++appended_;
  return file_.Write(std::as_bytes(values));
}

absl::StatusOr<FileEntry> TensorFileWriter::Finish() {
  GP_CHECK(appended_ == entry_.tensors.size(), "{} of the {} tensors of {} were appended", appended_,
           entry_.tensors.size(), entry_.name);
  GP_RETURN_IF_ERROR(file_.Commit());
  return std::move(entry_);
}

}  // namespace geopipe
