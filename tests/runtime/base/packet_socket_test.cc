#include "runtime/base/packet_socket.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>

#include "runtime/base/files.h"
#include "runtime/base/ids.h"

namespace geopipe {
namespace {

TEST_CASE("packets by path: only this user connects, packets stay apart, and nothing waits") {
  const TempFolder folder = *TempFolder::Create("geopipe-packets");
  const std::string path = folder.path() / "socket";
  CHECK(ConnectPackets(path).status().code() == absl::StatusCode::kNotFound);
  CHECK(ListenForPackets(path + std::string(120, 'x')).status().code() == absl::StatusCode::kInvalidArgument);
  { REQUIRE(ListenForPackets(path).ok()); }
  CHECK_FALSE(ConnectPackets(path).ok());  // the socket is there, and nobody listens
  const absl::StatusOr<UniqueFd> listener = ListenForPackets(path);
  REQUIRE(listener.ok());
  struct stat info {};
  REQUIRE(stat(path.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
  CHECK_FALSE(AcceptPackets(listener->get()).valid());

  absl::StatusOr<UniqueFd> client = ConnectPackets(path);
  REQUIRE(client.ok());
  const UniqueFd server = AcceptPackets(listener->get());
  REQUIRE(server.valid());
  std::string packet;
  CHECK(TryReceivePacket(server.get(), 8, packet) == PacketResult::kWait);
  for (const char* text : {"one", "two", "longer than eight"}) {
    CHECK(TrySendPacket(client->get(), text) == PacketResult::kDone);
  }
  for (const char* text : {"one", "two", "longer th"}) {
    CHECK(TryReceivePacket(server.get(), 8, packet) == PacketResult::kDone);
    CHECK(packet == text);
  }
  const std::string large(100'000, 'x');
  int sent = 0;
  while (TrySendPacket(client->get(), large) == PacketResult::kDone) {
    REQUIRE(++sent < 1000);
  }
  CHECK(TrySendPacket(client->get(), large) == PacketResult::kWait);
  client->Reset();
  for (int i = 0; i < sent; ++i) {
    CHECK(TryReceivePacket(server.get(), large.size(), packet) == PacketResult::kDone);
    CHECK(packet.size() == large.size());
  }
  CHECK(TryReceivePacket(server.get(), 8, packet) == PacketResult::kClosed);
  CHECK(TrySendPacket(server.get(), "x") == PacketResult::kClosed);
}

TEST_CASE("packets by a name without a file, which goes with its socket") {
  const std::string name = "@geopipe-packets-" + std::to_string(RandomId());
  CHECK_FALSE(ConnectPackets(name).ok());
  {
    const absl::StatusOr<UniqueFd> listener = ListenForPackets(name);
    REQUIRE(listener.ok());
    CHECK_FALSE(std::filesystem::exists(name));
    CHECK(ListenForPackets(name).status().code() == absl::StatusCode::kAlreadyExists);
    CHECK(ConnectPackets(name).ok());
    CHECK_FALSE(ConnectPackets(name + "x").ok());
  }
  CHECK(ListenForPackets(name).ok());
}

TEST_CASE("an open file goes with a packet") {
  const auto ends = *MakePacketSockets();
  const TempFolder folder = *TempFolder::Create("geopipe-packets");
  const std::string path = folder.path() / "file";
  REQUIRE(WriteFileAtomically(path, "content").ok());
  {
    const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    REQUIRE(file.valid());
    CHECK(TrySendPacketAndFile(ends.first.get(), "with", file.get()) == PacketResult::kDone);
    CHECK(TrySendPacket(ends.first.get(), "without") == PacketResult::kDone);
  }
  std::string packet;
  UniqueFd received;
  CHECK(TryReceivePacketAndFile(ends.second.get(), 16, packet, received) == PacketResult::kDone);
  CHECK(packet == "with");
  REQUIRE(received.valid());
  CHECK((fcntl(received.get(), F_GETFD) & FD_CLOEXEC) != 0);
  std::string content(7, '\0');
  CHECK(read(received.get(), content.data(), content.size()) == 7);
  CHECK(content == "content");
  CHECK(TryReceivePacketAndFile(ends.second.get(), 16, packet, received) == PacketResult::kDone);
  CHECK(packet == "without");
  CHECK_FALSE(received.valid());
  CHECK(TryReceivePacketAndFile(ends.second.get(), 16, packet, received) == PacketResult::kWait);
}

}  // namespace
}  // namespace geopipe
