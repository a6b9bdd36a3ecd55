// Reads what tells the format of a file or folder.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>

#include "runtime/base/file_format.h"
#include "runtime/base/input_file.h"

namespace geopipe {

// Recognises an open file; nullptr: no format that is known. Errors: those of InputFile::Read.
absl::StatusOr<const FileFormat*> FormatOfFile(const InputFile& file);

// Recognises a folder; nullptr: no format that is known, or no folder that can be read. Looks at some thousand names at
// most.
const FolderFormat* FormatOfFolder(const std::string& path);

// Checks that `path` may be a flat file of tokens. FailedPrecondition or InvalidArgument: it is a folder, or a file of
// a known format; the sentence names both and the remedy. Errors of InputFile.
absl::Status CheckFlatTokens(const std::string& path);

// Describes what `path` holds in place of a model of ours, for an error: "but PyTorch weights; save them as ...". Of a
// file it says that a folder is needed. Empty: nothing is known of it.
std::string DescribeOtherWeights(const std::string& path);

}  // namespace geopipe
