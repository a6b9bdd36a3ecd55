#include "runtime/weights/mapped_file.h"

#include <catch2/catch.hpp>
#include <string>
#include <utility>

#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

std::string Text(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST_CASE("a file is mapped, and stays so when moved") {
  const TempDir dir;
  auto file = MappedFile::Open(dir.Write("a", "hello"));
  REQUIRE(file.ok());
  CHECK(Text(*file) == "hello");
  MappedFile moved = std::move(*file);
  CHECK(Text(moved) == "hello");
  auto other = MappedFile::Open(dir.Write("b", "world"));
  REQUIRE(other.ok());
  moved = *std::move(other);
  CHECK(Text(moved) == "world");
  CHECK(moved.path() == dir.path() + "/b");
}

TEST_CASE("an empty file has no bytes") {
  const TempDir dir;
  auto file = MappedFile::Open(dir.Write("empty", ""));
  REQUIRE(file.ok());
  CHECK(file->bytes().empty());
}

TEST_CASE("what cannot be mapped is named") {
  const TempDir dir;
  const auto missing = MappedFile::Open(dir.path() + "/missing");
  CHECK(missing.status().code() == absl::StatusCode::kNotFound);
  CHECK(missing.status().message() == dir.path() + "/missing: no such file on this node");
  const auto folder = MappedFile::Open(dir.path());
  CHECK(folder.status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(folder.status().message() == dir.path() + ": is a folder; name a regular file");
}

}  // namespace
}  // namespace geopipe
