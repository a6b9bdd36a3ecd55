#include "runtime/checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <type_traits>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/base/trouble.h"
#include "runtime/base/crc32c.h"
#include "runtime/checkpoint/checkpoint_file.h"
#include "runtime/checkpoint/checkpoint_folders.h"
#include "runtime/checkpoint/checkpoint_units.h"

namespace geopipe {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);
constexpr int64_t kElementsAtATime = int64_t{1} << 18;

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
  ForEachFamilyField(found, [&](std::string_view path, const auto& value) {
    ForEachFamilyField(needed, [&](std::string_view other, const auto& wanted) {
      if constexpr (std::is_same_v<decltype(value), decltype(wanted)>) {
        if (path == other && value != wanted && !difference.has_value()) {
          difference = fmt::format("is of a model with another {}", path.substr(path.rfind('/') + 1));
        }
      }
    });
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

absl::Status Checkpoint::CheckCovered(std::string_view tensor, const Places& places) const {
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

std::vector<Checkpoint::Run> Checkpoint::RunsOf(const TensorPiece& piece, int64_t column_parts) {
  std::vector<Run> runs;
  const auto add = [&](int64_t stored, int64_t wanted, int64_t elements) {
    Run* const last = runs.empty() ? nullptr : &runs.back();
    if (last != nullptr && last->end() == stored && last->wanted + last->elements == wanted) {
      last->elements += elements;
    } else {
      runs.push_back({.stored = stored, .wanted = wanted, .elements = elements});
    }
  };
  const int64_t columns = piece.tensor.shape.back();
  const int64_t width = columns / column_parts;
  const int64_t part_elements = piece.tensor.count() / column_parts;
  piece.ForEachRun([&](int64_t in_tensor, int64_t in_piece, int64_t elements) {
    if (column_parts == 1) {
      add(in_tensor, in_piece, elements);
      return;
    }
    for (const int64_t end = in_tensor + elements; in_tensor < end;) {
      const int64_t row = in_tensor / columns;
      const int64_t column = in_tensor % columns;
      const int64_t in_part = column % width;
      const int64_t length = std::min(width - in_part, end - in_tensor);
      add((column / width * part_elements) + (row * width) + in_part, in_piece, length);
      in_tensor += length;
      in_piece += length;
    }
  });
  std::ranges::sort(runs, {}, &Run::stored);
  return runs;
}

std::span<const Checkpoint::Run> Checkpoint::RunsIn(const TensorRange& range, std::span<const Run> runs) {
  const auto begin = std::ranges::partition_point(runs, [&](const Run& run) { return run.end() <= range.offset; });
  const auto end =
      std::ranges::partition_point(begin, runs.end(), [&](const Run& run) { return run.stored < range.end(); });
  return {begin, end};
}

absl::Status Checkpoint::ReadPlace(const Place& place, std::span<const Run> runs, std::span<float> values) const {
  const std::string path = PathOf(place.file->name);
  const TensorRange& range = place.entry->range;
  const auto with_tensor = [&](const absl::Status& status) {
    return Reworded(status, fmt::format("tensor {}: {}", range.name, std::string(status.message())));
  };
  const absl::StatusOr<CheckpointFile> file = CheckpointFile::Open(path);
  if (!file.ok()) {
    return with_tensor(file.status());
  }
  if (file->bytes() != place.file->bytes) {
    return absl::DataLossError(
        fmt::format("{}: has {} bytes, the manifest says {}, so tensor {} cannot be trusted; "
                    "copy the file again or choose another checkpoint",
                    path, file->bytes(), place.file->bytes, range.name));
  }
  // A range that is wanted as a whole is read into place; any other is read a little at a time, and the wanted elements
  // are copied.
  const Run& first = runs.front();
  const bool all = first.stored <= range.offset && first.end() >= range.end();
  std::vector<float> room(all ? size_t{0} : static_cast<size_t>(std::min(range.elements, kElementsAtATime)));
  uint32_t crc = 0;
  for (int64_t at = range.offset; at < range.end();) {
    const int64_t count = all ? range.elements : std::min(range.end() - at, kElementsAtATime);
    const std::span<float> read =
        all ? values.subspan(first.wanted + at - first.stored, count) : std::span(room).first(count);
    const int64_t position = place.position + (kFloatBytes * (at - range.offset));
    if (const absl::Status status = file->ReadAt(position, std::as_writable_bytes(read)); !status.ok()) {
      return with_tensor(status);
    }
    crc = Crc32c(std::as_bytes(read), crc);
    for (size_t i = 0; !all && i < runs.size() && runs[i].stored < at + count; ++i) {
      const int64_t begin = std::max(runs[i].stored, at);
      const int64_t end = std::min(runs[i].end(), at + count);
      std::ranges::copy(read.subspan(begin - at, end - begin),
                        values.begin() + runs[i].wanted + begin - runs[i].stored);
    }
    at += count;
    while (!runs.empty() && runs.front().end() <= at) {
      runs = runs.subspan(1);
    }
  }
  if (crc != place.entry->crc32c) {
    return absl::DataLossError(
        fmt::format("{}: tensor {} is damaged: its checksum is {:08x}, the manifest says {:08x}; copy the file again "
                    "or choose another checkpoint",
                    path, range.name, crc, place.entry->crc32c));
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::Read(std::string_view tensor, const std::vector<int64_t>& shape,
                              std::span<float> values) const {
  TensorPiece whole{.tensor = {.name = std::string(tensor), .shape = shape}};
  whole.count = whole.tensor.count();
  return ReadPiece(tensor, whole, values);
}

absl::Status Checkpoint::ReadPiece(std::string_view tensor, const TensorPiece& piece, std::span<float> values) const {
  const auto found = places_.find(tensor);
  if (found == places_.end()) {
    return absl::NotFoundError(
        fmt::format("{}: has no tensor {}; choose a checkpoint of this model", PathOf(kManifestName), tensor));
  }
  const Places& places = found->second;
  const TensorRange& any = places.front().entry->range;
  if (any.shape != piece.tensor.shape) {
    return absl::InvalidArgumentError(
        fmt::format("{}: tensor {} has shape [{}], the model needs [{}]; choose a checkpoint of this model",
                    PathOf(kManifestName), tensor, fmt::join(any.shape, ", "), fmt::join(piece.tensor.shape, ", ")));
  }
  GP_CHECK(std::ssize(values) == piece.count, "{} values for {}", values.size(), tensor);
  GP_RETURN_IF_ERROR(CheckCovered(tensor, places));
  const std::vector<Run> runs = RunsOf(piece, any.column_parts);
  for (auto place = places.begin(); place != places.end();) {
    const TensorRange& range = place->entry->range;
    const auto copies_end =
        std::find_if(place, places.end(), [&](const Place& each) { return each.entry->range.offset != range.offset; });
    if (const std::span<const Run> wanted = RunsIn(range, runs); !wanted.empty()) {
      absl::Status status = ReadPlace(*place, wanted, values);
      const absl::Status missing = status;  // the first copy's
      for (auto copy = std::next(place); absl::IsNotFound(status) && copy != copies_end; ++copy) {
        status = ReadPlace(*copy, wanted, values);
      }
      if (!status.ok()) {
        return absl::IsNotFound(status) ? missing : status;
      }
    }
    place = copies_end;
  }
  return absl::OkStatus();
}

std::vector<const FileEntry*> Checkpoint::FilesOf(std::string_view tensor, const TensorPiece& piece) const {
  std::vector<const FileEntry*> files;
  const auto found = places_.find(tensor);
  if (found == places_.end() || found->second.front().entry->range.shape != piece.tensor.shape) {
    return files;
  }
  const std::vector<Run> runs = RunsOf(piece, found->second.front().entry->range.column_parts);
  for (const Place& place : found->second) {
    if (!RunsIn(place.entry->range, runs).empty()) {
      files.push_back(place.file);
    }
  }
  return files;
}

absl::Status Checkpoint::CheckSameModel(const ModelSpec& model) const {
  if (const std::optional<std::string> difference = Difference(manifest_.model, model); difference.has_value()) {
    return absl::FailedPreconditionError(fmt::format("{}: {}{}; check spec.model or choose another checkpoint",
                                                     PathOf(kManifestName), *difference, FirstOtherTensor(model)));
  }
  return CheckTensors(model);
}

// Names the first tensor in which two models differ; empty if they do not.
std::string Checkpoint::FirstOtherTensor(const ModelSpec& model) const {
  for (const CheckpointUnit& unit : UnitsOf(model)) {
    for (const TensorRange& tensor : UnitWeights(model, unit)) {
      const auto found = places_.find(tensor.name);
      if (found == places_.end()) {
        return fmt::format(" (the first tensor that it lacks is {})", tensor.name);
      }
      const std::vector<int64_t>& shape = found->second.front().entry->range.shape;
      if (shape != tensor.shape) {
        return fmt::format(" (the first tensor that differs is {}: [{}], not [{}])", tensor.name,
                           fmt::join(shape, ", "), fmt::join(tensor.shape, ", "));
      }
    }
  }
  return "";
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
      GP_RETURN_IF_ERROR(CheckCovered(tensor.name, found->second));
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
