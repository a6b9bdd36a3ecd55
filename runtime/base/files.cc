#include "runtime/base/files.h"

#include <absl/status/status.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "optimizer/base/trouble.h"
#include "runtime/base/file_format.h"
#include "runtime/base/unique_fd.h"

namespace geopipe {
namespace {

namespace fs = std::filesystem;

// True when `path` names a descriptor that this process was given, as a shell's <(...) does: it may be a pipe.
bool IsGiven(const fs::path& path) {
  const std::string& name = path.native();
  return name == "/dev/stdin" || name.starts_with("/dev/fd/") || name.starts_with("/proc/self/fd/");
}

// Opens a regular file, or a descriptor that this process was given (IsGiven). Never waits for a writer, a device or a
// lock, except on a given descriptor.
absl::StatusOr<UniqueFd> OpenForReading(const fs::path& path, struct stat* info) {
  const bool is_given = IsGiven(path);
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | (is_given ? 0 : O_NONBLOCK)));
  if (!fd.valid() && errno == ENXIO) {
    return absl::InvalidArgumentError(
        fmt::format("cannot read {}: it is a socket or a device; name a file", path.string()));
  }
  if (!fd.valid() || fstat(fd.get(), info) != 0) {
    return ErrnoStatus(errno, fmt::format("cannot read {}", path.string()));
  }
  if (S_ISDIR(info->st_mode) || (!is_given && !S_ISREG(info->st_mode))) {
    return absl::InvalidArgumentError(
        fmt::format("cannot read {}: it is {}; name a file", path.string(), KindOfFile(info->st_mode)));
  }
  return fd;
}

// Reads until the end, or until `max_bytes` + 1 bytes are there.
absl::StatusOr<std::string> ReadAll(int fd, const fs::path& path, size_t max_bytes) {
  std::string content;
  constexpr size_t kStep = size_t{64} * 1024;
  while (content.size() <= max_bytes) {
    const size_t filled = content.size();
    content.resize(std::min(filled + kStep, max_bytes + 1));
    const ssize_t got = read(fd, content.data() + filled, content.size() - filled);
    if (got < 0 && errno != EINTR) {
      return ErrnoStatus(errno, fmt::format("cannot read {}", path.string()));
    }
    content.resize(filled + (got > 0 ? static_cast<size_t>(got) : 0));
    if (got == 0) {
      break;
    }
  }
  return content;
}

absl::Status CannotWrite(int error_number, const fs::path& path) {
  const absl::Status status = ErrnoStatus(error_number, fmt::format("cannot write {}", path.string()));
  const std::string_view remedy = error_number == ENOSPC || error_number == EDQUOT
                                      ? "; free some space or choose another folder"
                                  : error_number == EFBIG ? "; raise the limit on a file's size (ulimit -f)"
                                  : error_number == EROFS ? "; choose another folder"
                                                          : "";
  return Reworded(status, fmt::format("{}{}", std::string(status.message()), remedy));
}

bool IsUnreadPipe(int error_number, const fs::path& path) {
  std::error_code error;
  return error_number == ENXIO && fs::is_fifo(path, error);
}

// Opens what is no regular file, or is open already. Does not wait long for a pipe's reader, which may have been
// started a moment before or after this process.
absl::StatusOr<UniqueFd> OpenForAppending(const fs::path& path) {
  constexpr int kLooks = 50;
  constexpr useconds_t kLookEveryUs = 20'000;
  const auto open_once = [&] {
    return UniqueFd(open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  };
  UniqueFd fd = open_once();
  for (int look = 0; look < kLooks && !fd.valid() && IsUnreadPipe(errno, path); ++look) {
    usleep(kLookEveryUs);
    fd = open_once();
  }
  if (!fd.valid() && errno == ENXIO) {
    return absl::FailedPreconditionError(fmt::format(
        "cannot write {}: nobody reads it; name a file, or start what reads the pipe first", path.string()));
  }
  // A reader may take its time once it is open.
  if (!fd.valid() || fcntl(fd.get(), F_SETFL, O_APPEND) != 0) {
    return CannotWrite(errno, path);
  }
  return fd;
}

absl::Status WriteAll(int fd, std::string_view content, const fs::path& path) {
  while (!content.empty()) {
    const ssize_t put = write(fd, content.data(), content.size());
    if (put < 0 && errno != EINTR) {
      return CannotWrite(errno, path);
    }
    content.remove_prefix(put > 0 ? static_cast<size_t>(put) : 0);
  }
  return absl::OkStatus();
}

// Follows the symbolic links from `path` on; nothing need be there.
fs::path LinkedFile(fs::path path) {
  constexpr int kMaxLinks = 40;  // as the kernel follows
  std::error_code error;
  for (int i = 0; i < kMaxLinks && fs::is_symlink(path, error); ++i) {
    path = path.parent_path() / fs::read_symlink(path, error);
  }
  return path;
}

}  // namespace

absl::Status ErrnoStatus(int error_number, std::string_view what) {
  // strerror replaces Abseil's text, which comes from a table that all threads share behind a guard that
  // ThreadSanitizer cannot see.
  return OfNode({absl::ErrnoToStatusCode(error_number), fmt::format("{}: {}", what, std::strerror(error_number))});
}

absl::StatusOr<std::string> ReadFile(const fs::path& path, size_t max_bytes) {
  struct stat info {};
  GP_ASSIGN_OR_RETURN(const UniqueFd fd, OpenForReading(path == "-" ? "/dev/stdin" : path, &info));
  // A size that is known spares the reading: a file with holes may have any.
  const bool is_known_larger =
      S_ISREG(info.st_mode) && info.st_size > 0 && static_cast<size_t>(info.st_size) > max_bytes;
  std::string content;
  if (!is_known_larger) {
    GP_ASSIGN_OR_RETURN(content, ReadAll(fd.get(), path, max_bytes));
  }
  if (path == "-" && !is_known_larger && content.find_first_not_of(" \t\r\n") == std::string::npos) {
    return absl::InvalidArgumentError("cannot read -: standard input is empty; name a file, or give its text there");
  }
  if (is_known_larger || content.size() > max_bytes) {
    return absl::OutOfRangeError(
        fmt::format("{} is larger than {} bytes, the limit for such a file", path.string(), max_bytes));
  }
  return content;
}

absl::StatusOr<std::string> ReadFileTail(const fs::path& path, size_t max_bytes) {
  struct stat info {};
  GP_ASSIGN_OR_RETURN(const UniqueFd fd, OpenForReading(path, &info));
  const auto size = static_cast<size_t>(std::max<off_t>(info.st_size, 0));
  const bool cut = size > max_bytes;
  if (cut && lseek(fd.get(), static_cast<off_t>(size - max_bytes), SEEK_SET) < 0) {
    return ErrnoStatus(errno, fmt::format("cannot read {}", path.string()));
  }
  GP_ASSIGN_OR_RETURN(std::string content, ReadAll(fd.get(), path, max_bytes));
  content.resize(std::min(content.size(), max_bytes));
  const size_t line_end = cut ? content.find('\n') : std::string::npos;
  if (line_end != std::string::npos && line_end + 1 < content.size()) {
    content.erase(0, line_end + 1);
  }
  return content;
}

absl::Status WriteFileAtomically(const fs::path& path, std::string_view content) {
  struct stat there {};
  std::error_code error;
  // A link in /dev leads to a file that this process has open, such as /dev/stdout after `> file`.
  const bool open_already = path.string().starts_with("/dev/") && fs::is_symlink(path, error);
  if (stat(path.c_str(), &there) == 0 && (!S_ISREG(there.st_mode) || open_already)) {
    GP_ASSIGN_OR_RETURN(const UniqueFd fd, OpenForAppending(path));
    return WriteAll(fd.get(), content, path);
  }
  const fs::path target = LinkedFile(path);
  std::string temporary = target.string() + ".XXXXXX";
  UniqueFd fd(mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd.valid()) {
    return CannotWrite(errno, path);
  }
  absl::Status status = WriteAll(fd.get(), content, path);
  if (status.ok() &&
      (fchmod(fd.get(), 0644) != 0 || fsync(fd.get()) != 0 || rename(temporary.c_str(), target.c_str()) != 0)) {
    status = CannotWrite(errno, path);
  }
  if (!status.ok()) {
    unlink(temporary.c_str());
  }
  return status;
}

absl::Status MakeFolder(const fs::path& path) {
  std::error_code error;
  const bool existed = fs::is_directory(path, error);
  fs::create_directories(path, error);
  if (error) {
    return ErrnoStatus(error.value(), fmt::format("cannot make the folder {}", path.string()));
  }
  if (!existed && chmod(path.c_str(), 0700) != 0) {
    return ErrnoStatus(errno, fmt::format("cannot make the folder {} private", path.string()));
  }
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> LockFile(const fs::path& path) {
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid()) {
    return ErrnoStatus(errno, fmt::format("cannot write {}", path.string()));
  }
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    return errno == EWOULDBLOCK ? absl::AlreadyExistsError(fmt::format("another process has locked {}", path.string()))
                                : ErrnoStatus(errno, fmt::format("cannot lock {}", path.string()));
  }
  return fd;
}

absl::StatusOr<std::string> SiblingProgram(std::string_view name) {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  if (error) {
    return ErrnoStatus(error.value(), "cannot read /proc/self/exe; is /proc mounted?");
  }
  const fs::path sibling = self.parent_path() / name;
  if (access(sibling.c_str(), X_OK) != 0) {
    return absl::NotFoundError(
        fmt::format("{} is not an executable file; install all programs of GeoPipe into one folder", sibling.string()));
  }
  return sibling.string();
}

absl::StatusOr<TempFolder> TempFolder::Create(std::string_view prefix) {
  const char* base = std::getenv("TMPDIR");
  std::string path = fmt::format("{}/{}XXXXXX", base == nullptr || *base == '\0' ? "/tmp" : base, prefix);
  if (mkdtemp(path.data()) == nullptr) {
    return ErrnoStatus(errno, fmt::format("cannot make a temporary folder {} (set TMPDIR to choose where)", path));
  }
  return TempFolder(fs::path(path));
}

TempFolder::TempFolder(TempFolder&& other) noexcept
    : path_(std::exchange(other.path_, fs::path())), keep_(other.keep_) {}

TempFolder& TempFolder::operator=(TempFolder&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(keep_, other.keep_);
  return *this;
}

TempFolder::~TempFolder() {
  if (!path_.empty() && !keep_) {
    std::error_code ignored;  // nobody is left to tell
    fs::remove_all(path_, ignored);
  }
}

}  // namespace geopipe
