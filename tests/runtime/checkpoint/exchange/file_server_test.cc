// Tests what a server of checkpoint files says to those who know the secret, and to everybody else.
#include "runtime/checkpoint/exchange/file_server.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/runtime/checkpoint/exchange/exchange_fixture.h"

namespace geopipe {
namespace {

// A client that can send anything.
class RawClient {
 public:
  explicit RawClient(const FileServer& server) {
    auto connected = TcpStream::Connect(server.address(), InAMinute(), stop_);
    REQUIRE(connected.ok());
    stream = *std::move(connected);
  }

  // Shakes hands, so that requests may follow; false: the server hung up.
  bool Enter(const std::string& secret) {
    const ExchangeGreeting greeting{.nonce = FreshNonce(), .site = "south"};
    REQUIRE(SendMessage(stream, greeting, InAMinute()).ok());
    const auto challenge = ReceiveChallenge(stream, InAMinute());
    if (!challenge.ok()) {
      return false;
    }
    CHECK(SameProof(challenge->proof, ExchangeProof(kSecret, ExchangeSide::kServer, greeting, challenge->nonce)));
    return stream.Send(ExchangeProof(secret, ExchangeSide::kClient, greeting, challenge->nonce), InAMinute()).ok();
  }
  FileAnswer Ask(const std::string& name, int64_t iteration = kIteration, int64_t offset = 0) {
    REQUIRE(SendMessage(stream, FileRequest{.iteration = iteration, .offset = offset, .name = name}, InAMinute()).ok());
    const auto answer = ReceiveAnswer(stream, InAMinute());
    REQUIRE(answer.ok());
    text.resize(static_cast<size_t>(answer->bytes));
    REQUIRE(stream.Receive(std::as_writable_bytes(std::span(text)), InAMinute()).ok());
    return *answer;
  }
  void Say(const std::string& bytes) { stream.Send(std::as_bytes(std::span(bytes)), InAMinute()).IgnoreError(); }
  bool IsHungUp() {
    std::byte byte{};
    return absl::IsUnavailable(stream.Receive({&byte, 1}, InAMinute()));
  }

  TcpStream stream;
  std::string text;  // of the latest answer

 private:
  StopEvent stop_;
};

TEST_CASE("a server sends files from any offset, and says what it does not have") {
  const ServingNode node;
  RawClient client(*node.server);
  REQUIRE(client.Enter(kSecret));
  const std::string name = node.manifest().files.front().name;
  const std::string content = Content(node.path(name));
  CHECK(client.Ask(name).verdict == FileVerdict::kSent);
  CHECK(client.text == content);
  CHECK(client.Ask(name, kIteration, 7).verdict == FileVerdict::kSent);
  CHECK(client.text == content.substr(7));
  CHECK(client.Ask(name, kIteration, std::ssize(content)).bytes == 0);
  CHECK(client.Ask("manifest.json").verdict == FileVerdict::kSent);
  CHECK(client.text == Content(node.path("manifest.json")));
  CHECK(client.Ask("other.safetensors").verdict == FileVerdict::kNotFound);
  CHECK(client.text == "other.safetensors is not there");
  CHECK(client.Ask(name, kIteration + 1).verdict == FileVerdict::kNotFound);
  CHECK(client.Ask(name, kIteration, std::ssize(content) + 1).verdict == FileVerdict::kRefused);
  CHECK(client.Ask(name, kIteration, -1).verdict == FileVerdict::kRefused);
  CHECK(client.Ask(name, -1).verdict == FileVerdict::kRefused);
}

TEST_CASE("nothing but a checkpoint's own files is served, whatever it is called") {
  const ServingNode node;
  node.dir.Write("secret.safetensors", "secret");
  std::filesystem::create_symlink("../secret.safetensors", node.path("link.safetensors"));
  std::filesystem::create_symlink(node.folder, CheckpointFolder(node.dir.path(), 21));
  std::filesystem::create_directory(node.path("folder.safetensors"));
  REQUIRE(mkfifo(node.path("pipe.safetensors").c_str(), 0600) == 0);
  node.dir.Write("iteration-0000000020/manifest.json.partial-abcdef", "half");
  RawClient client(*node.server);
  REQUIRE(client.Enter(kSecret));
  for (const char* name :
       {"", ".", "..", "../secret.safetensors", "/etc/passwd", "a/b.safetensors", "manifest.json.partial-abcdef",
        "link.safetensors", "folder.safetensors", "pipe.safetensors", ".safetensors", "x.safetensors/"}) {
    CAPTURE(name);
    CHECK(client.Ask(name).verdict == FileVerdict::kRefused);
  }
  CHECK(client.Ask(std::string("manifest.json\0x", 15)).verdict == FileVerdict::kRefused);
  CHECK(client.Ask("manifest.json", 21).verdict == FileVerdict::kRefused);  // the folder is a link
  CHECK(client.Ask("manifest.json").verdict == FileVerdict::kSent);
}

TEST_CASE("a server whose file system is away does not say that it lacks files") {
  ServingNode node;
  CheckpointMark mark{.id = "job tiny"};
  REQUIRE(MarkCheckpointRoot(node.dir.path(), mark).ok());
  node.server->Serve({.secret = kSecret, .root = node.dir.path(), .mark = mark});
  RawClient client(*node.server);
  REQUIRE(client.Enter(kSecret));
  const std::string name = node.manifest().files.front().name;
  CHECK(client.Ask(name, kIteration + 1).verdict == FileVerdict::kNotFound);
  const std::string away = node.dir.path() + ".away";
  std::filesystem::rename(node.dir.path(), away);
  std::filesystem::create_directory(node.dir.path());
  CHECK(client.Ask(name).verdict == FileVerdict::kUnavailable);
  CHECK_THAT(client.text, Catch::Contains("lacks the file"));
  std::filesystem::remove(node.dir.path());
  std::filesystem::rename(away, node.dir.path());
  CHECK(client.Ask(name).verdict == FileVerdict::kSent);
}

TEST_CASE("whoever does not know the secret gets nothing") {
  const ServingNode node;
  RawClient stranger(*node.server);
  stranger.Enter("another secret");
  CHECK(stranger.IsHungUp());
  CHECK(node.server->refused() == 1);
  RawClient client(*node.server);
  CHECK(client.Enter(kSecret));
  CHECK(client.Ask("manifest.json").verdict == FileVerdict::kSent);
  CHECK(node.server->refused() == 1);
}

TEST_CASE("a proof serves once: a recorded conversation opens nothing") {
  const ServingNode node;
  const ExchangeGreeting greeting{.nonce = FreshNonce(), .site = "south"};
  Proof proof{};
  for (const bool is_replay : {false, true}) {
    RawClient client(*node.server);
    REQUIRE(SendMessage(client.stream, greeting, InAMinute()).ok());
    const auto challenge = ReceiveChallenge(client.stream, InAMinute());
    REQUIRE(challenge.ok());
    if (!is_replay) {
      proof = ExchangeProof(kSecret, ExchangeSide::kClient, greeting, challenge->nonce);
    }
    REQUIRE(client.stream.Send(proof, InAMinute()).ok());
    if (is_replay) {
      CHECK(client.IsHungUp());
    } else {
      CHECK(client.Ask("manifest.json").verdict == FileVerdict::kSent);
    }
  }
  // The server's own proof, sent back to it, does not help either.
  RawClient mirror(*node.server);
  REQUIRE(SendMessage(mirror.stream, greeting, InAMinute()).ok());
  REQUIRE(mirror.stream.Send(ReceiveChallenge(mirror.stream, InAMinute())->proof, InAMinute()).ok());
  CHECK(mirror.IsHungUp());
}

TEST_CASE("nobody is answered before the server knows what it serves, and clients of an earlier secret no more") {
  const ServingNode node(/*serves=*/false);
  RawClient early(*node.server);
  CHECK_FALSE(early.Enter(kSecret));
  node.Serve();
  RawClient client(*node.server);
  REQUIRE(client.Enter(kSecret));
  CHECK(client.Ask("manifest.json").verdict == FileVerdict::kSent);
  node.Serve();  // the same again, as for each epoch of a run
  CHECK(client.Ask("manifest.json").verdict == FileVerdict::kSent);
  node.server->Serve({.secret = "of another run", .root = node.dir.path()});
  REQUIRE(SendMessage(client.stream, FileRequest{.iteration = kIteration, .offset = 0, .name = "manifest.json"},
                      InAMinute())
              .ok());
  CHECK(client.IsHungUp());
}

TEST_CASE("garbage, huge lengths and silence harm nothing") {
  const ServingNode node(true, {.handshake_limit_ns = 50'000'000, .idle_limit_ns = 50'000'000});
  const std::string nonce(32, 'n');
  for (const std::string& words :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100'000, '\xff'), std::string(70, '\0'),
        "GPX1" + nonce + "\xff\xff", "GPX1" + nonce + std::string("\x05\0south", 7) + std::string(32, 'p'),
        std::string("GPX"), std::string()}) {
    CAPTURE(words.substr(0, 20));
    RawClient client(*node.server);
    client.Say(words);
    std::vector<std::byte> room(1000);
    while (client.stream.ReceiveSome(room, InAMinute()).ok()) {  // a challenge, at most, and then the end
    }
  }
  RawClient idle(*node.server);
  REQUIRE(idle.Enter(kSecret));
  CHECK(idle.IsHungUp());
  RawClient hostile(*node.server);  // behind the proof, too
  REQUIRE(hostile.Enter(kSecret));
  hostile.Say(std::string(16, '\x7f') + "\xff\xff" + std::string(100'000, 'x'));
  CHECK(hostile.IsHungUp());
  RawClient client(*node.server);
  REQUIRE(client.Enter(kSecret));
  CHECK(client.Ask("manifest.json").verdict == FileVerdict::kSent);
}

TEST_CASE("clients are bounded in number, and there is room again when they go") {
  const ServingNode node(true, {.handshake_limit_ns = 10 * kMinuteNs});
  std::vector<std::unique_ptr<RawClient>> clients;
  for (size_t i = 0; i < FileServer::kMaxClients; ++i) {
    clients.push_back(std::make_unique<RawClient>(*node.server));
    REQUIRE(clients.back()->Enter(kSecret));
    REQUIRE(clients.back()->Ask("manifest.json").verdict == FileVerdict::kSent);
  }
  RawClient another(*node.server);
  CHECK(another.IsHungUp());
  CHECK(clients.front()->Ask("manifest.json").verdict == FileVerdict::kSent);
  clients.clear();
  FetchingNode fetching;  // comes again until it is let in
  CHECK(fetching.Fetch({node.source()}, node.manifest().files.front()).ok());
}

TEST_CASE("ports are those of the range, one server to each") {
  auto any = FileServer::Start({});
  REQUIRE(any.ok());
  const auto port = static_cast<uint16_t>(std::stoi((*any)->address().substr((*any)->address().rfind(':') + 1)));
  const auto none = FileServer::Start({.ports = {.first = port, .last = port}});
  CHECK(none.status().message() == "cannot listen on 127.0.0.1 port " + std::to_string(port) + " to " +
                                       std::to_string(port) + ": Address already in use");
  any->reset();
  CHECK((*FileServer::Start({.ports = {.first = port, .last = port}}))->address() ==
        "127.0.0.1:" + std::to_string(port));
}

}  // namespace
}  // namespace geopipe
