#include "runtime/base/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <string>
#include <vector>

#include "runtime/base/files.h"

namespace geopipe {
namespace {

std::atomic<int> output_error = 0;  // errno of the first write that standard output has not taken

void Remember(int error_number) {
  int none = 0;
  output_error.compare_exchange_strong(none, error_number);
}

// Makes `fd` one that is open the wrong way round, so that using it fails. It stays open in children: theirs must not
// be taken either.
void Block(int fd) {
  int opened = open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  if (opened < 0) {
    opened = open("/", O_PATH);  // there is no /dev
  }
  if (opened >= 0 && opened != fd) {
    dup2(opened, fd);
    close(opened);
  }
}

// Begins this program anew with the descriptors that it has. Returns where that fails.
void RunAgain() {
  absl::StatusOr<std::string> line = ReadFile("/proc/self/cmdline", 1 << 22);
  if (!line.ok()) {
    return;
  }
  std::vector<char*> arguments;
  for (size_t begin = 0; begin < line->size(); begin = line->find('\0', begin) + 1) {
    arguments.push_back(line->data() + begin);
  }
  arguments.push_back(nullptr);
  execv("/proc/self/exe", arguments.data());
}

}  // namespace

void PrepareStandardStreams() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  bool is_taken = false;
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    const int flags = fcntl(fd, F_GETFD);
    // A descriptor that exec closes was not inherited: a library has made it before main, where it was closed.
    const bool is_library = flags >= 0 && (flags & FD_CLOEXEC) != 0;
    is_taken = is_taken || is_library;
    if (is_library || (flags < 0 && errno == EBADF)) {
      Block(fd);
    }
  }
  if (is_taken) {
    RunAgain();
  }
}

void WriteTo(std::FILE* stream, std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stream) != text.size() && stream == stdout) {
    Remember(errno);
  }
}

absl::Status FlushOutput() {
  if (std::fflush(stdout) != 0) {
    Remember(errno);
  }
  const int error_number = output_error;
  return error_number == 0 ? absl::OkStatus() : ErrnoStatus(error_number, "cannot write to standard output");
}

int ExitCodeAfterOutput(std::string_view program, int exit_code) {
  const absl::Status status = FlushOutput();
  if (status.ok()) {
    return exit_code;
  }
  if (output_error != EPIPE) {
    PrintErr("{}: {}\n", program, std::string_view(status.message().data(), status.message().size()));
  }
  return exit_code == 0 ? 1 : exit_code;
}

}  // namespace geopipe
