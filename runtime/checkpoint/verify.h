// Reads a whole checkpoint and reports whether it is intact.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace geopipe {

struct CheckpointProblem {
  enum class Kind : uint8_t {
    kMissing,     // the file is not on this node
    kUnreadable,  // the system does not let it be read, or it is not a regular file
    kSize,        // the file is shorter or longer than the manifest says
    kHeader,      // the header is damaged or cut off
    kTensor,      // a tensor is damaged or cut off
    kIncomplete,  // the files of the manifest, all together, lack a part of the model, or have something besides
  };

  Kind kind = Kind::kMissing;
  std::string file{};     // without its folder; of kIncomplete the manifest
  std::string tensor{};   // of kTensor
  std::string message{};  // a sentence with the file's path and a remedy

  friend bool operator==(const CheckpointProblem&, const CheckpointProblem&) = default;
};

// Reads every file that is here, a piece at a time, and returns all problems, in the order of the manifest; a node that
// has the files of its own stages alone finds the others missing. The first tensor that no file holds whole comes
// before all others. Errors are those of Checkpoint::Open. Any thread; takes as long as the disk takes to read it all.
// `progress` is called before each file with the bytes of those before it and of all.
absl::StatusOr<std::vector<CheckpointProblem>> VerifyCheckpoint(
    const std::string& folder, const std::function<void(int64_t done, int64_t total)>& progress = {});

}  // namespace geopipe
