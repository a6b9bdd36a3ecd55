#include "runtime/checkpoint/tensor_file_writer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/base/crc32c.h"
#include "runtime/checkpoint/checkpoint_folders.h"
#include "tests/runtime/checkpoint/written_checkpoint.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

namespace fs = std::filesystem;

const std::vector<TensorRange> kTwo = {{.name = "a", .shape = {2, 3}, .elements = 6},
                                       {.name = "b", .shape = {1}, .elements = 1}};

TEST_CASE("a file gets its name when it is whole, and its entry tells what is in it") {
  const TempDir dir;
  const std::vector<float> a = {1, -2, 3, -4, 5, -6};
  auto writer = TensorFileWriter::Create(dir.path(), "x.safetensors", kTwo);
  REQUIRE(writer.ok());
  REQUIRE(writer->Append("a", {2, 3}, a).ok());
  REQUIRE(writer->Append("b", {1}, std::vector<float>{7}).ok());
  REQUIRE(Names(dir.path()).size() == 1);
  CHECK(IsTemporaryName(Names(dir.path())[0]));
  const FileEntry entry = *writer->Finish();
  CHECK(Names(dir.path()) == std::vector<std::string>{"x.safetensors"});
  const std::string content = Content(dir.path() + "/x.safetensors");
  const std::string header = TensorFileHeader(kTwo);
  CHECK(content.starts_with(header));
  CHECK(header.substr(8) ==
        R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
        R"("b":{"dtype":"F32","shape":[1],"data_offsets":[24,28]}} )");
  CHECK(entry.name == "x.safetensors");
  CHECK(entry.bytes == static_cast<int64_t>(content.size()));
  CHECK(entry.header_bytes == static_cast<int64_t>(header.size()));
  CHECK(entry.header_crc32c == Crc32c(std::as_bytes(std::span(header))));
  REQUIRE(entry.tensors.size() == 2);
  CHECK(entry.tensors[0].range == kTwo[0]);
  CHECK(entry.tensors[0].crc32c == Crc32c(std::as_bytes(std::span(a))));
  CHECK((fs::status(dir.path() + "/x.safetensors").permissions() & fs::perms::all) == fs::perms(0644));
}

TEST_CASE("a writer that does not finish leaves nothing, and keeps what was there before") {
  const TempDir dir;
  dir.Write("x.safetensors", "before");
  {
    auto writer = TensorFileWriter::Create(dir.path(), "x.safetensors", kTwo);
    REQUIRE(writer.ok());
    CHECK(Names(dir.path()).size() == 2);
  }
  CHECK(Names(dir.path()) == std::vector<std::string>{"x.safetensors"});
  CHECK(Content(dir.path() + "/x.safetensors") == "before");
}

TEST_CASE("what cannot be declared is refused before a file is made") {
  const TempDir dir;
  const auto refused = [&](const std::string& name, const std::vector<TensorRange>& tensors) {
    const absl::Status status = TensorFileWriter::Create(dir.path(), name, tensors).status();
    CHECK(absl::IsInvalidArgument(status));
    CHECK(Names(dir.path()).empty());
    return std::string(status.message());
  };
  CHECK(refused("x.safetensors", {}) == dir.path() +
                                            "/x.safetensors: cannot be written: file x.safetensors has 0 tensors; 1 to "
                                            "100000 are allowed; declare other tensors");
  CHECK_THAT(refused("x/y.safetensors", kTwo),
             Catch::Contains("'x/y.safetensors' is not the plain name of a .safetensors file"));
  CHECK_THAT(refused("x.safetensors", {kTwo[0], kTwo[0]}), Catch::Contains("has tensor a twice"));
  CHECK_THAT(refused("x.safetensors", {{.name = "a", .shape = {2}, .elements = -1}}),
             Catch::Contains("tensor a of 2 elements cannot have -1 elements from 0 on"));
  CHECK_THAT(refused("x.safetensors", {{.name = "\xff", .shape = {2}, .elements = 2}}),
             Catch::Contains("a tensor's name has 1 bytes or is not UTF-8"));
}

TEST_CASE("a folder that is not there is named with the reason") {
  const TempDir dir;
  const std::string file = dir.Write("file", "");
  const std::string gone = "its folder is gone or is none; leave it alone while files are written";
  absl::Status status = TensorFileWriter::Create(dir.path() + "/none", "x.safetensors", kTwo).status();
  CHECK(absl::IsNotFound(status));
  CHECK(status.message() == dir.path() + "/none/x.safetensors: cannot be written: No such file or directory; " + gone);
  status = TensorFileWriter::Create(file, "x.safetensors", kTwo).status();
  CHECK(status.message() == file + "/x.safetensors: cannot be written: Not a directory; " + gone);
  status = BeginCheckpoint(file, 3).status();
  CHECK_THAT(std::string(status.message()), Catch::Contains(file + "/iteration-0000000003: Not a directory; choose"));
  CHECK(WriteCheckpointManifest(dir.path() + "/none",
                                [] {
                                  CheckpointManifest manifest = ManifestOf(SmallModel(1), 1);
                                  manifest.files = {
                                      {.name = "x.safetensors",
                                       .bytes = 12,
                                       .header_bytes = 8,
                                       .tensors = {{.range = {.name = "a", .shape = {1}, .elements = 1}}}}};
                                  return manifest;
                                }())
            .message() == dir.path() + "/none/manifest.json: cannot be written: No such file or directory; " + gone);
}

TEST_CASE("a folder that may not be written is named with the reason") {
  const TempDir dir;
  fs::permissions(dir.path(), fs::perms(0555));
  const uid_t runs_as = geteuid();
  const uid_t user = runs_as == 0 ? 65534 : runs_as;  // root may write anywhere
  REQUIRE(seteuid(user) == 0);
  const absl::Status status = TensorFileWriter::Create(dir.path(), "x.safetensors", kTwo).status();
  REQUIRE(seteuid(runs_as) == 0);
  CHECK(absl::IsPermissionDenied(status));
  CHECK(status.message() == fmt::format("{}/x.safetensors: cannot be written: Permission denied; give user id {} "
                                        "permission or choose another folder",
                                        dir.path(), user));
}

TEST_CASE("a folder that vanishes while a file is written is an error at its end, and stays one") {
  const TempDir dir;
  const std::string folder = *BeginCheckpoint(dir.path(), 1);
  auto writer = TensorFileWriter::Create(folder, "x.safetensors", {kTwo[1]});
  REQUIRE(writer.ok());
  fs::remove_all(folder);
  CHECK(writer->Append("b", {1}, std::vector<float>{7}).ok());
  const std::string expected =
      folder +
      "/x.safetensors: cannot be written: No such file or directory; its folder is gone or is none; leave it "
      "alone while files are written";
  CHECK(writer->Finish().status().message() == expected);
  CHECK(writer->Finish().status().message() == expected);
  CHECK(Names(dir.path()).empty());
}

}  // namespace
}  // namespace geopipe
