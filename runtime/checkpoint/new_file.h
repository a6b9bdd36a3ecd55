// A file that gets its name only when it is whole and on disk: written under a temporary name in the same folder,
// synced, renamed, and the folder synced.
//
// Errors are one sentence, "<file>: cannot be written: No space left on device; free some space or choose another
// folder", with the code of the system's reason (ResourceExhausted, PermissionDenied, NotFound, …).
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/unique_fd.h"

namespace geopipe {

// Move-only; one thread at a time. Until Commit an older file keeps the name; after any error the new file has no name,
// neither the final nor the temporary one, if the system lets it be removed.
class NewFile {
 public:
  // Makes the temporary file beside `path`, with mode 0644.
  static absl::StatusOr<NewFile> Create(std::string path);

  NewFile(NewFile&&) noexcept = default;
  NewFile& operator=(NewFile&&) = delete;
  ~NewFile() { Discard(); }

  // Takes room on the disk for `bytes`, so that a full disk shows before they are written. Does nothing where the file
  // system cannot do it.
  absl::Status Reserve(int64_t bytes);

  // Appends. After an error every later call returns that error.
  absl::Status Write(std::span<const std::byte> bytes);

  // Gives the file its name, in place of an older file. Once; nothing is written afterwards.
  absl::Status Commit();

 private:
  NewFile(std::string path, std::string temporary, UniqueFd fd)
      : path_(std::move(path)), temporary_(std::move(temporary)), fd_(std::move(fd)) {}

  absl::Status Fail(int error_number);
  void Discard();

  std::string path_;
  std::string temporary_;
  UniqueFd fd_;
  absl::Status error_;
};

// True when a file of this name was left of a NewFile by a process that died.
bool IsTemporaryName(std::string_view name);

// Makes changes of the names in a folder durable. Errors as above.
absl::Status SyncFolder(const std::string& folder);

// "<path>: cannot be <done>: <the system's reason>; <remedy>".
absl::Status CheckpointIoError(std::string_view path, std::string_view done, int error_number);

}  // namespace geopipe
