// Small files and folders that daemons read at start and leave behind. Errors name the path and the system's reason.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include "runtime/base/unique_fd.h"

namespace geopipe {

// Canonical status of a failed system call: "<what>: No such file or directory" as NotFound, and so on. It is the
// node's trouble (optimizer/base/trouble.h).
absl::Status ErrnoStatus(int error_number, std::string_view what);

// The whole file; of "-" standard input, which is not empty. OutOfRange when it has more than `max_bytes`;
// InvalidArgument for what is no regular file, which is never waited for (descriptors that this process was given, as
// /dev/fd/63, may be pipes).
absl::StatusOr<std::string> ReadFile(const std::filesystem::path& path, size_t max_bytes);

// Reads at most the last `max_bytes` of a file, from the start of a line on where that is possible.
absl::StatusOr<std::string> ReadFileTail(const std::filesystem::path& path, size_t max_bytes);

// Replaces the file atomically: writes beside it, flushes to disk and renames, so that a reader sees old or new. A
// symbolic link stays, and its target is replaced. A pipe that somebody reads, a terminal or another
// device is written to.
absl::Status WriteFileAtomically(const std::filesystem::path& path, std::string_view content);

// Makes the folder with all parents, mode 0700 where it is new.
absl::Status MakeFolder(const std::filesystem::path& path);

// Makes the file and locks it for as long as the descriptor lives. AlreadyExists: another process has it locked.
absl::StatusOr<UniqueFd> LockFile(const std::filesystem::path& path);

// Path of a program of this installation: beside the running one. NotFound when it is not an executable file.
absl::StatusOr<std::string> SiblingProgram(std::string_view name);

// A folder of its own below $TMPDIR (or /tmp), mode 0700, removed with all its content unless kept.
class TempFolder {
 public:
  static absl::StatusOr<TempFolder> Create(std::string_view prefix);
  TempFolder(TempFolder&& other) noexcept;
  TempFolder& operator=(TempFolder&& other) noexcept;
  ~TempFolder();

  const std::filesystem::path& path() const { return path_; }
  void Keep() { keep_ = true; }

 private:
  explicit TempFolder(std::filesystem::path path) : path_(std::move(path)) {}

  std::filesystem::path path_;
  bool keep_ = false;
};

}  // namespace geopipe
