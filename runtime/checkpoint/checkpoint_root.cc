#include "runtime/checkpoint/checkpoint_root.h"

#include <absl/strings/strip.h>
#include <fmt/format.h>

#include <span>

#include "optimizer/base/status_macros.h"
#include "optimizer/base/trouble.h"
#include "runtime/base/files.h"
#include "runtime/base/utf8.h"
#include "runtime/checkpoint/new_file.h"

namespace geopipe {
namespace {

constexpr size_t kMaxMarkBytes = 1024;

std::string MarkPath(const std::string& path) { return path + "/" + kCheckpointMarkFile; }

absl::Status CheckMark(const std::string& path, const std::string& id) {
  const absl::StatusOr<std::string> found = ReadFile(MarkPath(path), kMaxMarkBytes);
  if (absl::IsNotFound(found.status())) {
    return OfNode(
        absl::NotFoundError(fmt::format("{}: the folder of checkpoints lacks the file {} that this job has put there; "
                                        "mount its file system, or if this "
                                        "is a new disk, write \"{}\" into that file",
                                        path, kCheckpointMarkFile, id)));
  }
  GP_RETURN_IF_ERROR(found.status());
  const std::string line(absl::StripSuffix(*found, "\n"));
  return line == id
             ? absl::OkStatus()
             : OfNode(absl::FailedPreconditionError(fmt::format(
                   "{}: is the folder of the checkpoints of {} and not of {}, as its file {} says; mount the file "
                   "system of this job, and give each job a folder of its own",
                   path, ToUtf8(line), id, kCheckpointMarkFile)));
}

absl::Status MakeRoot(const std::string& path) {
  const absl::Status made = MakeFolder(path);
  return made.ok()
             ? made
             : Reworded(made, fmt::format("{}; choose another folder for checkpoints", std::string(made.message())));
}

}  // namespace

absl::Status CheckCheckpointRoot(const std::string& path, const CheckpointMark& mark) {
  if (mark.expected) {
    return CheckMark(path, mark.id);
  }
  GP_RETURN_IF_ERROR(MakeRoot(path));
  return NewFile::Create(path + "/writable").status();  // gone with the value
}

absl::Status MarkCheckpointRoot(const std::string& path, CheckpointMark& mark) {
  if (!mark.expected) {
    GP_RETURN_IF_ERROR(MakeRoot(path));
    if (!CheckMark(path, mark.id).ok()) {
      GP_ASSIGN_OR_RETURN(NewFile file, NewFile::Create(MarkPath(path)));
      const std::string line = mark.id + "\n";
      GP_RETURN_IF_ERROR(file.Write(std::as_bytes(std::span(line))));
      GP_RETURN_IF_ERROR(file.Commit());
    }
    mark.expected = true;
  }
  return CheckMark(path, mark.id);
}

}  // namespace geopipe
