// The folders of checkpoints below one root: begun, completed, listed, removed.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/checkpoint/manifest.h"

namespace geopipe {

// "<root>/iteration-0000000200". REQUIRES: 0 <= iteration <= CheckpointLimits::kMaxIteration.
std::string CheckpointFolder(std::string_view root, int64_t iteration);

// The number in the last part of a path; nullopt when it is not the name of a checkpoint's folder.
std::optional<int64_t> IterationOfFolder(std::string_view folder);

// Makes the folder for the state before `iteration`, with its parents, and returns its path. Files of an earlier
// attempt stay, a complete checkpoint too, until WriteCheckpointManifest replaces it. Several processes may begin the
// same one; each then writes its own files. Errors name the folder: those of NewFile.
absl::StatusOr<std::string> BeginCheckpoint(const std::string& root, int64_t iteration);

// Completes a checkpoint, in place of one that was complete before, and removes files of checkpoints that the manifest
// does not name: those of other attempts, and of writers that died. Several nodes may complete it in the same folder of
// a shared file system. REQUIRES: all its files are written, on this node or another. InvalidArgument: a rule of
// ValidateCheckpointManifest, or longer than CheckpointLimits::kMaxManifestBytes. Errors of NewFile.
absl::Status WriteCheckpointManifest(const std::string& folder, const CheckpointManifest& manifest);

struct CheckpointList {
  struct Complete {
    int64_t iteration = 0;
    std::string folder{};
  };
  struct Incomplete {
    int64_t iteration = 0;
    std::string folder{};
    absl::Status reason{};  // of Checkpoint::Open
  };
  std::vector<Complete> complete;      // by iteration, ascending
  std::vector<Incomplete> incomplete;  // the same
};

// Lists the folders below `root` that are named as a checkpoint; everything else is ignored. Empty when there is no
// `root` yet. Errors: `root` cannot be read.
absl::StatusOr<CheckpointList> ListCheckpoints(const std::string& root);

// Removes old checkpoints, of those up to the iteration `newest`:
// - the complete ones but the newest `keep`;
// - the incomplete ones before the newest complete one, unless the manifest cannot be read for now, or is intact and of
//   another version or iteration.
// Later ones (being written, or of a future that came to nothing) neither count nor go; those of the iterations `kept`
// stay, complete or not. The manifest of each goes first, so that half of one never passes for a whole. Only files
// that writers of checkpoints make are removed: a folder with another file in it stays, with that file. Returns the
// removed folders, oldest first. Continues after an error and returns the first. A process that reads or writes a
// removed one finds it gone. REQUIRES: keep >= 1.
absl::StatusOr<std::vector<std::string>> RemoveOld(const std::string& root, int64_t keep,
                                                   std::span<const int64_t> kept = {},
                                                   int64_t newest = CheckpointLimits::kMaxIteration);

}  // namespace geopipe
