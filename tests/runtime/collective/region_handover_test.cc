// Tests who may join, and whom one joins.
#include "runtime/collective/region_handover.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <thread>

#include "runtime/base/ids.h"
#include "runtime/base/packet_socket.h"
#include "runtime/base/poll.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

Handover Of(int32_t rank, const std::string& group, int64_t wait_ns, const std::string& secret = "secret") {
  return {.group = group, .secret = secret, .rank = rank, .size = 2, .deadline_ns = Clock::Real().NowNs() + wait_ns};
}

// Names that this machine's processes listen on for regions.
std::vector<std::string> ListeningNames() {
  std::ifstream file("/proc/net/unix");
  std::vector<std::string> names;
  for (std::string line; std::getline(file, line);) {
    if (const size_t at = line.find("@geopipe-collective-"); at != std::string::npos) {
      names.push_back(line.substr(at));
    }
  }
  return names;
}

// The one that appears while `rank 0` is made to listen, in a network namespace that other tests share.
std::string NameOfListener(const std::vector<std::string>& before) {
  while (true) {
    for (const std::string& name : ListeningNames()) {
      if (std::find(before.begin(), before.end(), name) == before.end()) {
        return name;
      }
    }
    std::this_thread::yield();
  }
}

std::string UniqueGroup() { return "handover " + std::to_string(RandomId()); }

void AwaitReadable(int fd) {
  pollfd polled{.fd = fd, .events = POLLIN, .revents = 0};
  REQUIRE(PollFor({&polled, 1}, 10 * kSecond) == 1);
}

TEST_CASE("a region is one memory for those who know the secret") {
  const std::string group = UniqueGroup();
  absl::StatusOr<SharedRegion> second = absl::UnknownError("");
  std::thread other([&] { second = ShareRegion(Of(1, group, 10 * kSecond)); });
  const absl::StatusOr<SharedRegion> first = ShareRegion(Of(0, group, 10 * kSecond));
  other.join();
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  first->slot(1, 1)[kSharedSlotBytes - 1] = std::byte{7};
  CHECK(second->slot(1, 1)[kSharedSlotBytes - 1] == std::byte{7});
  CHECK(first->slot(0, 0) != second->slot(0, 0));
}

TEST_CASE("ranks of two secrets never meet") {
  const std::string group = UniqueGroup();
  absl::Status second;
  std::thread other([&] { second = ShareRegion(Of(1, group, 100 * kMs, "last epoch's")).status(); });
  const absl::Status first = ShareRegion(Of(0, group, 200 * kMs)).status();
  other.join();
  CHECK(absl::IsDeadlineExceeded(first));
  CHECK(first.message().find("rank 1 of " + group) != std::string::npos);
  CHECK(absl::IsDeadlineExceeded(second));
}

TEST_CASE("whoever finds the name and not the secret is refused, and keeps nobody out") {
  const std::string group = UniqueGroup();
  const std::vector<std::string> before = ListeningNames();
  absl::StatusOr<SharedRegion> first = absl::UnknownError("");
  std::thread host([&] { first = ShareRegion(Of(0, group, 20 * kSecond)); });
  const std::string name = NameOfListener(before);
  absl::StatusOr<UniqueFd> mute = ConnectPackets(name);
  absl::StatusOr<UniqueFd> liar = ConnectPackets(name);
  std::string packet;
  UniqueFd file;
  if (liar.ok()) {
    AwaitReadable(liar->get());
    CHECK(TryReceivePacket(liar->get(), 64, packet) == PacketResult::kDone);
    std::string request(sizeof(int32_t), '\0');
    request[0] = 1;
    CHECK(TrySendPacket(liar->get(), request + packet + packet) == PacketResult::kDone);
    AwaitReadable(liar->get());
    CHECK(TryReceivePacketAndFile(liar->get(), 64, packet, file) == PacketResult::kClosed);
    CHECK_FALSE(file.valid());
  }
  const absl::StatusOr<SharedRegion> second = ShareRegion(Of(1, group, 20 * kSecond));
  host.join();
  CHECK(liar.ok());
  CHECK(mute.ok());
  CHECK(first.ok());
  CHECK(second.ok());
  CHECK(absl::IsDeadlineExceeded(ShareRegion(Of(1, group, 0)).status()));  // the name has gone with its socket
}

TEST_CASE("whoever takes the name first and knows no secret is not believed") {
  const std::string group = UniqueGroup();
  const std::vector<std::string> before = ListeningNames();
  std::thread host([&] { CHECK_FALSE(ShareRegion(Of(0, group, 200 * kMs)).ok()); });
  const std::string name = NameOfListener(before);
  host.join();
  const absl::StatusOr<UniqueFd> listener = ListenForPackets(name);
  REQUIRE(listener.ok());
  CHECK(absl::IsAlreadyExists(ShareRegion(Of(0, group, kSecond)).status()));
  absl::Status second;
  std::thread other([&] { second = ShareRegion(Of(1, group, 10 * kSecond)).status(); });
  AwaitReadable(listener->get());
  const UniqueFd guest = AcceptPackets(listener->get());
  const std::string nonce(32, 'n');
  CHECK(TrySendPacket(guest.get(), nonce) == PacketResult::kDone);
  AwaitReadable(guest.get());
  const auto region = SharedRegion::Create(2);
  REQUIRE(region.ok());
  CHECK(TrySendPacketAndFile(guest.get(), nonce, region->second.get()) == PacketResult::kDone);
  other.join();
  CHECK(absl::IsPermissionDenied(second));
}

TEST_CASE("a rank joins once, and who waits for another can be stopped") {
  const std::string group = UniqueGroup();
  std::array<absl::Status, 2> results;
  const auto stop = std::make_unique<StopEvent>();
  Handover host = Of(0, group, 60 * kSecond);
  host.size = 3;
  host.stop = stop.get();
  absl::Status of_host;
  std::thread first([&] { of_host = ShareRegion(host).status(); });
  std::vector<std::thread> both;
  for (absl::Status& result : results) {
    both.emplace_back([&] {
      Handover guest = Of(1, group, 60 * kSecond);
      guest.size = 3;
      result = ShareRegion(guest).status();
    });
  }
  for (std::thread& thread : both) {
    thread.join();
  }
  stop->Set();
  first.join();
  CHECK(absl::IsCancelled(of_host));
  CHECK(results[0].ok() != results[1].ok());
  CHECK(absl::IsPermissionDenied(results[0].ok() ? results[1] : results[0]));
}

TEST_CASE("a region of another size is not mapped") {
  const auto region = SharedRegion::Create(2);
  REQUIRE(region.ok());
  CHECK(SharedRegion::Map(region->second, 2).ok());
  CHECK(absl::IsFailedPrecondition(SharedRegion::Map(region->second, 3).status()));
}

}  // namespace
}  // namespace geopipe
