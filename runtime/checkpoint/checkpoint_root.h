// The folder below which a job's checkpoints are, as one process of the job has found it. A file system that is
// unmounted leaves an empty folder behind, which would take checkpoints until the disk below is full: such a folder is
// refused.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <optional>
#include <string>

namespace geopipe {

// One thread at a time.
class CheckpointRoot {
 public:
  explicit CheckpointRoot(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }

  // Checks that checkpoints can be written: the first time makes the folder with its parents, and a file in it; from
  // then on the folder must stay on the same file system. Errors name the path, what is wrong and the remedy.
  absl::Status Check();

 private:
  std::string path_;
  std::optional<uint64_t> file_system_;  // nullopt: not found good yet
};

}  // namespace geopipe
