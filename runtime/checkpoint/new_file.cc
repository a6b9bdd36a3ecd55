#include "runtime/checkpoint/new_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/trouble.h"

namespace geopipe {
namespace {

constexpr std::string_view kTemporaryMark = ".partial-";

std::string Remedy(int error_number) {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
      return "free some space or choose another folder";
    case EACCES:
    case EPERM:
      return fmt::format("give user id {} permission or choose another folder", geteuid());
    case EROFS:
      return "mount the file system writable or choose another folder";
    case ENOENT:
    case ENOTDIR:
      return "its folder is gone or is none; leave it alone while files are written";
    case EIO:
      return "check the disk (dmesg)";
    default:
      return "choose another folder";
  }
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

// Syncs the folder; returns 0 or the error's number.
int SyncedFolder(const std::string& folder) {
  const UniqueFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) {
    return errno;
  }
  // EINVAL: the file system keeps the order of names by itself and has nothing to sync.
  return fsync(fd.get()) == 0 || errno == EINVAL ? 0 : errno;
}

}  // namespace

absl::Status CheckpointIoError(std::string_view path, std::string_view done, int error_number) {
  return OfNode(
      {absl::ErrnoToStatusCode(error_number),
       fmt::format("{}: cannot be {}: {}; {}", path, done, std::strerror(error_number), Remedy(error_number))});
}

bool IsTemporaryName(std::string_view name) { return name.find(kTemporaryMark) != std::string_view::npos; }

absl::Status SyncFolder(const std::string& folder) {
  const int error_number = SyncedFolder(folder);
  return error_number == 0 ? absl::OkStatus() : CheckpointIoError(folder, "synced", error_number);
}

absl::StatusOr<NewFile> NewFile::Create(std::string path) {
  std::string temporary = fmt::format("{}{}XXXXXX", path, kTemporaryMark);
  UniqueFd fd(mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd.valid()) {
    return CheckpointIoError(path, "written", errno);
  }
  NewFile file(std::move(path), std::move(temporary), std::move(fd));
  if (fchmod(file.fd_.get(), 0644) != 0) {
    return file.Fail(errno);
  }
  return file;
}

absl::Status NewFile::Fail(int error_number) {
  error_ = CheckpointIoError(path_, "written", error_number);
  Discard();
  return error_;
}

void NewFile::Discard() {
  if (fd_.valid()) {
    unlink(temporary_.c_str());
    fd_.Reset();
  }
}

absl::Status NewFile::Reserve(int64_t bytes) {
  if (!error_.ok()) {
    return error_;
  }
  GP_CHECK(fd_.valid(), "{} is written already", path_);
  while (bytes > 0 && fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, 0, bytes) != 0) {
    if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) {
      return Fail(errno);
    }
    if (errno != EINTR) {
      break;
    }
  }
  return absl::OkStatus();
}

absl::Status NewFile::Write(std::span<const std::byte> bytes) {
  if (!error_.ok()) {
    return error_;
  }
  GP_CHECK(fd_.valid(), "{} is written already", path_);
  while (!bytes.empty()) {
    const ssize_t written = write(fd_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) {
      return Fail(errno);
    }
    bytes = bytes.subspan(written < 0 ? 0 : static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status NewFile::Commit() {
  if (!error_.ok()) {
    return error_;
  }
  GP_CHECK(fd_.valid(), "{} is written already", path_);
  if (fsync(fd_.get()) != 0 || rename(temporary_.c_str(), path_.c_str()) != 0) {
    return Fail(errno);
  }
  fd_.Reset();
  if (const int error_number = SyncedFolder(FolderOf(path_)); error_number != 0) {
    unlink(path_.c_str());
    error_ = CheckpointIoError(path_, "written", error_number);
  }
  return error_;
}

}  // namespace geopipe
