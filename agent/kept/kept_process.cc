#include "agent/kept/kept_process.h"

#include <absl/status/statusor.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "runtime/base/files.h"
#include "runtime/base/poll.h"

namespace geopipe::agent {

std::string BootId() {
  const absl::StatusOr<std::string> id = ReadFile("/proc/sys/kernel/random/boot_id", 128);
  return id.ok() ? *id : "";
}

uint64_t StartTicks(int64_t pid) {
  const absl::StatusOr<std::string> stat = ReadFile(fmt::format("/proc/{}/stat", pid), 4096);
  if (!stat.ok()) {
    return 0;
  }
  // "pid (name) state ppid ...": the name may hold anything, its end is the last parenthesis. The start is field 22.
  constexpr int kFieldsAfterName = 20;
  size_t at = stat->rfind(')');
  for (int field = 0; field < kFieldsAfterName && at != std::string::npos; ++field) {
    at = stat->find(' ', at + 1);
  }
  return at == std::string::npos ? 0 : std::strtoull(stat->c_str() + at, nullptr, 10);
}

UniqueFd OpenPidfd(int64_t pid) {
  return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0)));
}

FileIdentity IdentityOf(const UniqueFd& fd) {
  struct stat info {};
  return fstat(fd.get(), &info) == 0 ? FileIdentity{info.st_dev, info.st_ino} : FileIdentity{};
}

// A program that may be executed need not be readable. Reading keeps it on a network file system when it is removed.
UniqueFd OpenProgram(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  return fd.valid() || errno != EACCES ? std::move(fd) : UniqueFd(open(path.c_str(), O_PATH | O_CLOEXEC));
}

RunFiles OpenRunFiles(const std::string& program) {
  RunFiles files;
  files.gpu_library = OpenProgram((std::filesystem::path(program).parent_path() / "libgeopipe_cuda.so").string());
  files.program = OpenProgram(program);  // errno is that of this
  return files;
}

RunFiles OpenRunFilesOf(const v1::KeptWorker& child) {
  RunFiles files;
  files.program = OpenProgram(fmt::format("/proc/{}/exe", child.pid()));
  if (IdentityOf(files.program) != FileIdentity{child.program_device(), child.program_inode()}) {
    return {};
  }
  if (child.gpu_library_fd() != 0) {
    files.gpu_library = OpenProgram(fmt::format("/proc/{}/fd/{}", child.pid(), child.gpu_library_fd()));
    if (IdentityOf(files.gpu_library) != FileIdentity{child.gpu_library_device(), child.gpu_library_inode()}) {
      files.gpu_library = UniqueFd();
    }
  }
  return files;
}

void KeptProcess::Signal(int signal) const { syscall(SYS_pidfd_send_signal, pidfd(), signal, nullptr, 0); }

std::optional<ExitStatus> KeptProcess::Ended() {
  if (process_.has_value()) {
    return process_->Wait(0);
  }
  pollfd ended{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
  return PollFor({&ended, 1}, 0) == 0 ? std::nullopt
                                      : std::optional(ExitStatus{.exit_code = kUnknownExitCode, .signal = 0});
}

}  // namespace geopipe::agent
