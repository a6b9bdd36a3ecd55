#include "runtime/checkpoint/checkpoint_folders.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <set>
#include <span>
#include <system_error>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/base/trouble.h"
#include "runtime/base/files.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/new_file.h"

namespace geopipe {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFolderPrefix = "iteration-";
constexpr size_t kIterationDigits = 10;

absl::Status RemoveManifest(const std::string& folder) {
  const std::string path = fmt::format("{}/{}", folder, kManifestName);
  if (unlink(path.c_str()) == 0) {
    return SyncFolder(folder);
  }
  return errno == ENOENT ? absl::OkStatus() : CheckpointIoError(path, "removed", errno);
}

// True for files that a writer of checkpoints makes, or has begun. People put others beside them: a report, an export.
bool IsOurs(std::string_view name) {
  return name.starts_with(kManifestName) || IsTemporaryName(name) ||
         (IsTensorFileName(name) &&
          (name.find(".weights.") != std::string_view::npos || name.find(".moments.") != std::string_view::npos));
}

// Removes files of ours that the manifest does not name; a failure only costs room. Manifests stay, also those that are
// being written: on a shared file system another node may be completing the same checkpoint.
void RemoveUnnamed(const std::string& folder, const CheckpointManifest& manifest) {
  std::set<std::string_view> named;
  for (const FileEntry& file : manifest.files) {
    named.insert(file.name);
  }
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (IsOurs(name) && !name.starts_with(kManifestName) && !named.contains(name)) {
      std::error_code ignored;
      fs::remove(entry->path(), ignored);
    }
  }
}

// Removes the checkpoint, and its folder where nothing else is in it. Another node may be at it as well.
absl::Status RemoveFolder(const std::string& folder) {
  GP_RETURN_IF_ERROR(RemoveManifest(folder));
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (IsOurs(entry->path().filename().string())) {
      fs::remove(entry->path(), error);
    }
    if (error) {
      break;
    }
  }
  if (!error) {
    fs::remove(folder, error);
  }
  const bool is_removed =
      !error || error == std::errc::no_such_file_or_directory || error == std::errc::directory_not_empty;
  return is_removed ? absl::OkStatus() : CheckpointIoError(folder, "removed", error.value());
}

// True when no version of this program will ever read it.
bool IsLeftover(const CheckpointList::Incomplete& incomplete) {
  return absl::IsNotFound(incomplete.reason) || absl::IsDataLoss(incomplete.reason) ||
         absl::IsInvalidArgument(incomplete.reason);
}

}  // namespace

std::string CheckpointFolder(std::string_view root, int64_t iteration) {
  GP_CHECK(iteration >= 0 && iteration <= CheckpointLimits::kMaxIteration, "iteration {}", iteration);
  return fmt::format("{}/{}{:010}", root, kFolderPrefix, iteration);
}

std::optional<int64_t> IterationOfFolder(std::string_view folder) {
  while (folder.ends_with('/')) {
    folder.remove_suffix(1);
  }
  const size_t slash = folder.rfind('/');
  const std::string_view name = slash == std::string_view::npos ? folder : folder.substr(slash + 1);
  if (!name.starts_with(kFolderPrefix) || name.size() != kFolderPrefix.size() + kIterationDigits) {
    return std::nullopt;
  }
  const std::string_view digits = name.substr(kFolderPrefix.size());
  if (!std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; })) {
    return std::nullopt;
  }
  int64_t iteration = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), iteration);
  return iteration;
}

absl::StatusOr<std::string> BeginCheckpoint(const std::string& root, int64_t iteration) {
  std::string folder = CheckpointFolder(root, iteration);
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    if (const absl::Status made = MakeFolder(folder); !made.ok()) {
      return Reworded(made, fmt::format("{}; choose another folder for checkpoints", std::string(made.message())));
    }
    GP_RETURN_IF_ERROR(SyncFolder(root));
  }
  return folder;
}

absl::Status WriteCheckpointManifest(const std::string& folder, const CheckpointManifest& manifest) {
  const std::string path = fmt::format("{}/{}", folder, kManifestName);
  const auto refuse = [&](std::string_view why) {
    return absl::InvalidArgumentError(fmt::format("{}: cannot be written: {}", path, why));
  };
  if (const absl::Status valid = ValidateCheckpointManifest(manifest); !valid.ok()) {
    return refuse(std::string(valid.message()));
  }
  const std::string text = CheckpointManifestText(manifest);
  if (text.size() > CheckpointLimits::kMaxManifestBytes) {
    return refuse(
        fmt::format("it has {} bytes, at most {} are allowed", text.size(), CheckpointLimits::kMaxManifestBytes));
  }
  GP_ASSIGN_OR_RETURN(NewFile file, NewFile::Create(path));
  GP_RETURN_IF_ERROR(file.Write(std::as_bytes(std::span(text))));
  GP_RETURN_IF_ERROR(file.Commit());
  RemoveUnnamed(folder, manifest);
  return absl::OkStatus();
}

absl::StatusOr<CheckpointList> ListCheckpoints(const std::string& root) {
  CheckpointList list;
  std::error_code error;
  for (fs::directory_iterator entry(root, error), end; !error && entry != end; entry.increment(error)) {
    std::string folder = entry->path().string();
    const std::optional<int64_t> iteration = IterationOfFolder(folder);
    std::error_code ignored;
    if (!iteration.has_value() || !fs::is_directory(entry->symlink_status(ignored))) {
      continue;
    }
    const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(folder);
    if (checkpoint.ok()) {
      list.complete.push_back({.iteration = *iteration, .folder = std::move(folder)});
    } else {
      list.incomplete.push_back({.iteration = *iteration, .folder = std::move(folder), .reason = checkpoint.status()});
    }
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return CheckpointIoError(root, "read", error.value());
  }
  std::ranges::sort(list.complete, {}, &CheckpointList::Complete::iteration);
  std::ranges::sort(list.incomplete, {}, &CheckpointList::Incomplete::iteration);
  return list;
}

absl::StatusOr<std::vector<std::string>> RemoveOld(const std::string& root, int64_t keep, std::span<const int64_t> kept,
                                                   int64_t newest) {
  GP_CHECK(keep >= 1, "keep {} checkpoints", keep);
  GP_ASSIGN_OR_RETURN(CheckpointList list, ListCheckpoints(root));
  std::erase_if(list.complete, [&](const auto& each) { return each.iteration > newest; });
  std::erase_if(list.incomplete, [&](const auto& each) { return each.iteration > newest; });
  std::vector<std::pair<int64_t, std::string>> old;
  for (size_t i = 0; i + static_cast<size_t>(keep) < list.complete.size(); ++i) {
    old.emplace_back(list.complete[i].iteration, list.complete[i].folder);
  }
  for (const CheckpointList::Incomplete& incomplete : list.incomplete) {
    const bool is_older = !list.complete.empty() && incomplete.iteration < list.complete.back().iteration;
    if (is_older && IsLeftover(incomplete)) {
      old.emplace_back(incomplete.iteration, incomplete.folder);
    }
  }
  std::erase_if(old, [&](const auto& folder) { return std::ranges::find(kept, folder.first) != kept.end(); });
  std::ranges::sort(old);
  std::vector<std::string> removed;
  absl::Status first_error;
  for (auto& [iteration, folder] : old) {
    const absl::Status status = RemoveFolder(folder);
    std::error_code ignored;
    if (status.ok() && !fs::exists(folder, ignored)) {
      removed.push_back(std::move(folder));
    }
    first_error.Update(status);
  }
  if (!first_error.ok()) {
    return first_error;
  }
  return removed;
}

}  // namespace geopipe
