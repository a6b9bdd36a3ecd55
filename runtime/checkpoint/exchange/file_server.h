// Serves the checkpoint files of a worker's node to the workers of other nodes (exchange_wire.h). It listens from the
// start of the process, so that its address is known, and hangs up on all clients until it is told what to serve.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "runtime/base/clock.h"
#include "runtime/base/network_limits.h"
#include "runtime/base/stop_event.h"
#include "runtime/base/tcp_stream.h"
#include "runtime/checkpoint/checkpoint_root.h"
#include "runtime/checkpoint/exchange/exchange_wire.h"

namespace geopipe {

// Paces a server's data to one client (a rehearsed link is slower than the host's own network). One thread.
class SendPace {
 public:
  virtual ~SendPace() = default;
  // Time of an answer on its way, besides that of its bytes.
  virtual int64_t latency_ns() const = 0;
  // Gives the link `bytes` at `now_ns` (CLOCK_MONOTONIC). Returns the time at which the last of them has left and they
  // are handed to the system.
  virtual int64_t Depart(int64_t now_ns, int64_t bytes) = 0;
};

// Makes the pace for a client of this site; null: none. Errors end the client's connection. Any thread.
using PaceOfSite = std::function<absl::StatusOr<std::unique_ptr<SendPace>>(std::string_view site)>;

struct FileServerOptions {
  std::string ip = "127.0.0.1";
  PortRange ports = {};
  int64_t handshake_limit_ns = 5'000'000'000;
  int64_t idle_limit_ns = 60'000'000'000;  // for a client's next request, and for it to take a piece
};

class FileServer {
 public:
  static constexpr size_t kMaxClients = 16;  // another is hung up on, and comes again

  // The files that are served, and to whom.
  struct Served {
    std::string secret;    // that clients prove they know
    std::string root;      // of the checkpoints
    PaceOfSite pace = {};  // empty: no link is rehearsed
    // The root bears it; where it does not, its file system is away and no file is missing.
    CheckpointMark mark = {};
  };

  // Listens and starts the thread that takes connections; each has a thread of its own. Unavailable: no port is free.
  static absl::StatusOr<std::unique_ptr<FileServer>> Start(const FileServerOptions& options);
  FileServer(const FileServer&) = delete;
  FileServer& operator=(const FileServer&) = delete;
  // Ends all connections, and waits for the threads.
  ~FileServer();

  // "ip:port".
  const std::string& address() const { return address_; }

  // Serves from here on. Clients of an earlier secret or root are hung up on at their next request. Any thread.
  void Serve(Served served);

  // Number of clients that did not know the secret, that came before there was one, and that have gone. Any thread.
  int64_t refused() const { return refused_; }
  int64_t hung_up() const { return hung_up_; }
  int64_t left() const { return left_; }

 private:
  struct Client {
    std::thread thread;
    std::atomic<bool> done = false;
  };

  FileServer(const FileServerOptions& options, TcpListener listener);

  void Run();
  void Reap();
  absl::Status Converse(TcpStream& stream);
  absl::Status SendFile(TcpStream& stream, const Served& terms, const FileRequest& request, SendPace* pace);
  absl::Status SendPieces(TcpStream& stream, int file, int64_t offset, int64_t end, SendPace* pace);
  absl::Status Decline(TcpStream& stream, FileVerdict verdict, std::string_view why);
  std::shared_ptr<const Served> served() const;
  int64_t Within(int64_t limit_ns) const { return clock_.NowNs() + limit_ns; }

  const FileServerOptions options_;
  TcpListener listener_;  // thread_'s
  const std::string address_;
  std::atomic<int64_t> refused_ = 0;
  std::atomic<int64_t> hung_up_ = 0;
  std::atomic<int64_t> left_ = 0;
  StopEvent stop_;
  StoppableClock clock_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Served> served_;        // null: no client is served
  std::list<std::unique_ptr<Client>> clients_;  // thread_'s; then the destructor's
  std::thread thread_;
};

}  // namespace geopipe
