#include "runtime/base/input_file.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

std::string Text(const InputFile& file, int64_t offset, size_t count) {
  std::vector<std::byte> bytes(count);
  REQUIRE(file.Read(offset, bytes).ok());
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST_CASE("a file is read at any place") {
  const TempDir dir;
  const auto file = InputFile::Open(dir.Write("a", "hello"));
  REQUIRE(file.ok());
  CHECK(file->bytes() == 5);
  CHECK(file->path() == dir.path() + "/a");
  CHECK(Text(*file, 0, 5) == "hello");
  CHECK(Text(*file, 3, 2) == "lo");
  CHECK(Text(*file, 5, 0).empty());
}

TEST_CASE("a file that was cut short is an error of the read") {
  const TempDir dir;
  const std::string path = dir.Write("a", std::string(10'000, 'x'));
  const auto file = InputFile::Open(path);
  REQUIRE(file.ok());
  std::filesystem::resize_file(path, 6'000);
  CHECK(Text(*file, 5'000, 1'000) == std::string(1'000, 'x'));
  std::vector<std::byte> bytes(2'000);
  const absl::Status status = file->Read(5'000, bytes);
  CHECK(status.code() == absl::StatusCode::kDataLoss);
  CHECK(status.message() == path + ": the file had 10000 bytes when it was opened, and ends at 6000 now; restore it");
}

TEST_CASE("what cannot be read is named") {
  const TempDir dir;
  const auto missing = InputFile::Open(dir.path() + "/missing");
  CHECK(missing.status().code() == absl::StatusCode::kNotFound);
  CHECK(missing.status().message() == dir.path() + "/missing: no such file on this node");
  const auto folder = InputFile::Open(dir.path());
  CHECK(folder.status().message() == dir.path() + ": is a folder; name a regular file");
}

TEST_CASE("what would have to be waited for is refused at once, by its name") {
  const TempDir dir;
  const std::string pipe = dir.path() + "/pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(InputFile::Open(pipe).status().message() == pipe + ": is a named pipe; name a regular file");
  CHECK(InputFile::Open("/dev/zero").status().message() == "/dev/zero: is a character device; name a regular file");
  const std::string path = dir.path() + "/socket";
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  REQUIRE(bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  CHECK(InputFile::Open(path).status().message() == path + ": is a socket or a device; name a regular file");
}

}  // namespace
}  // namespace geopipe
