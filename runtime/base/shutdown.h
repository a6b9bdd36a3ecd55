// SIGINT, SIGTERM and SIGHUP as something to wait for.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>

#include "runtime/base/unique_fd.h"

namespace geopipe {

// Makes the three signals readable from a file descriptor instead of deadly, SIGPIPE an error code, and the ends of
// children known whatever the parent process had set for SIGCHLD. At most one per process, installed before any thread
// starts (threads inherit the signal mask) and kept until the process ends.
class ShutdownSignal {
 public:
  static absl::StatusOr<std::unique_ptr<ShutdownSignal>> Install();
  ShutdownSignal(const ShutdownSignal&) = delete;
  ShutdownSignal& operator=(const ShutdownSignal&) = delete;

  // Readable (poll, epoll) once a signal has arrived and has not been taken. Owned by this object.
  int fd() const { return fd_.get(); }

  // Waits for a signal and takes it: the signal, or 0 when `timeout_ns` (negative: none) has passed. One thread
  // at a time.
  int Wait(int64_t timeout_ns);

  struct Received {
    int signal = 0;          // as Wait's
    bool requested = false;  // by Request, and not by another process
  };
  Received WaitForSignal(int64_t timeout_ns);

  // Acts as if SIGTERM had been sent to this process. Any thread.
  void Request();

 private:
  explicit ShutdownSignal(UniqueFd fd) : fd_(std::move(fd)) {}

  UniqueFd fd_;
};

}  // namespace geopipe
