// Copies of the job store: files beside it whose names have their time and checksum.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <string>

namespace geopipe {

// Makes a backup of the store at `store`: `copy` writes it to the file that it is given, which does not exist yet.
// Returns its path: <folder of the store>/backups/jobs-20261129T024700Z-0a1b2c3d.sqlite. Errors are those of `copy` and
// of the file system.
absl::StatusOr<std::string> MakeBackup(const std::string& store, int64_t now_unix_ns,
                                       const std::function<absl::Status(const std::string& path)>& copy);

// Puts a backup in the place of the store at `path`, which is moved aside: to <path>.before-<time>. Returns where it
// is; empty: there was none. Errors: DataLoss: the backup is not what was written; Unavailable: a coordinator holds the
// store.
absl::StatusOr<std::string> RestoreJobStore(const std::string& backup, const std::string& path, int64_t now_unix_ns);

}  // namespace geopipe
