#include "runtime/checkpoint/exchange/file_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "runtime/base/log.h"
#include "runtime/base/thread_name.h"
#include "runtime/base/unique_fd.h"
#include "runtime/base/utf8.h"
#include "runtime/checkpoint/checkpoint_folders.h"
#include "runtime/checkpoint/manifest.h"

namespace geopipe {
namespace {

// Wait before accepting again: a process without free descriptors must not spin.
constexpr int64_t kAcceptAgainNs = 100'000'000;

struct ServedFile {
  UniqueFd fd;
  int64_t bytes = 0;
};

// Links and what is no plain file are refused; all else is the node's trouble, which may pass.
absl::Status CannotRead(const FileRequest& request, int error) {
  const std::string sentence = fmt::format("{} cannot be read: {}", request.name, std::strerror(error));
  return error == ELOOP || error == ENOTDIR || error == ENXIO ? absl::FailedPreconditionError(sentence)
                                                              : absl::UnavailableError(sentence);
}

// Opens a file of a checkpoint. NotFound: there is none. Unavailable: it cannot be read at the moment.
// InvalidArgument: the name is not one of a checkpoint's file. FailedPrecondition: it is no plain file. Links are not
// followed below the root: only files in a checkpoint's folder are served.
absl::StatusOr<ServedFile> OpenServed(const FileServer::Served& terms, const FileRequest& request) {
  if (request.iteration < 0 || request.iteration > CheckpointLimits::kMaxIteration ||
      (request.name != kManifestName && !IsTensorFileName(request.name))) {
    return absl::InvalidArgumentError("this is not the name of a checkpoint's file");
  }
  const std::string folder = CheckpointFolder(terms.root, request.iteration);
  const UniqueFd folder_fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  ServedFile file;
  if (folder_fd.valid()) {
    // O_NONBLOCK: a pipe of this name is refused below rather than waited for.
    file.fd = UniqueFd(openat(folder_fd.get(), request.name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  }
  if (!file.fd.valid() && errno != ENOENT) {
    return CannotRead(request, errno);
  }
  if (!file.fd.valid()) {
    const absl::Status root = terms.mark.expected ? CheckCheckpointRoot(terms.root, terms.mark) : absl::OkStatus();
    return root.ok() ? absl::NotFoundError(fmt::format("{} is not there", request.name))
                     : absl::UnavailableError(root.message());
  }
  struct stat info {};
  if (fstat(file.fd.get(), &info) != 0) {
    return CannotRead(request, errno);
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(fmt::format("{} is not a regular file", request.name));
  }
  file.bytes = static_cast<int64_t>(info.st_size);
  return file;
}

FileVerdict VerdictOf(const absl::Status& status) {
  return absl::IsNotFound(status)      ? FileVerdict::kNotFound
         : absl::IsUnavailable(status) ? FileVerdict::kUnavailable
                                       : FileVerdict::kRefused;
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileServer>> FileServer::Start(const FileServerOptions& options) {
  GP_ASSIGN_OR_RETURN(TcpListener listener, TcpListener::Listen(options.ip, options.ports));
  std::unique_ptr<FileServer> server(new FileServer(options, std::move(listener)));
  server->thread_ = std::thread([raw = server.get()] { raw->Run(); });
  return server;
}

FileServer::FileServer(const FileServerOptions& options, TcpListener listener)
    : options_(options), listener_(std::move(listener)), address_(listener_.address()), clock_(Clock::Real(), stop_) {}

FileServer::~FileServer() {
  stop_.Set();
  thread_.join();
  for (const std::unique_ptr<Client>& client : clients_) {
    client->thread.join();
  }
}

void FileServer::Serve(Served served) {
  const std::lock_guard lock(mutex_);
  served_ = std::make_shared<const Served>(std::move(served));
}

std::shared_ptr<const FileServer::Served> FileServer::served() const {
  const std::lock_guard lock(mutex_);
  return served_;
}

void FileServer::Run() {
  NameThisThread("file-server");
  while (!stop_.is_set()) {
    absl::StatusOr<TcpStream> stream = listener_.Accept(stop_);
    Reap();
    if (!stream.ok()) {
      clock_.SleepUntilNs(Within(kAcceptAgainNs));
      continue;
    }
    if (clients_.size() >= kMaxClients) {
      LogDebug("{} clients fetch files from here already; another was hung up on", clients_.size());
      continue;
    }
    Client& client = *clients_.emplace_back(std::make_unique<Client>());
    client.thread = std::thread([this, &client, stream = *std::move(stream)]() mutable {
      NameThisThread("file-sender");
      const absl::Status status = Converse(stream);
      LogDebug("a client that fetched files is gone: {}", std::string(status.message()));
      stream = TcpStream();
      ++left_;
      client.done = true;
    });
  }
}

void FileServer::Reap() {
  std::erase_if(clients_, [](const std::unique_ptr<Client>& client) {
    if (client->done) {
      client->thread.join();
    }
    return !client->thread.joinable();
  });
}

// Serves one client. Returns why the conversation ended.
absl::Status FileServer::Converse(TcpStream& stream) {
  const int64_t deadline_ns = Within(options_.handshake_limit_ns);
  GP_ASSIGN_OR_RETURN(const ExchangeGreeting greeting, ReceiveGreeting(stream, deadline_ns));
  const std::shared_ptr<const Served> terms = served();
  if (terms == nullptr) {
    ++hung_up_;
    return absl::FailedPreconditionError("nothing is served yet");
  }
  ExchangeChallenge challenge{.nonce = FreshNonce(), .proof = {}};
  challenge.proof = ExchangeProof(terms->secret, ExchangeSide::kServer, greeting, challenge.nonce);
  GP_RETURN_IF_ERROR(SendMessage(stream, challenge, deadline_ns));
  Proof proof{};
  GP_RETURN_IF_ERROR(stream.Receive(proof, deadline_ns));
  if (!SameProof(proof, ExchangeProof(terms->secret, ExchangeSide::kClient, greeting, challenge.nonce))) {
    ++refused_;
    return absl::UnauthenticatedError("the client does not know the secret");
  }
  std::unique_ptr<SendPace> pace;
  if (terms->pace) {
    GP_ASSIGN_OR_RETURN(pace, terms->pace(greeting.site));
  }
  while (true) {
    GP_ASSIGN_OR_RETURN(const FileRequest request, ReceiveRequest(stream, Within(options_.idle_limit_ns)));
    const std::shared_ptr<const Served> now = served();
    if (now->secret != terms->secret || now->root != terms->root) {
      return absl::FailedPreconditionError("another run is served by now");
    }
    GP_RETURN_IF_ERROR(SendFile(stream, *terms, request, pace.get()));
  }
}

absl::Status FileServer::SendFile(TcpStream& stream, const Served& terms, const FileRequest& request, SendPace* pace) {
  const absl::StatusOr<ServedFile> file = OpenServed(terms, request);
  if (pace != nullptr) {
    clock_.SleepUntilNs(Within(pace->latency_ns()));
  }
  if (!file.ok()) {
    return Decline(stream, VerdictOf(file.status()), std::string(file.status().message()));
  }
  if (request.offset < 0 || request.offset > file->bytes) {
    return Decline(
        stream, FileVerdict::kRefused,
        fmt::format("{} has {} bytes, and was asked for from byte {} on", request.name, file->bytes, request.offset));
  }
  const FileAnswer answer{.verdict = FileVerdict::kSent, .bytes = file->bytes - request.offset};
  GP_RETURN_IF_ERROR(SendMessage(stream, answer, Within(options_.idle_limit_ns)));
  return SendPieces(stream, file->fd.get(), request.offset, file->bytes, pace);
}

// Sends the bytes of a file. Its length was announced, so a read error now breaks the connection.
absl::Status FileServer::SendPieces(TcpStream& stream, int file, int64_t offset, int64_t end, SendPace* pace) {
  std::vector<std::byte> room(static_cast<size_t>(std::min(kExchangePieceBytes, end - offset)));
  while (offset < end) {
    const auto wanted = static_cast<size_t>(std::min(kExchangePieceBytes, end - offset));
    const ssize_t got = pread(file, room.data(), wanted, offset);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      return absl::DataLossError(fmt::format("a file could not be read at byte {}", offset));
    }
    const std::span<const std::byte> piece = std::span(room).first(static_cast<size_t>(got));
    if (pace != nullptr) {
      clock_.SleepUntilNs(pace->Depart(clock_.NowNs(), got));
    }
    GP_RETURN_IF_ERROR(stream.Send(piece, Within(options_.idle_limit_ns)));
    offset += got;
  }
  return absl::OkStatus();
}

absl::Status FileServer::Decline(TcpStream& stream, FileVerdict verdict, std::string_view why) {
  const std::string text = ToUtf8(why.substr(0, FileAnswer::kMaxTextBytes / 4));
  const int64_t deadline_ns = Within(options_.idle_limit_ns);
  GP_RETURN_IF_ERROR(SendMessage(stream, FileAnswer{.verdict = verdict, .bytes = std::ssize(text)}, deadline_ns));
  return stream.Send(std::as_bytes(std::span(text)), deadline_ns);
}

}  // namespace geopipe
