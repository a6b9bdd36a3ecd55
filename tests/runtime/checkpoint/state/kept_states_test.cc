// Checks that what a rank keeps in memory is there, whole and to the last bit, for the process that follows.
#include "runtime/checkpoint/state/kept_states.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "optimizer/base/splitmix64.h"
#include "tests/runtime/checkpoint/state/keeping_rank.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

// The permissions of this process's mappings of the memory.
std::vector<std::string> MappingsOf(const UniqueFd& memory) {
  struct stat info {};
  REQUIRE(fstat(memory.get(), &info) == 0);
  std::vector<std::string> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::string range;
    std::string permissions;
    std::string offset;
    std::string device;
    uint64_t inode = 0;
    words >> range >> permissions >> offset >> device >> inode;
    if (inode == info.st_ino && line.find("kept-states-test") != std::string::npos) {
      found.push_back(permissions);
    }
  }
  return found;
}

void FlipBit(const UniqueFd& memory, off_t at) {
  char byte = 0;
  REQUIRE(pread(memory.get(), &byte, 1, at) == 1);
  byte = static_cast<char>(byte ^ 0x10);
  REQUIRE(pwrite(memory.get(), &byte, 1, at) == 1);
}

constexpr off_t kSlotsAt = 32;
constexpr off_t kSlotBytes = 32;
constexpr off_t kLayoutAt = kSlotsAt + 2 * kSlotBytes;
constexpr off_t kLayoutBytesAt = 28;
constexpr off_t kVersionAt = 8;

// The place of the first state, and the length of each.
struct Rooms {
  off_t first = 0;
  off_t bytes = 0;
};

Rooms RoomsOf(const UniqueFd& memory) {
  uint32_t layout_bytes = 0;
  REQUIRE(pread(memory.get(), &layout_bytes, sizeof(layout_bytes), kLayoutBytesAt) == sizeof(layout_bytes));
  const off_t head = (kLayoutAt + static_cast<off_t>(layout_bytes) + 4095) / 4096 * 4096;
  return {.first = head, .bytes = (lseek(memory.get(), 0, SEEK_END) - head) / 2};
}

TEST_CASE("two states alternate, with all bits of their weights and moments, and outlive who has saved them") {
  const bool on_device = GENERATE(false, true);
  CAPTURE(on_device);
  const UniqueFd memory = NewMemory();
  KeepingRank rank(on_device);
  {
    KeptStates kept = Opened(memory);
    CHECK_FALSE(kept.owner().has_value());
    CHECK(kept.List(17).empty());
    REQUIRE(kept.Prepare(kOwner, rank.stages()).ok());
    CHECK(kept.List(17).empty());
    rank.Save(kept, {.iteration = 5, .epoch = 1});
    CHECK(kept.List(17) == Identities{{5, 1}});
    rank.Save(kept, {.iteration = 6, .epoch = 2});
    CHECK(kept.List(17) == Identities{{6, 2}, {5, 1}});
    rank.Save(kept, {.iteration = 7, .epoch = 2});
    CHECK(kept.List(17) == Identities{{7, 2}, {6, 2}});
  }
  KeptStates next = Opened(memory);
  CHECK(next.owner() == kOwner);
  CHECK(next.List(18).empty());
  CHECK(next.List(17) == Identities{{7, 2}, {6, 2}});
  CHECK(rank.IsWhole(next, {7, 2}));
  CHECK(rank.IsWhole(next, {6, 2}));
  REQUIRE(next.Prepare(kOwner, rank.stages()).ok());
  CHECK(next.List(17) == Identities{{7, 2}, {6, 2}});
  rank.Save(next, {.iteration = 8, .epoch = 3});
  CHECK(next.List(17) == Identities{{8, 3}, {7, 2}});
  CHECK(rank.IsWhole(next, {8, 3}));
  CHECK(rank.IsWhole(next, {7, 2}));
  next.Forget();
  CHECK(next.List(17).empty());
  CHECK(Opened(memory).List(17).empty());
  rank.Save(next, {.iteration = 9, .epoch = 3});
  CHECK(next.List(17) == Identities{{9, 3}});
}

// Two ranks may have come one iteration further than a third one when it is killed; all go on from the state that they
// share, and have to keep it until there is another.
TEST_CASE("a state that is held already is the newer one when it is saved again") {
  const UniqueFd memory = NewMemory();
  KeepingRank rank;
  KeptStates kept = Opened(memory);
  REQUIRE(kept.Prepare(kOwner, rank.stages()).ok());
  rank.Save(kept, {.iteration = 9, .epoch = 1});
  rank.Save(kept, {.iteration = 10, .epoch = 1});
  rank.Save(kept, {.iteration = 9, .epoch = 1});
  CHECK(kept.List(17) == Identities{{9, 1}, {10, 1}});
  rank.Save(kept, {.iteration = 10, .epoch = 2});
  CHECK(kept.List(17) == Identities{{10, 2}, {9, 1}});
  CHECK(rank.IsWhole(kept, {10, 2}));
  CHECK(rank.IsWhole(kept, {9, 1}));
}

TEST_CASE("a device knows the room for states as long as it is attached to it") {
  const UniqueFd memory = NewMemory();
  KeepingRank rank(/*on_device=*/true);
  const KeepingRank larger(false, 16);
  KeptStates kept = Opened(memory);
  REQUIRE(kept.Prepare(kOwner, rank.stages()).ok());
  REQUIRE(kept.Attach(rank.device()).ok());
  REQUIRE(rank.device().registered().size() == 1);
  CHECK(rank.device().registered().begin()->second == KeptStates::BytesFor(rank.stages()));
  CHECK(MappingsOf(memory) == std::vector<std::string>{"rw-s"});
  rank.Save(kept, {.iteration = 5, .epoch = 1});
  kept.Detach();
  CHECK(rank.device().registered().empty());
  CHECK(MappingsOf(memory) == std::vector<std::string>{"r--s"});
  REQUIRE(kept.Attach(rank.device()).ok());
  REQUIRE(kept.Prepare(kOwner, larger.stages()).ok());  // another room
  CHECK(rank.device().registered().empty());
}

TEST_CASE("an error of the device costs the older state alone") {
  const UniqueFd memory = NewMemory();
  KeepingRank rank(/*on_device=*/true);
  KeptStates kept = Opened(memory);
  REQUIRE(kept.Prepare(kOwner, rank.stages()).ok());
  rank.Save(kept, {.iteration = 5, .epoch = 1});
  rank.Save(kept, {.iteration = 6, .epoch = 1});
  rank.device().Enqueue([] { return absl::InternalError("the device is on fire"); });
  CHECK(absl::IsInternal(rank.SaveNow(kept, {.iteration = 7, .epoch = 1})));
  CHECK(kept.List(17) == Identities{{6, 1}});
  KeepingRank next(/*on_device=*/true);
  CHECK(next.IsWhole(kept, {6, 1}));
  next.Save(kept, {.iteration = 7, .epoch = 1});
  CHECK(kept.List(17) == Identities{{7, 1}, {6, 1}});
}

TEST_CASE("states of another run, rank or of other tensors are forgotten, and their memory is given back") {
  const UniqueFd memory = NewMemory();
  KeepingRank rank;
  const KeepingRank larger(false, 16);
  KeptStates kept = Opened(memory);
  const auto saved_again = [&] {
    REQUIRE(kept.Prepare(kOwner, rank.stages()).ok());
    rank.Save(kept, {.iteration = 5, .epoch = 1});
    REQUIRE(kept.List(17) == Identities{{5, 1}});
  };
  saved_again();
  CHECK(absl::IsNotFound(kept.Read({.run_incarnation = 18, .rank = 2}, {5, 1}, 0).status()));
  CHECK(absl::IsNotFound(kept.Read({.run_incarnation = 17, .rank = 1}, {5, 1}, 0).status()));
  REQUIRE(kept.Prepare({.run_incarnation = 18, .rank = 2}, rank.stages()).ok());
  CHECK(kept.List(17).empty());
  CHECK(kept.List(18).empty());
  saved_again();
  REQUIRE(kept.Prepare({.run_incarnation = 17, .rank = 1}, rank.stages()).ok());
  CHECK(kept.List(17).empty());
  saved_again();
  REQUIRE(kept.Prepare(kOwner, std::span(rank.stages()).first(1)).ok());
  CHECK(kept.List(17).empty());
  saved_again();
  std::vector<KeptStates::Stage> renumbered = rank.stages();
  renumbered[1].stage = 2;
  REQUIRE(kept.Prepare(kOwner, renumbered).ok());
  CHECK(kept.List(17).empty());
  saved_again();
  REQUIRE(kept.Prepare(kOwner, larger.stages()).ok());
  CHECK(kept.List(17).empty());
  CHECK(Opened(memory).List(17).empty());
  CHECK(lseek(memory.get(), 0, SEEK_END) == KeptStates::BytesFor(larger.stages()));
  saved_again();
  CHECK(lseek(memory.get(), 0, SEEK_END) == KeptStates::BytesFor(rank.stages()));
}

TEST_CASE("the bytes of two states are 24 per parameter and a little") {
  const KeepingRank rank(false, 256);
  int64_t parameters = 0;
  for (const KeptStates::Stage& stage : rank.stages()) {
    for (const Parameter& parameter : stage.parameters) {
      parameters += parameter.spec.count();
    }
  }
  CHECK(KeptStates::BytesFor(rank.stages()) >= 24 * parameters);
  CHECK(KeptStates::BytesFor(rank.stages()) <= 24 * parameters + 32'768);
}

TEST_CASE("what is not held, or not of this shape, is an error with its name") {
  const UniqueFd memory = NewMemory();
  KeepingRank rank;
  KeptStates kept = Opened(memory);
  CHECK(absl::IsNotFound(kept.Read(kOwner, {5, 1}, 0).status()));
  REQUIRE(kept.Prepare(kOwner, rank.stages()).ok());
  CHECK(absl::IsNotFound(kept.Read(kOwner, {0, 0}, 0).status()));
  rank.Save(kept, {.iteration = 5, .epoch = 1});
  CHECK_THAT(std::string(kept.Read(kOwner, {5, 2}, 0).status().message()),
             Catch::Contains("the state before iteration 5 (epoch 2) of rank 2 is not kept"));
  CHECK_THAT(std::string(kept.Read(kOwner, {5, 1}, 1).status().message()), Catch::Contains("without stage 1"));
  const auto source = kept.Read(kOwner, {5, 1}, 3);
  REQUIRE(source.ok());
  std::vector<float> values(160);
  CHECK((*source)->Read("model.embed_tokens.weight", {20, 8}, values).ok());
  const absl::Status transposed = (*source)->Read("model.embed_tokens.weight", {8, 20}, values);
  CHECK(absl::IsInvalidArgument(transposed));
  CHECK_THAT(std::string(transposed.message()), Catch::Contains("embed_tokens") && Catch::Contains("[20, 8]"));
  const auto moments =
      (*source)->ReadMoments("model.layers.0.input_layernorm.weight", {8}, std::span(values).first(8), values);
  CHECK(absl::IsNotFound(moments.status()));
  CHECK_THAT(std::string(moments.status().message()), Catch::Contains("model.layers.0.input_layernorm.weight"));
}

TEST_CASE("memory in which anything of the head is damaged, or that is cut off, counts as empty") {
  const UniqueFd memory = NewMemory();
  KeepingRank rank;
  const int64_t bytes = KeptStates::BytesFor(rank.stages());
  const auto save = [&] {
    KeptStates kept = Opened(memory);
    REQUIRE(kept.Prepare(kOwner, rank.stages()).ok());
    rank.Save(kept, {.iteration = 5, .epoch = 1});
  };
  save();
  uint32_t layout_bytes = 0;
  REQUIRE(pread(memory.get(), &layout_bytes, sizeof(layout_bytes), kLayoutBytesAt) == sizeof(layout_bytes));
  REQUIRE(layout_bytes > 1000);
  const off_t end = kLayoutAt + static_cast<off_t>(layout_bytes);
  for (off_t at = 0; at < end; at = at + 1 == kSlotsAt ? kLayoutAt : at + 1) {
    CAPTURE(at);
    char byte = 0;
    REQUIRE(pread(memory.get(), &byte, 1, at) == 1);
    const char other = static_cast<char>(byte ^ 0x21);
    REQUIRE(pwrite(memory.get(), &other, 1, at) == 1);
    REQUIRE(Opened(memory).List(17).empty());
    REQUIRE_FALSE(Opened(memory).owner().has_value());
    REQUIRE(pwrite(memory.get(), &byte, 1, at) == 1);
  }
  REQUIRE(Opened(memory).List(17) == Identities{{5, 1}});
  for (const int64_t size : {int64_t{0}, int64_t{7}, int64_t{80}, int64_t{500}, int64_t{4096}, bytes - 1, bytes + 1}) {
    CAPTURE(size);
    REQUIRE(ftruncate(memory.get(), size) == 0);
    CHECK(Opened(memory).List(17).empty());
    save();
    CHECK(Opened(memory).List(17) == Identities{{5, 1}});
  }
}

TEST_CASE("a bit that is flipped anywhere in a kept state costs that state, and the other one serves") {
  const bool on_device = GENERATE(false, true);
  CAPTURE(on_device);
  const UniqueFd memory = NewMemory();
  KeepingRank rank(on_device);
  {
    KeptStates kept = Opened(memory);
    REQUIRE(kept.Prepare(kOwner, rank.stages()).ok());
    rank.Save(kept, {.iteration = 5, .epoch = 1});
    rank.Save(kept, {.iteration = 6, .epoch = 1});
  }
  const Rooms rooms = RoomsOf(memory);
  int damaged = 0;
  for (const int number : {0, 1}) {
    const off_t room = rooms.first + number * rooms.bytes;
    std::vector<off_t> places;
    for (off_t at = kSlotsAt + number * kSlotBytes + 8; at < kSlotsAt + number * kSlotBytes + 28; ++at) {
      places.push_back(at);  // which state it is, and the checksum
    }
    for (off_t at = room; at < room + rooms.bytes; at += 499) {
      places.push_back(at);
    }
    const Identities other{number == 0 ? StateIdentity{6, 1} : StateIdentity{5, 1}};
    for (const off_t at : places) {
      CAPTURE(at);
      std::vector<std::byte> before(kSlotBytes);
      REQUIRE(pread(memory.get(), before.data(), before.size(), kSlotsAt + number * kSlotBytes) == kSlotBytes);
      FlipBit(memory, at);
      const Identities listed = Opened(memory).List(17);
      FlipBit(memory, at);
      if (listed != Identities{{6, 1}, {5, 1}}) {
        REQUIRE(listed == other);
        ++damaged;
      } else {
        REQUIRE(at >= room);  // room that no tensor fills
      }
      // Opened may have forgotten the state; the next place needs it.
      REQUIRE(pwrite(memory.get(), before.data(), before.size(), kSlotsAt + number * kSlotBytes) == kSlotBytes);
    }
    REQUIRE(rank.IsWhole(Opened(memory), other[0]));
  }
  CHECK(damaged > 2 * 20 + 10);
  // It stays forgotten, and its room is the next state's.
  FlipBit(memory, rooms.first + rooms.bytes + 4);
  CHECK(Opened(memory).List(17) == Identities{{5, 1}});
  FlipBit(memory, rooms.first + rooms.bytes + 4);
  CHECK(Opened(memory).List(17) == Identities{{5, 1}});
  KeptStates kept = Opened(memory);
  REQUIRE(kept.Prepare(kOwner, rank.stages()).ok());
  rank.Save(kept, {.iteration = 6, .epoch = 2});
  CHECK(kept.List(17) == Identities{{6, 2}, {5, 1}});
  // Both.
  FlipBit(memory, rooms.first);
  FlipBit(memory, rooms.first + rooms.bytes);
  const KeptStates none = Opened(memory);
  CHECK(none.List(17).empty());
  CHECK(none.owner() == kOwner);
}

TEST_CASE("a process does not read what it has saved itself and what was damaged since") {
  const UniqueFd memory = NewMemory();
  KeepingRank rank;
  KeptStates kept = Opened(memory);
  REQUIRE(kept.Prepare(kOwner, rank.stages()).ok());
  rank.Save(kept, {.iteration = 5, .epoch = 1});
  rank.Save(kept, {.iteration = 6, .epoch = 1});
  FlipBit(memory, RoomsOf(memory).first + 100);
  const absl::Status refused = kept.Read(kOwner, {5, 1}, 0).status();
  CHECK(absl::IsInternal(refused));
  CHECK_THAT(std::string(refused.message()), Catch::Contains("the state before iteration 5 (epoch 1) of rank 2"));
  CHECK(rank.IsWhole(kept, {6, 1}));
  rank.Save(kept, {.iteration = 7, .epoch = 1});  // in its place
  CHECK(rank.IsWhole(kept, {7, 1}));
}

TEST_CASE("a stray write of the process cannot reach what it keeps of the host's memory") {
  const UniqueFd memory = NewMemory();
  KeepingRank rank;
  KeptStates kept = Opened(memory);
  REQUIRE(kept.Prepare(kOwner, rank.stages()).ok());
  REQUIRE(kept.Attach(HostDevice()).ok());
  rank.Save(kept, {.iteration = 5, .epoch = 1});
  CHECK(MappingsOf(memory) == std::vector<std::string>{"r--s"});
}

TEST_CASE("memory of a program of before, whose states have no checksums, counts as empty") {
  const UniqueFd memory = NewMemory();
  KeepingRank rank;
  KeptStates kept = Opened(memory);
  REQUIRE(kept.Prepare(kOwner, rank.stages()).ok());
  rank.Save(kept, {.iteration = 5, .epoch = 1});
  constexpr uint32_t kBefore = 2;
  REQUIRE(pwrite(memory.get(), &kBefore, sizeof(kBefore), kVersionAt) == sizeof(kBefore));
  KeptStates next = Opened(memory);
  CHECK(next.List(17).empty());
  CHECK_FALSE(next.owner().has_value());
  REQUIRE(next.Prepare(kOwner, rank.stages()).ok());
  CHECK(next.List(17).empty());
  rank.Save(next, {.iteration = 6, .epoch = 1});
  CHECK(Opened(memory).List(17) == Identities{{6, 1}});
}

TEST_CASE("noise in the place of a head counts as empty") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  SplitMix64 random(seed);
  const UniqueFd memory = NewMemory();
  KeepingRank rank;
  for (int run = 0; run < 200; ++run) {
    std::vector<uint64_t> noise(3 + random.Next() % 1000);
    std::ranges::generate(noise, [&] { return random.Next() >> (random.Next() % 64); });
    REQUIRE(pwrite(memory.get(), noise.data(), noise.size() * 8, 0) > 0);
    REQUIRE(Opened(memory).List(noise[2]).empty());
  }
  KeptStates kept = Opened(memory);
  REQUIRE(kept.Prepare(kOwner, rank.stages()).ok());
  rank.Save(kept, {.iteration = 5, .epoch = 1});
  CHECK(rank.IsWhole(kept, {5, 1}));
}

TEST_CASE("what is no shared memory is refused") {
  CHECK(KeptStates::Open(UniqueFd()).status().code() != absl::StatusCode::kOk);
  CHECK(absl::IsInvalidArgument(KeptStates::Open(UniqueFd(open("/dev/null", O_RDWR | O_CLOEXEC))).status()));
}

// Keeps files of this process from growing past so many bytes while it lives.
class FileLimit {
 public:
  explicit FileLimit(int64_t bytes) {
    REQUIRE(getrlimit(RLIMIT_FSIZE, &before_) == 0);
    const rlimit limit{.rlim_cur = static_cast<rlim_t>(bytes), .rlim_max = before_.rlim_max};
    REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;
  ~FileLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    (void)std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*const handler_)(int) = std::signal(SIGXFSZ, SIG_IGN);
};

TEST_CASE("more than the machine has is refused before any of it is taken") {
  const UniqueFd memory = NewMemory();
  KeepingRank rank;
  KeptStates kept = Opened(memory);
  REQUIRE(kept.Prepare(kOwner, rank.stages()).ok());
  std::vector<Parameter> parameters(1);
  parameters[0].piece.tensor = {.name = "huge", .shape = {int64_t{1} << 20, int64_t{1} << 20}};
  parameters[0].piece.count = parameters[0].piece.tensor.count();
  const std::vector<KeptStates::Stage> huge{{.stage = 0, .parameters = parameters}};
  absl::Status status;
  {
    const FileLimit limit(int64_t{1} << 30);  // so that code which would take it all does not take the machine down
    status = kept.Prepare(kOwner, huge);
  }
  CHECK(absl::IsResourceExhausted(status));
  CHECK_THAT(std::string(status.message()), Catch::Contains("are available"));
  CHECK_THAT(std::string(status.message()), Catch::Contains(fmt::format("({} bytes)", KeptStates::BytesFor(huge))));
  CHECK(kept.List(17).empty());
  CHECK(lseek(memory.get(), 0, SEEK_END) == 0);
  REQUIRE(kept.Prepare(kOwner, rank.stages()).ok());
  rank.Save(kept, {.iteration = 5, .epoch = 1});
  CHECK(rank.IsWhole(kept, {5, 1}));
}

TEST_CASE("memory that the system refuses is an error with the bytes, and there is room when there is less to keep") {
  const UniqueFd memory = NewMemory();
  KeepingRank rank;
  const int64_t bytes = KeptStates::BytesFor(rank.stages());
  KeptStates kept = Opened(memory);
  absl::Status refused;
  absl::Status less;
  {
    const FileLimit limit(bytes - 1);
    refused = kept.Prepare(kOwner, rank.stages());
    less = kept.Prepare(kOwner, std::span(rank.stages()).first(1));
  }
  CHECK(absl::IsResourceExhausted(refused));
  CHECK_THAT(std::string(refused.message()), Catch::Contains(fmt::format("{} bytes", bytes)));
  CHECK(less.ok());
  CHECK(kept.Save({.iteration = 5, .epoch = 1}, std::span(rank.stages()).first(1)).ok());
}

TEST_CASE("memory that cannot be mapped is an error, and is given back") {
  const UniqueFd memory(memfd_create("kept-states-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(fcntl(memory.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE) == 0);
  const KeepingRank rank;
  KeptStates kept = Opened(memory);
  CHECK(absl::IsPermissionDenied(kept.Prepare(kOwner, rank.stages())));
  CHECK_FALSE(kept.owner().has_value());
  CHECK(lseek(memory.get(), 0, SEEK_END) == 0);
}

TEST_CASE("a state is saved without faulting pages in, from the first one on") {
  const UniqueFd memory = NewMemory();
  KeepingRank rank(false, 256);
  rank.Become({1, 1});
  const auto faults_of_save = [&](KeptStates& kept, const StateIdentity& state) {
    rusage usage{};
    REQUIRE(getrusage(RUSAGE_SELF, &usage) == 0);
    const int64_t before = usage.ru_minflt;
    REQUIRE(kept.Save(state, rank.stages()).ok());
    REQUIRE(getrusage(RUSAGE_SELF, &usage) == 0);
    return usage.ru_minflt - before;
  };
  const int64_t pages = KeptStates::BytesFor(rank.stages()) / 2 / 4096;
  REQUIRE(pages > 500);
  for (const uint64_t epoch : {1, 2}) {  // new, and found again
    KeptStates kept = Opened(memory);
    REQUIRE(kept.Prepare(kOwner, rank.stages()).ok());
    for (const int64_t iteration : {1, 2}) {
      // A sanitizer's shadow of the memory is paged in: AddressSanitizer's is an eighth of it, ThreadSanitizer's eight
      // times as much.
#ifdef __SANITIZE_THREAD__
      const int64_t most = 12 * pages;
#else
      const int64_t most = pages / 3;
#endif
      CHECK(faults_of_save(kept, {.iteration = iteration, .epoch = epoch}) < most);
    }
  }
}

}  // namespace
}  // namespace geopipe
