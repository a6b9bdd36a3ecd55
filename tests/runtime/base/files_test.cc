#include "runtime/base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/ids.h"
#include "runtime/base/suggest.h"
#include "runtime/base/version.h"
#include "tests/support/fake_clock.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

namespace fs = std::filesystem;

TEST_CASE("a file is locked by one at a time, for as long as the descriptor lives") {
  const TempFolder folder = *TempFolder::Create("geopipe-test-");
  absl::StatusOr<UniqueFd> first = LockFile(folder.path() / "lock");
  REQUIRE(first.ok());
  CHECK(LockFile(folder.path() / "lock").status().code() == absl::StatusCode::kAlreadyExists);
  first->Reset();
  CHECK(LockFile(folder.path() / "lock").ok());
  CHECK(LockFile("/nowhere/lock").status().code() == absl::StatusCode::kNotFound);
}

TEST_CASE("A temporary folder goes with all its content unless it is kept") {
  fs::path gone;
  fs::path kept;
  {
    auto first = TempFolder::Create("geopipe-files-");
    auto second = TempFolder::Create("geopipe-files-");
    REQUIRE(first.ok());
    REQUIRE(second.ok());
    gone = first->path();
    kept = second->path();
    CHECK(gone != kept);
    REQUIRE(MakeFolder(gone / "a" / "b").ok());
    REQUIRE(WriteFileAtomically(gone / "a" / "b" / "c", "text").ok());
    second->Keep();
    const TempFolder moved = *std::move(second);
    CHECK(moved.path() == kept);
  }
  CHECK_FALSE(fs::exists(gone));
  CHECK(fs::is_directory(kept));
  fs::remove_all(kept);
}

TEST_CASE("Files are read whole, in part or refused") {
  auto folder = TempFolder::Create("geopipe-files-");
  REQUIRE(folder.ok());
  const fs::path path = folder->path() / "file";
  REQUIRE(WriteFileAtomically(path, "old").ok());
  REQUIRE(WriteFileAtomically(path, "one\ntwo\nthree\n").ok());
  CHECK(ReadFile(path, 14).value() == "one\ntwo\nthree\n");
  CHECK(ReadFile(path, 13).status().code() == absl::StatusCode::kOutOfRange);
  CHECK(ReadFileTail(path, 100).value() == "one\ntwo\nthree\n");
  CHECK(ReadFileTail(path, 9).value() == "three\n");
  CHECK(ReadFileTail(path, 4).value() == "ree\n");
  CHECK(ReadFile(folder->path(), 10).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(ReadFile(folder->path() / "none", 10).status().code() == absl::StatusCode::kNotFound);
  CHECK(std::distance(fs::directory_iterator(folder->path()), fs::directory_iterator()) == 1);
  { const TempFolder ended = *std::move(folder); }
  CHECK_FALSE(fs::exists(path));
}

TEST_CASE("A text is read from regular files and descriptors that were given, and nothing is waited for") {
  const TempDir dir;
  const std::string pipe = dir.path() + "/pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(ReadFile(pipe, 10).status().message() == "cannot read " + pipe + ": it is a named pipe; name a file");
  CHECK(ReadFileTail(pipe, 10).status().message() == "cannot read " + pipe + ": it is a named pipe; name a file");
  CHECK(ReadFile("/dev/zero", 10).status().message() == "cannot read /dev/zero: it is a character device; name a file");
  CHECK(ReadFile("/dev/null", 10).status().message() == "cannot read /dev/null: it is a character device; name a file");
  int ends[2] = {-1, -1};
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  const UniqueFd given(ends[0]);
  {
    const UniqueFd writer(ends[1]);
    REQUIRE(write(writer.get(), "hello", 5) == 5);
  }
  CHECK(ReadFile("/dev/fd/" + std::to_string(given.get()), 10).value() == "hello");
}

TEST_CASE("What is no regular file is written to, and a symbolic link stays one") {
  auto folder = TempFolder::Create("geopipe-files-");
  REQUIRE(folder.ok());
  const fs::path fifo = folder->path() / "fifo";
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  std::string read;
  std::thread reader([&] { std::getline(std::ifstream(fifo), read); });
  CHECK(WriteFileAtomically(fifo, "through").ok());
  reader.join();
  CHECK(read == "through");
  CHECK(WriteFileAtomically(fifo, "unread").message() ==
        "cannot write " + fifo.string() + ": nobody reads it; name a file, or start what reads the pipe first");
  CHECK(fs::is_fifo(fifo));

  CHECK(WriteFileAtomically("/dev/full", "lost").code() == absl::StatusCode::kResourceExhausted);
  CHECK(fs::is_character_file("/dev/full"));
  CHECK(WriteFileAtomically("/dev/null", "gone").ok());

  fs::create_directory(folder->path() / "disk");
  fs::create_symlink("disk/file", folder->path() / "relative");
  fs::create_symlink(folder->path() / "relative", folder->path() / "absolute");
  REQUIRE(WriteFileAtomically(folder->path() / "absolute", "new").ok());  // nothing was there
  REQUIRE(WriteFileAtomically(folder->path() / "absolute", "newer").ok());
  CHECK(ReadFile(folder->path() / "disk" / "file", 100).value() == "newer");
  CHECK(fs::is_symlink(folder->path() / "relative"));
  CHECK(fs::is_symlink(folder->path() / "absolute"));
}

TEST_CASE("A sibling is an executable beside the running program") {
  CHECK(SiblingProgram("no-such-program").status().code() == absl::StatusCode::kNotFound);
  const auto self = SiblingProgram(fs::read_symlink("/proc/self/exe").filename().string());
  CHECK(self.value() == fs::read_symlink("/proc/self/exe").string());
}

TEST_CASE("Ids differ and are not zero") {
  const uint64_t id = RandomId();
  CHECK(id != 0);
  CHECK(id != RandomId());
  CHECK(RandomBytes(32).size() == 32);
  CHECK(RandomBytes(32) != RandomBytes(32));
  CHECK(Version().find('.') != std::string_view::npos);
}

TEST_CASE("The nearest word is suggested only when it is near") {
  const std::vector<std::string> words{"iterations", "seed", "learning_rate"};
  CHECK(NearestWord("iteration", words) == "iterations");
  CHECK(NearestWord("sead", words) == "seed");
  CHECK(NearestWord("sede", words) == "seed");
  CHECK(NearestWord("xyzzy", words).empty());
  CHECK(DidYouMean("leraning_rate", words, "--") == "; did you mean --learning_rate?");
  CHECK(NearestWord(std::string(1000, 'a'), words).empty());
}

TEST_CASE("The real clock goes forward and a fake one stands still") {
  Clock& real = Clock::Real();
  const int64_t before_ns = real.NowNs();
  real.SleepUntilNs(before_ns + 1);
  CHECK(real.NowNs() > before_ns);
  CHECK(real.UnixNowNs() > 1'600'000'000'000'000'000);
  FakeClock fake;
  fake.AdvanceNs(5);
  fake.SleepUntilNs(3);
  CHECK(fake.NowNs() == 5);
  fake.SleepUntilNs(9);
  CHECK(fake.NowNs() == 9);
  CHECK(fake.UnixNowNs() == 1'700'000'000'000'000'009);
}

}  // namespace
}  // namespace geopipe
