// Entries of a checkpoint's manifest on the wire.
#pragma once

#include <absl/status/statusor.h>

#include "geopipe/v1/checkpoint.pb.h"
#include "runtime/checkpoint/manifest.h"

namespace geopipe {

v1::CheckpointFile ToProto(const FileEntry& file);
// Errors are those of ValidateFileEntry.
absl::StatusOr<FileEntry> FromProto(const v1::CheckpointFile& message);

}  // namespace geopipe
