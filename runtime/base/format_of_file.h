// Reads what tells the format of a file or folder.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>

#include "runtime/base/file_format.h"
#include "runtime/base/input_file.h"

namespace geopipe {

// nullptr: none that is known. Errors: those of InputFile::Read.
absl::StatusOr<const FileFormat*> FormatOfFile(const InputFile& file);

// nullptr: none that is known, or no folder that can be read. Looks at some thousand names at most.
const FolderFormat* FormatOfFolder(const std::string& path);

// FailedPrecondition, InvalidArgument: `path` is a folder, or a file of a known format, where a flat file of tokens is
// wanted; the sentence names both and what to do. Errors of InputFile.
absl::Status CheckFlatTokens(const std::string& path);

// Describes what `path` holds in place of a model of ours, for an error: "but PyTorch weights; save them as ...". Of a
// file it says that a folder is needed. Empty: nothing is known of it.
std::string DescribeOtherWeights(const std::string& path);

}  // namespace geopipe
