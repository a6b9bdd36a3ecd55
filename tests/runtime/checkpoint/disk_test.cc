// Disks that are full or read-only below a checkpoint.
#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint_folders.h"
#include "runtime/checkpoint/new_file.h"
#include "runtime/checkpoint/tensor_file_writer.h"
#include "runtime/checkpoint/verify.h"
#include "tests/runtime/checkpoint/small_disk.h"
#include "tests/runtime/checkpoint/written_checkpoint.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

constexpr std::string_view kFull =
    ": cannot be written: No space left on device; free some space or choose another "
    "folder";

TEST_CASE("a full disk is an error, leaves no file behind, and costs no checkpoint that is complete") {
  const SmallDisk disk(512);
  if (!disk.mounted()) {
    return;
  }
  const ModelSpec model = SmallModel(1);
  const std::string complete = WrittenCheckpoint(disk.path(), model, 1);
  const std::string folder = *BeginCheckpoint(disk.path(), 2);
  disk.Fill();
  const absl::Status written = WriteCheckpoint(disk.path(), model, 2);
  CHECK(absl::IsResourceExhausted(written));
  CHECK(written.message() == folder + "/embedding.weights.1-3.safetensors" + std::string(kFull));
  CHECK(Names(folder).empty());
  CHECK(VerifyCheckpoint(complete).value().empty());
  disk.Free();
  CHECK(WriteCheckpoint(disk.path(), model, 2).ok());
  CHECK(VerifyCheckpoint(folder).value().empty());
}

TEST_CASE("a disk that is too small for a file is known before its tensors are written") {
  const SmallDisk disk(512);
  if (!disk.mounted()) {
    return;
  }
  const absl::Status status =
      TensorFileWriter::Create(disk.path(), "x.safetensors", {{.name = "w", .shape = {1 << 20}, .elements = 1 << 20}})
          .status();
  CHECK(status.message() == disk.path() + "/x.safetensors" + std::string(kFull));
  CHECK(Names(disk.path()).empty());
}

TEST_CASE("a disk that fills up while a file is written frees what the file took at once") {
  const SmallDisk disk(512);
  if (!disk.mounted()) {
    return;
  }
  absl::StatusOr<NewFile> file = NewFile::Create(disk.path() + "/x");
  REQUIRE(file.ok());
  const std::vector<std::byte> piece(100'000);
  absl::Status status;
  for (int i = 0; i < 10 && status.ok(); ++i) {
    status = file->Write(piece);
  }
  CHECK(status.message() == disk.path() + "/x" + std::string(kFull));
  CHECK(Names(disk.path()).empty());
  CHECK(std::filesystem::space(disk.path()).available == 512 * 1024);
  CHECK(file->Write(piece) == status);
  CHECK(file->Commit() == status);
}

TEST_CASE("a manifest that a full disk does not take leaves an incomplete checkpoint") {
  const SmallDisk disk(512);
  if (!disk.mounted()) {
    return;
  }
  const ModelSpec model = SmallModel(1);
  const std::string folder = *BeginCheckpoint(disk.path(), 2);
  CheckpointManifest manifest = ManifestOf(model, 2);
  for (const CheckpointUnit& unit : UnitsOf(model)) {
    REQUIRE(WriteUnit(folder, model, unit, 2, manifest.files).ok());
  }
  disk.Fill();
  CHECK(WriteCheckpointManifest(folder, manifest).message() == folder + "/manifest.json" + std::string(kFull));
  CHECK(Names(folder).size() == 6);
  CHECK(ListCheckpoints(disk.path())->incomplete.size() == 1);
  disk.Free();
  CHECK(WriteCheckpointManifest(folder, manifest).ok());
  CHECK(VerifyCheckpoint(folder).value().empty());
}

TEST_CASE("a disk that is read-only is an error of writing and of removing") {
  const SmallDisk disk(512);
  if (!disk.mounted()) {
    return;
  }
  const std::string old = WrittenCheckpoint(disk.path(), SmallModel(1), 1);
  WrittenCheckpoint(disk.path(), SmallModel(1), 2);
  disk.MakeReadOnly();
  CHECK(
      TensorFileWriter::Create(old, "x.safetensors", {{.name = "w", .shape = {1}, .elements = 1}}).status().message() ==
      old +
          "/x.safetensors: cannot be written: Read-only file system; mount the file system writable or choose "
          "another folder");
  CHECK(RemoveOld(disk.path(), 1).status().message() ==
        old +
            "/manifest.json: cannot be removed: Read-only file system; mount the file system writable or choose "
            "another folder");
  CHECK(ListCheckpoints(disk.path())->complete.size() == 2);
}

}  // namespace
}  // namespace geopipe
