#include "runtime/checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/crc32c.h"
#include "runtime/checkpoint/checkpoint_file.h"
#include "runtime/checkpoint/checkpoint_folders.h"
#include "runtime/checkpoint/checkpoint_units.h"

namespace geopipe {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);

absl::StatusOr<CheckpointManifest> ReadManifestFile(const std::string& path) {
  const absl::StatusOr<CheckpointFile> file = CheckpointFile::Open(path);
  if (absl::IsNotFound(file.status())) {
    return absl::NotFoundError(
        fmt::format("{}: is missing, so its folder is no complete checkpoint; choose another checkpoint", path));
  }
  GP_RETURN_IF_ERROR(file.status());
  if (file->bytes() > static_cast<int64_t>(CheckpointLimits::kMaxManifestBytes)) {
    return absl::OutOfRangeError(fmt::format("{}: has {} bytes, a manifest at most {}; choose another checkpoint", path,
                                             file->bytes(), CheckpointLimits::kMaxManifestBytes));
  }
  std::string text(static_cast<size_t>(file->bytes()), '\0');
  GP_RETURN_IF_ERROR(file->ReadAt(0, std::as_writable_bytes(std::span(text))));
  return ParseCheckpointManifest(text, path);
}

// The first field in which the models differ, as a clause.
std::optional<std::string> Difference(const ModelSpec& found, const ModelSpec& needed) {
  std::optional<std::string> difference;
  ForEachModelField([&](std::string_view name, auto member) {
    if (!difference.has_value() && found.*member != needed.*member) {
      difference = fmt::format("is of a model with {} {}, the job's has {}", name, found.*member, needed.*member);
    }
  });
  return difference;
}

}  // namespace

Checkpoint::Checkpoint(std::string folder, CheckpointManifest manifest)
    : folder_(std::move(folder)), manifest_(std::move(manifest)) {
  for (const FileEntry& file : manifest_.files) {
    int64_t position = file.header_bytes;
    for (const TensorEntry& entry : file.tensors) {
      places_[entry.range.name].push_back({.file = &file, .entry = &entry, .position = position});
      position += kFloatBytes * entry.range.elements;
    }
  }
  for (auto& [tensor, places] : places_) {
    std::ranges::stable_sort(places, {}, [](const Place& place) { return place.entry->range.offset; });
  }
}

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& folder) {
  const std::string path = fmt::format("{}/{}", folder, kManifestName);
  GP_ASSIGN_OR_RETURN(CheckpointManifest manifest, ReadManifestFile(path));
  const std::optional<int64_t> named = IterationOfFolder(folder);
  if (named.has_value() && *named != manifest.next_iteration) {
    return absl::FailedPreconditionError(fmt::format(
        "{}: is the state before iteration {}, not {} as the folder's name says; give the folder its name back", path,
        manifest.next_iteration, *named));
  }
  return Checkpoint(folder, std::move(manifest));
}

std::string Checkpoint::PathOf(std::string_view file) const { return fmt::format("{}/{}", folder_, file); }

absl::Status Checkpoint::CheckWhole(std::string_view tensor, const Places& places) const {
  const int64_t count = CountElements(places.front().entry->range.shape);
  int64_t covered = 0;
  for (const Place& place : places) {
    const TensorRange& range = place.entry->range;
    if (range.offset > covered) {
      break;
    }
    covered = std::max(covered, range.end());
  }
  if (covered == count) {
    return absl::OkStatus();
  }
  int64_t next = count;
  for (const Place& place : places) {
    if (place.entry->range.offset > covered) {
      next = std::min(next, place.entry->range.offset);
    }
  }
  return absl::FailedPreconditionError(fmt::format(
      "{}: elements {} to {} of the {} of tensor {} are in no file of the checkpoint; choose another checkpoint",
      PathOf(kManifestName), covered, next - 1, count, tensor));
}

absl::Status Checkpoint::ReadPlace(const Place& place, std::span<float> values) const {
  const std::string path = PathOf(place.file->name);
  const std::string& tensor = place.entry->range.name;
  const auto with_tensor = [&](const absl::Status& status) {
    return absl::Status(status.code(), fmt::format("tensor {}: {}", tensor, std::string(status.message())));
  };
  const absl::StatusOr<CheckpointFile> file = CheckpointFile::Open(path);
  if (!file.ok()) {
    return with_tensor(file.status());
  }
  if (file->bytes() != place.file->bytes) {
    return absl::DataLossError(
        fmt::format("{}: has {} bytes, the manifest says {}, so tensor {} cannot be trusted; "
                    "copy the file again or choose another checkpoint",
                    path, file->bytes(), place.file->bytes, tensor));
  }
  if (const absl::Status status = file->ReadAt(place.position, std::as_writable_bytes(values)); !status.ok()) {
    return with_tensor(status);
  }
  if (const uint32_t crc = Crc32c(std::as_bytes(values)); crc != place.entry->crc32c) {
    return absl::DataLossError(
        fmt::format("{}: tensor {} is damaged: its checksum is {:08x}, the manifest says {:08x}; copy the file again "
                    "or choose another checkpoint",
                    path, tensor, crc, place.entry->crc32c));
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::Read(std::string_view tensor, const std::vector<int64_t>& shape,
                              std::span<float> values) const {
  const auto found = places_.find(tensor);
  if (found == places_.end()) {
    return absl::NotFoundError(
        fmt::format("{}: has no tensor {}; choose a checkpoint of this model", PathOf(kManifestName), tensor));
  }
  const Places& places = found->second;
  if (places.front().entry->range.shape != shape) {
    return absl::InvalidArgumentError(fmt::format(
        "{}: tensor {} has shape [{}], the model needs [{}]; choose a checkpoint of this model", PathOf(kManifestName),
        tensor, fmt::join(places.front().entry->range.shape, ", "), fmt::join(shape, ", ")));
  }
  GP_CHECK(static_cast<int64_t>(values.size()) == CountElements(shape), "{} values for {}", values.size(), tensor);
  GP_RETURN_IF_ERROR(CheckWhole(tensor, places));
  int64_t filled = 0;
  absl::Status missing;  // the first copy's
  for (const Place& place : places) {
    const TensorRange& range = place.entry->range;
    if (range.offset < filled) {
      continue;  // another copy was read
    }
    if (range.offset > filled) {
      return missing;
    }
    absl::Status status =
        ReadPlace(place, values.subspan(static_cast<size_t>(range.offset), static_cast<size_t>(range.elements)));
    if (status.ok()) {
      filled = range.end();
      missing = absl::OkStatus();
    } else if (!absl::IsNotFound(status)) {
      return status;
    } else if (missing.ok()) {
      missing = status;
    }
  }
  return missing;
}

std::vector<const FileEntry*> Checkpoint::FilesOf(std::string_view tensor) const {
  std::vector<const FileEntry*> files;
  if (const auto found = places_.find(tensor); found != places_.end()) {
    std::ranges::transform(found->second, std::back_inserter(files), &Place::file);
  }
  return files;
}

absl::Status Checkpoint::CheckSameModel(const ModelSpec& model) const {
  if (const std::optional<std::string> difference = Difference(manifest_.model, model); difference.has_value()) {
    return absl::FailedPreconditionError(
        fmt::format("{}: {}; check spec.model or choose another checkpoint", PathOf(kManifestName), *difference));
  }
  return CheckTensors(model);
}

absl::Status Checkpoint::CheckTensors(const ModelSpec& model) const {
  std::set<std::string, std::less<>> known;
  for (const CheckpointUnit& unit : UnitsOf(model)) {
    std::vector<TensorRange> tensors = UnitWeights(model, unit);
    std::ranges::move(UnitMoments(model, unit), std::back_inserter(tensors));
    for (const TensorRange& tensor : tensors) {
      const auto found = places_.find(tensor.name);
      if (found == places_.end()) {
        return absl::FailedPreconditionError(
            fmt::format("{}: has no tensor {}, which the model needs; choose another checkpoint", PathOf(kManifestName),
                        tensor.name));
      }
      const std::vector<int64_t>& shape = found->second.front().entry->range.shape;
      if (shape != tensor.shape) {
        return absl::FailedPreconditionError(
            fmt::format("{}: tensor {} has shape [{}], the model needs [{}]; choose another checkpoint",
                        PathOf(kManifestName), tensor.name, fmt::join(shape, ", "), fmt::join(tensor.shape, ", ")));
      }
      GP_RETURN_IF_ERROR(CheckWhole(tensor.name, found->second));
      known.insert(tensor.name);
    }
  }
  for (const auto& [tensor, places] : places_) {
    if (!known.contains(tensor)) {
      return absl::FailedPreconditionError(
          fmt::format("{}: tensor {} is not part of the job's model; check spec.model or choose another checkpoint",
                      PathOf(kManifestName), tensor));
    }
  }
  return absl::OkStatus();
}

}  // namespace geopipe
