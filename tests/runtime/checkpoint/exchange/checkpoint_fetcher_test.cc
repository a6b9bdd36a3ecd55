// Files of checkpoints arrive whole and right, or not at all.
#include "runtime/checkpoint/exchange/checkpoint_fetcher.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/checkpoint/tensor_file_writer.h"
#include "tests/runtime/checkpoint/exchange/exchange_fixture.h"
#include "tests/runtime/checkpoint/small_disk.h"
#include "tests/support/fake_clock.h"

namespace geopipe {
namespace {

using Catch::Contains;

std::string Text(const absl::Status& status) { return std::string(status.message()); }

// A file of about a megabyte in the checkpoint of a node, which no manifest names.
FileEntry LargeFile(const ServingNode& node) {
  const TensorRange range{.name = "large", .shape = {250'000}, .offset = 0, .elements = 250'000};
  auto writer = TensorFileWriter::Create(node.folder, "large.safetensors", {range});
  REQUIRE(writer.ok());
  REQUIRE(writer->Append("large", range.shape, StateValues(1, "large", range.elements)).ok());
  return writer->Finish().value();
}

// Sends `content` from the offset on, but no more than `most` bytes of it. On the source's thread.
void SendSome(const std::string& content, int64_t most, TcpStream& client, const FileRequest& request) {
  const std::string rest = content.substr(static_cast<size_t>(request.offset));
  const FileAnswer answer{.verdict = FileVerdict::kSent, .bytes = std::ssize(rest)};
  SendMessage(client, answer, InAMinute()).IgnoreError();
  const auto count = static_cast<size_t>(std::min(most, std::ssize(rest)));
  client.Send(std::as_bytes(std::span(rest)).first(count), InAMinute()).IgnoreError();
}

TEST_CASE("all files of a checkpoint arrive bit by bit, and its manifest") {
  const ServingNode node;
  FetchingNode fetching;
  const CheckpointManifest manifest = node.manifest();
  const CheckpointIdentity identity{.iteration = kIteration,
                                    .incarnation = static_cast<uint64_t>(manifest.incarnation),
                                    .epoch = static_cast<uint64_t>(manifest.epoch)};
  const std::vector<ExchangeSource> sources{node.source()};
  REQUIRE(fetching.fetcher->FetchManifest(sources, identity, fetching.folder).ok());
  for (const FileEntry& file : manifest.files) {
    REQUIRE(fetching.Fetch(sources, file).ok());
  }
  CHECK(Names(fetching.folder) == Names(node.folder));
  int64_t bytes = 0;
  for (const std::string& name : Names(node.folder)) {
    CHECK(Content(fetching.path(name)) == Content(node.path(name)));
    bytes += std::ssize(Content(node.path(name)));
  }
  CHECK(fetching.fetcher->bytes() == bytes);
  CHECK(fetching.fetcher->files() == std::ssize(manifest.files) + 1);
  CHECK(fetching.fetcher->senders() == "north (" + std::to_string(manifest.files.size() + 1) + " files)");
}

TEST_CASE("a manifest of another run or epoch, or none at all, gets no name") {
  const ServingNode node;
  FetchingNode fetching;
  const CheckpointManifest manifest = node.manifest();
  CheckpointIdentity wanted{.iteration = kIteration,
                            .incarnation = static_cast<uint64_t>(manifest.incarnation),
                            .epoch = static_cast<uint64_t>(manifest.epoch)};
  const std::vector<ExchangeSource> sources{node.source()};
  const auto fetch = [&] { return fetching.fetcher->FetchManifest(sources, wanted, fetching.folder); };
  SECTION("another epoch") {
    ++wanted.epoch;
    CHECK_THAT(Text(fetch()), Contains("north at " + node.server->address() + ": it is of iteration 20, run "));
  }
  SECTION("another run") {
    ++wanted.incarnation;
    CHECK(absl::IsDataLoss(fetch()));
  }
  SECTION("damaged") {
    Poke(node.path("manifest.json"), 100, '~');
    CHECK(absl::IsDataLoss(fetch()));
  }
  SECTION("longer than any") {
    std::filesystem::resize_file(node.path("manifest.json"), CheckpointLimits::kMaxManifestBytes + 1);
    CHECK_THAT(Text(fetch()), Contains("a manifest at most"));
  }
  CHECK(Names(fetching.folder).empty());
}

TEST_CASE("a file that is wrong at one source is refused by name and fetched from the next") {
  const ServingNode bad;
  const ServingNode good;
  FetchingNode fetching(NoPatience);
  const FileEntry file = bad.manifest().files.front();
  const TensorEntry& tensor = file.tensors.front();
  std::string why;
  SECTION("a flipped bit of a tensor") {
    Poke(bad.path(file.name), static_cast<size_t>(file.header_bytes) + 1, '\x55');
    why = "tensor " + tensor.range.name + " is damaged there: its checksum is ";
  }
  SECTION("a flipped bit of the header") {
    Poke(bad.path(file.name), 9, '\x55');
    why = "the header is damaged there: its checksum is ";
  }
  SECTION("cut short") {
    std::filesystem::resize_file(bad.path(file.name), 100);
    why = "it has 100 bytes there, the manifest says " + std::to_string(file.bytes);
  }
  SECTION("gone") {
    std::filesystem::remove(bad.path(file.name));
    why = file.name + " is not there";
  }
  const absl::Status refused = fetching.Fetch({bad.source("north")}, file);
  CHECK(absl::IsDataLoss(refused));
  CHECK_THAT(Text(refused),
             Catch::StartsWith(file.name + " of the checkpoint before iteration 20 cannot be fetched (north at " +
                               bad.server->address() + ": " + why));
  CHECK_THAT(Text(refused), Catch::EndsWith("); copy the file from a node that has it or choose another checkpoint"));
  CHECK(Names(fetching.folder).empty());

  REQUIRE(fetching.Fetch({bad.source("north"), good.source("west")}, file).ok());
  CHECK(Content(fetching.path(file.name)) == Content(good.path(file.name)));
  CHECK(fetching.fetcher->senders() == "west (1 file)");
}

TEST_CASE("a connection that breaks is made again, and the file goes on where it was") {
  const ServingNode node;
  FetchingNode fetching;
  const FileEntry file = node.manifest().files.front();
  const int64_t third = file.bytes / 3 + 1;
  const ScriptedSource source(
      [&, content = Content(node.path(file.name))](TcpStream& client, const FileRequest& request) {
        SendSome(content, third, client, request);
      });
  REQUIRE(fetching.Fetch({source.source()}, file).ok());
  CHECK(Content(fetching.path(file.name)) == Content(node.path(file.name)));
  CHECK(source.offsets() == std::vector<int64_t>{0, third, 2 * third});
}

TEST_CASE("a source that changes in the middle is found out") {
  const ServingNode node;
  FetchingNode fetching;
  const FileEntry file = node.manifest().files.front();
  const ScriptedSource source(
      [&, content = Content(node.path(file.name))](TcpStream& client, const FileRequest& request) mutable {
        SendSome(content, file.bytes / 2, client, request);
        content.back() = static_cast<char>(content.back() ^ 1);
      });
  CHECK(absl::IsDataLoss(fetching.Fetch({source.source()}, file)));
  CHECK(Names(fetching.folder).empty());
}

TEST_CASE("a source that serves nothing yet is asked again, and one that never does is given up") {
  const ServingNode node(/*serves=*/false);
  const FileEntry file = node.manifest().files.front();
  FetchingNode hasty(NoPatience);
  const absl::Status status = hasty.Fetch({node.source()}, file);
  CHECK(absl::IsUnavailable(status));
  CHECK_THAT(Text(status), Contains("north at ") && Contains("the other end closed the connection") &&
                               Contains("; check the network between the sites, and the nodes that have it"));
  FetchingNode patient([](FetchOptions& options) { options.patience_ns = kMinuteNs; });
  absl::Status fetched = absl::UnknownError("");
  std::thread fetch([&] { fetched = patient.Fetch({node.source()}, file); });
  while (node.server->hung_up() < 3) {  // it has been there
    std::this_thread::yield();
  }
  node.Serve();
  fetch.join();
  CHECK(fetched.ok());
}

TEST_CASE("a source whose file system is away has not said that it lacks the file, and is asked again") {
  ServingNode node(/*serves=*/false);
  CheckpointMark mark{.id = "job tiny"};
  REQUIRE(MarkCheckpointRoot(node.dir.path(), mark).ok());
  node.server->Serve({.secret = kSecret, .root = node.dir.path(), .mark = mark});
  const FileEntry file = node.manifest().files.front();
  const std::string away = node.dir.path() + ".away";
  std::filesystem::rename(node.dir.path(), away);
  FetchingNode hasty(NoPatience);
  const absl::Status status = hasty.Fetch({node.source()}, file);
  CHECK(absl::IsUnavailable(status));
  CHECK_THAT(Text(status), Contains("north at ") && Contains("lacks the file"));
  std::filesystem::rename(away, node.dir.path());
  CHECK(hasty.Fetch({node.source()}, file).ok());
}

TEST_CASE("a source that still has an earlier secret is asked again") {
  const ServingNode node(/*serves=*/false);
  node.server->Serve({.secret = "of an earlier epoch", .root = node.dir.path()});
  const FileEntry file = node.manifest().files.front();
  FetchingNode patient([](FetchOptions& options) { options.patience_ns = kMinuteNs; });
  absl::Status fetched = absl::UnknownError("");
  std::thread fetch([&] { fetched = patient.Fetch({node.source()}, file); });
  while (node.server->left() < 3) {  // it has been there
    std::this_thread::yield();
  }
  node.Serve();
  fetch.join();
  CHECK(fetched.ok());
}

TEST_CASE("a source that is silent is given up for another") {
  const ServingNode node;
  FetchingNode fetching([](FetchOptions& options) { options.stall_ns = 20'000'000; });
  absl::StatusOr<TcpListener> silent = TcpListener::Listen("127.0.0.1", {});
  REQUIRE(silent.ok());
  const ExchangeSource mute{.site = "east", .address = silent->address()};
  for (const FileEntry& file : node.manifest().files) {
    REQUIRE(fetching.Fetch({mute, node.source()}, file).ok());
  }
  CHECK(absl::IsUnavailable(fetching.Fetch({mute}, node.manifest().files.front())));
}

TEST_CASE("who does not know the secret is sent nothing, and is no answer") {
  const ServingNode node;
  FetchingNode fetching([](FetchOptions& options) {
    options.secret = "another";
    options.patience_ns = 0;
  });
  const absl::Status status = fetching.Fetch({node.source()}, node.manifest().files.front());
  CHECK(absl::IsUnavailable(status));
  CHECK_THAT(Text(status), Contains("it does not know the run's secret"));
  const ScriptedSource liar([](TcpStream& client, const FileRequest&) {
    const std::string garbage(1000, '\xff');
    client.Send(std::as_bytes(std::span(garbage)), InAMinute()).IgnoreError();
  });
  const ScriptedSource boaster([](TcpStream& client, const FileRequest&) {
    SendMessage(client, FileAnswer{.verdict = FileVerdict::kNotFound, .bytes = int64_t{1} << 40}, InAMinute())
        .IgnoreError();
  });
  FetchingNode other(NoPatience);
  CHECK_THAT(Text(other.Fetch({boaster.source()}, node.manifest().files.front())),
             Contains("an answer that is none of this version"));
  CHECK_THAT(Text(other.Fetch({liar.source()}, node.manifest().files.front())),
             Contains("an answer that is none of this version"));
  CHECK_THAT(Text(other.Fetch({{.site = "north", .address = "nowhere"}}, node.manifest().files.front())),
             Contains("'nowhere' is not an address like 10.20.3.4:47000"));
}

TEST_CASE("a folder that cannot be written is an error of this node, whatever sources there are") {
  const ServingNode node;
  FetchingNode fetching;
  const FileEntry file = node.manifest().files.front();
  std::filesystem::remove(fetching.folder);
  CHECK(Text(fetching.Fetch({node.source(), node.source("west")}, file)) ==
        fetching.path(file.name) +
            ": cannot be written: No such file or directory; its folder is gone or is none; leave it alone while files "
            "are "
            "written");
}

TEST_CASE("a full disk is an error of this node, and leaves no file behind") {
  const SmallDisk disk(512);
  if (!disk.mounted()) {
    return;
  }
  const ServingNode node;
  FetchingNode fetching;
  const FileEntry file = LargeFile(node);
  const std::string folder = BeginCheckpoint(disk.path(), kIteration).value();
  const absl::Status status = fetching.fetcher->FetchFile(std::vector{node.source()}, kIteration, file, folder);
  CHECK(absl::IsResourceExhausted(status));
  // It is known before a byte comes.
  const ScriptedSource slow([&](TcpStream& client, const FileRequest&) {
    SendMessage(client, FileAnswer{.verdict = FileVerdict::kSent, .bytes = file.bytes}, InAMinute()).IgnoreError();
    std::byte byte{};
    client.Receive({&byte, 1}, InAMinute()).IgnoreError();  // until it has gone
  });
  CHECK(fetching.fetcher->FetchFile(std::vector{slow.source()}, kIteration, file, folder) == status);
  CHECK(Text(status) == folder +
                            "/large.safetensors: cannot be written: No space left on device; free some space or "
                            "choose another folder");
  CHECK(Names(folder).empty());
}

// Counts what goes over a link, and calls `on_piece` for each.
class CountingPace final : public SendPace {
 public:
  explicit CountingPace(std::function<int64_t(int64_t now_ns, int64_t bytes)> on_piece)
      : on_piece_(std::move(on_piece)) {}
  int64_t latency_ns() const override { return 1000; }
  int64_t Depart(int64_t now_ns, int64_t bytes) override { return on_piece_(now_ns, bytes); }

 private:
  const std::function<int64_t(int64_t, int64_t)> on_piece_;
};

TEST_CASE("what goes to a client's site passes its link in small pieces") {
  std::vector<int64_t> pieces;
  std::mutex mutex;
  std::string site;
  const ServingNode node;
  node.Serve([&](std::string_view of) {
    const std::lock_guard lock(mutex);
    site = of;
    return std::make_unique<CountingPace>([&](int64_t now_ns, int64_t bytes) {
      const std::lock_guard lock(mutex);
      pieces.push_back(bytes);
      return now_ns;
    });
  });
  FetchingNode fetching;
  const FileEntry file = LargeFile(node);
  REQUIRE(fetching.Fetch({node.source()}, file).ok());
  const std::lock_guard lock(mutex);
  CHECK(site == "south");
  CHECK(std::ssize(pieces) == (file.bytes - 1) / 65'536 + 1);
  CHECK(*std::max_element(pieces.begin(), pieces.end()) == 65'536);
  CHECK(std::accumulate(pieces.begin(), pieces.end(), int64_t{0}) == file.bytes);
}

TEST_CASE("a fetch that is broken off leaves no file, and neither end waits") {
  FetchingNode fetching;  // is used by the server's thread
  const ServingNode node;
  node.Serve([&](std::string_view) {
    return std::make_unique<CountingPace>([&, first = true](int64_t now_ns, int64_t) mutable {
      if (std::exchange(first, false)) {
        return now_ns;
      }
      fetching.stop.Set();
      return now_ns + 3600 * kMinuteNs;
    });
  });
  CHECK(absl::IsCancelled(fetching.Fetch({node.source()}, LargeFile(node))));
  CHECK(Names(fetching.folder).empty());
  CHECK(absl::IsCancelled(fetching.Fetch({node.source()}, node.manifest().files.front())));
}

TEST_CASE("a file comes no faster than it may") {
  const ServingNode node;
  FakeClock clock;
  FetchingNode fetching([&](FetchOptions& options) {
    options.clock = &clock;
    options.bytes_per_second = 1000;
  });
  const FileEntry file = LargeFile(node);
  REQUIRE(fetching.Fetch({node.source()}, file).ok());
  CHECK(clock.NowNs() == file.bytes * 1'000'000);
  CHECK(Content(fetching.path(file.name)) == Content(node.path(file.name)));
}

TEST_CASE("several who fetch the same file into one folder do not get in each other's way") {
  const ServingNode node;
  FetchingNode fetching;
  const FileEntry file = LargeFile(node);
  std::vector<std::thread> threads;
  std::vector<absl::Status> statuses(4, absl::UnknownError(""));
  for (absl::Status& status : statuses) {
    threads.emplace_back([&] {
      CheckpointFetcher fetcher({.site = "south", .secret = kSecret, .clock = &fetching.clock, .stop = &fetching.stop});
      status = fetcher.FetchFile(std::vector{node.source()}, kIteration, file, fetching.folder);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const absl::Status& status : statuses) {
    CHECK(status.ok());
  }
  CHECK(Names(fetching.folder) == std::vector<std::string>{"large.safetensors"});
  CHECK(Content(fetching.path(file.name)) == Content(node.path(file.name)));
}

}  // namespace
}  // namespace geopipe
