// A worker that serves checkpoints, one that fetches them, and what may stand between, for the tests of this folder.
#pragma once

#include <catch2/catch.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/stop_event.h"
#include "runtime/base/tcp_stream.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/checkpoint_folders.h"
#include "runtime/checkpoint/exchange/checkpoint_fetcher.h"
#include "runtime/checkpoint/exchange/file_server.h"
#include "tests/runtime/checkpoint/written_checkpoint.h"
#include "tests/support/temp_dir.h"

namespace geopipe {

inline const std::string kSecret = "the secret of the run";
inline constexpr int64_t kIteration = 20;
inline constexpr int64_t kMinuteNs = 60'000'000'000;

inline int64_t InAMinute() { return Clock::Real().NowNs() + kMinuteNs; }

// A node with a checkpoint, which serves it unless told otherwise.
struct ServingNode {
  explicit ServingNode(bool serves = true, FileServerOptions options = {})
      : server(FileServer::Start(options).value()), folder(WrittenCheckpoint(dir.path(), model, kIteration)) {
    if (serves) {
      Serve();
    }
  }

  void Serve(PaceOfSite pace = nullptr) const {
    server->Serve({.secret = kSecret, .root = dir.path(), .pace = std::move(pace)});
  }
  ExchangeSource source(std::string site = "north") const {
    return {.site = std::move(site), .address = server->address()};
  }
  CheckpointManifest manifest() const { return Checkpoint::Open(folder)->manifest(); }
  std::string path(const std::string& file) const { return folder + "/" + file; }

  const TempDir dir;
  const ModelSpec model = SmallModel(2);
  std::unique_ptr<FileServer> server;
  const std::string folder;
};

// A node that fetches into an empty folder.
struct FetchingNode {
  explicit FetchingNode(std::function<void(FetchOptions&)> change = nullptr) {
    FetchOptions options{.site = "south", .secret = kSecret, .clock = &clock, .stop = &stop};
    if (change) {
      change(options);
    }
    fetcher = std::make_unique<CheckpointFetcher>(options);
  }

  absl::Status Fetch(const std::vector<ExchangeSource>& sources, const FileEntry& entry) {
    return fetcher->FetchFile(sources, kIteration, entry, folder);
  }
  std::string path(const std::string& file) const { return folder + "/" + file; }

  const TempDir dir;
  const std::string folder = BeginCheckpoint(dir.path(), kIteration).value();
  StopEvent stop;
  StoppableClock clock{Clock::Real(), stop};
  std::unique_ptr<CheckpointFetcher> fetcher;
};

inline void NoPatience(FetchOptions& options) { options.patience_ns = 0; }

// A source that knows the secret and answers as a test says, one client after the other, one request per connection.
class ScriptedSource {
 public:
  using Answer = std::function<void(TcpStream& client, const FileRequest& request)>;

  explicit ScriptedSource(Answer answer)
      : answer_(std::move(answer)),
        listener_(TcpListener::Listen("127.0.0.1", {}).value()),
        source_({.site = "scripted", .address = listener_.address()}),
        thread_([this] { Run(); }) {}
  ~ScriptedSource() {
    stop_.Set();
    thread_.join();
  }

  const ExchangeSource& source() const { return source_; }
  // Offsets that were asked for so far. Called once the client is through.
  std::vector<int64_t> offsets() const {
    const std::lock_guard lock(mutex_);
    return offsets_;
  }

 private:
  void Run() {
    while (!stop_.is_set()) {
      absl::StatusOr<TcpStream> client = listener_.Accept(stop_);
      if (client.ok()) {
        Serve(*client);
      }
    }
  }
  void Serve(TcpStream& client) {
    const auto greeting = ReceiveGreeting(client, InAMinute());
    if (!greeting.ok()) {
      return;
    }
    ExchangeChallenge challenge{.nonce = FreshNonce(), .proof = {}};
    challenge.proof = ExchangeProof(kSecret, ExchangeSide::kServer, *greeting, challenge.nonce);
    Proof proof{};
    if (!SendMessage(client, challenge, InAMinute()).ok() || !client.Receive(proof, InAMinute()).ok()) {
      return;
    }
    if (const auto request = ReceiveRequest(client, InAMinute()); request.ok()) {
      {
        const std::lock_guard lock(mutex_);
        offsets_.push_back(request->offset);
      }
      answer_(client, *request);
    }
  }

  const Answer answer_;
  TcpListener listener_;
  const ExchangeSource source_;
  StopEvent stop_;
  mutable std::mutex mutex_;
  std::vector<int64_t> offsets_;
  std::thread thread_;
};

}  // namespace geopipe
