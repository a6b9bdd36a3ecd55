// TCP over IPv4 with a deadline on every wait, which a StopEvent can break off. Neither encrypted nor authenticated:
// users protect what they send.
//
// Errors: Unavailable (the other end is not there, closed or broke), DeadlineExceeded, Cancelled (stopped). Deadlines
// are times of Clock::Real.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "runtime/base/network_limits.h"
#include "runtime/base/stop_event.h"
#include "runtime/base/unique_fd.h"

namespace geopipe {

// Move-only; one thread at a time.
class TcpStream {
 public:
  TcpStream() = default;  // not connected

  // `address`: "ip:port"; InvalidArgument for anything else. `stop` outlives the stream. `receive_buffer_bytes`: size
  // of the socket's buffer, which bounds the data in flight to a slow reader; 0: the kernel's.
  static absl::StatusOr<TcpStream> Connect(const std::string& address, int64_t deadline_ns, const StopEvent& stop,
                                           int receive_buffer_bytes = 0);

  bool valid() const { return fd_.valid(); }
  // Sends all of `bytes`.
  absl::Status Send(std::span<const std::byte> bytes, int64_t deadline_ns);
  // Receives what has come, at least a byte; returns how many bytes. REQUIRES: `room` is not empty.
  absl::StatusOr<size_t> ReceiveSome(std::span<std::byte> room, int64_t deadline_ns);
  // Fills all of `bytes`.
  absl::Status Receive(std::span<std::byte> bytes, int64_t deadline_ns);

 private:
  friend class TcpListener;
  TcpStream(UniqueFd fd, const StopEvent& stop) : fd_(std::move(fd)), stop_(&stop) {}

  absl::Status WaitFor(short events, int64_t deadline_ns) const;

  UniqueFd fd_;
  const StopEvent* stop_ = nullptr;
};

// One thread.
class TcpListener {
 public:
  // Listens on the first free port of the range. Unavailable names address and range.
  static absl::StatusOr<TcpListener> Listen(const std::string& ip, const PortRange& ports);

  // "ip:port" for those who connect.
  const std::string& address() const { return address_; }
  // Waits for the next connection, whose waits `stop` breaks off, too. Errors: Cancelled; Unavailable: this one failed,
  // a later one may not.
  absl::StatusOr<TcpStream> Accept(const StopEvent& stop);

 private:
  TcpListener(UniqueFd fd, std::string address) : fd_(std::move(fd)), address_(std::move(address)) {}

  UniqueFd fd_;
  std::string address_;
};

}  // namespace geopipe
