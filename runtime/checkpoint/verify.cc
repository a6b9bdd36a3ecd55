#include "runtime/checkpoint/verify.h"

#include <fmt/format.h>

#include <utility>

#include "optimizer/base/status_macros.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/checkpoint_file.h"
#include "runtime/checkpoint/manifest.h"

namespace geopipe {
namespace {

using Kind = CheckpointProblem::Kind;

constexpr std::string_view kRestore = "copy the file again or choose another checkpoint";

// Describes the damage of `count` bytes from `offset` on, as a sentence; empty when there is none.
std::string Damage(const CheckpointFile& file, std::string_view part, int64_t offset, int64_t count,
                   uint32_t expected) {
  const absl::StatusOr<uint32_t> crc = file.Checksum(offset, count);
  if (!crc.ok()) {
    return fmt::format("{}: {}", part, std::string(crc.status().message()));
  }
  if (*crc == expected) {
    return "";
  }
  return fmt::format("{}: {} is damaged: its checksum is {:08x}, the manifest says {:08x}; {}", file.path(), part, *crc,
                     expected, kRestore);
}

void VerifyFile(const std::string& folder, const FileEntry& entry, std::vector<CheckpointProblem>& problems) {
  const auto add = [&](Kind kind, std::string message, std::string tensor = "") {
    problems.push_back({.kind = kind, .file = entry.name, .tensor = std::move(tensor), .message = std::move(message)});
  };
  const absl::StatusOr<CheckpointFile> file = CheckpointFile::Open(fmt::format("{}/{}", folder, entry.name));
  if (!file.ok()) {
    add(absl::IsNotFound(file.status()) ? Kind::kMissing : Kind::kUnreadable, std::string(file.status().message()));
    return;
  }
  if (file->bytes() != entry.bytes) {
    add(Kind::kSize,
        fmt::format("{}: has {} bytes, the manifest says {}; {}", file->path(), file->bytes(), entry.bytes, kRestore));
  }
  if (std::string damage = Damage(*file, "the header", 0, entry.header_bytes, entry.header_crc32c); !damage.empty()) {
    add(Kind::kHeader, std::move(damage));
  }
  int64_t position = entry.header_bytes;
  for (const TensorEntry& tensor : entry.tensors) {
    const int64_t bytes = static_cast<int64_t>(sizeof(float)) * tensor.range.elements;
    const std::string& name = tensor.range.name;
    if (std::string damage = Damage(*file, fmt::format("tensor {}", name), position, bytes, tensor.crc32c);
        !damage.empty()) {
      add(Kind::kTensor, std::move(damage), name);
    }
    position += bytes;
  }
}

}  // namespace

absl::StatusOr<std::vector<CheckpointProblem>> VerifyCheckpoint(
    const std::string& folder, const std::function<void(int64_t done, int64_t total)>& progress) {
  GP_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(folder));
  int64_t done = 0;
  int64_t total = 0;
  for (const FileEntry& entry : checkpoint.manifest().files) {
    total += entry.bytes;
  }
  std::vector<CheckpointProblem> problems;
  if (const absl::Status whole = checkpoint.CheckWhole(); !whole.ok()) {
    problems.push_back(
        {.kind = Kind::kIncomplete, .file = std::string(kManifestName), .message = std::string(whole.message())});
  }
  for (const FileEntry& entry : checkpoint.manifest().files) {
    if (progress) {
      progress(done, total);
    }
    VerifyFile(folder, entry, problems);
    done += entry.bytes;
  }
  return problems;
}

}  // namespace geopipe
