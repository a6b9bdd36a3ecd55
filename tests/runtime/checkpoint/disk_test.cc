// Disks that are full or read-only below a checkpoint. The disk is a small tmpfs in a mount namespace of this process.
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/base/unique_fd.h"
#include "runtime/checkpoint/checkpoint_folders.h"
#include "runtime/checkpoint/new_file.h"
#include "runtime/checkpoint/tensor_file_writer.h"
#include "runtime/checkpoint/verify.h"
#include "tests/runtime/checkpoint/written_checkpoint.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

class SmallDisk {
 public:
  explicit SmallDisk(int64_t kib) {
    const std::string options = fmt::format("size={}k", kib);
    mounted_ = unshare(CLONE_NEWNS) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
               mount("none", path().c_str(), "tmpfs", 0, options.c_str()) == 0;
    if (!mounted_) {
      WARN("SKIPPED: a tmpfs cannot be mounted here (" << std::strerror(errno) << "); run this as root");
    }
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  ~SmallDisk() {
    if (mounted_) {
      umount2(path().c_str(), MNT_DETACH);
    }
  }

  bool mounted() const { return mounted_; }
  const std::string& path() const { return folder_.path(); }

  // Takes all that is free.
  void Fill() const {
    const UniqueFd fd(open((path() + "/filler").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    REQUIRE(fd.valid());
    const std::array<char, 4096> block{};
    while (write(fd.get(), block.data(), block.size()) > 0) {
    }
    REQUIRE(errno == ENOSPC);
  }
  void Free() const { REQUIRE(std::filesystem::remove(path() + "/filler")); }
  void MakeReadOnly() const { REQUIRE(mount("none", path().c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, nullptr) == 0); }

 private:
  TempDir folder_;
  bool mounted_ = false;
};

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
