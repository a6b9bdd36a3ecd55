#include "runtime/checkpoint/checkpoint_root.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>

#include "optimizer/base/status_macros.h"
#include "optimizer/base/trouble.h"
#include "runtime/base/files.h"
#include "runtime/checkpoint/new_file.h"

namespace geopipe {

absl::Status CheckpointRoot::Check() {
  if (!file_system_.has_value()) {
    if (const absl::Status made = MakeFolder(path_); !made.ok()) {
      return Reworded(made, fmt::format("{}; choose another folder for checkpoints", std::string(made.message())));
    }
    GP_RETURN_IF_ERROR(NewFile::Create(path_ + "/writable").status());  // gone with the value
  }
  struct stat found {};
  if (stat(path_.c_str(), &found) != 0) {
    return errno == ENOENT
               ? absl::NotFoundError(fmt::format(
                     "{}: the folder of checkpoints is gone; mount its file system or make it again", path_))
               : CheckpointIoError(path_, "read", errno);
  }
  if (file_system_.value_or(found.st_dev) != found.st_dev) {
    return absl::FailedPreconditionError(
        fmt::format("{}: the folder of checkpoints is on another file system than before; was its own unmounted? mount "
                    "it again",
                    path_));
  }
  file_system_ = found.st_dev;
  return absl::OkStatus();
}

}  // namespace geopipe
