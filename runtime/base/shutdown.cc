#include "runtime/base/shutdown.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "runtime/base/files.h"
#include "runtime/base/poll.h"

namespace geopipe {

absl::StatusOr<std::unique_ptr<ShutdownSignal>> ShutdownSignal::Install() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGHUP);
  const int error = pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  if (error != 0) {
    return ErrnoStatus(error, "cannot block signals");
  }
  UniqueFd fd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) {
    return ErrnoStatus(errno, "cannot make a signalfd");
  }
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGCHLD, SIG_DFL);  // ignored, children would be gone before their exit codes are read
  return std::unique_ptr<ShutdownSignal>(new ShutdownSignal(std::move(fd)));
}

int ShutdownSignal::Wait(int64_t timeout_ns) { return WaitForSignal(timeout_ns).signal; }

ShutdownSignal::Received ShutdownSignal::WaitForSignal(int64_t timeout_ns) {
  pollfd wanted{.fd = fd_.get(), .events = POLLIN, .revents = 0};
  PollFor({&wanted, 1}, timeout_ns);
  signalfd_siginfo info{};
  if (read(fd_.get(), &info, sizeof(info)) != sizeof(info)) {
    return {};
  }
  return {.signal = static_cast<int>(info.ssi_signo), .requested = info.ssi_pid == static_cast<uint32_t>(getpid())};
}

void ShutdownSignal::Request() { kill(getpid(), SIGTERM); }

}  // namespace geopipe
