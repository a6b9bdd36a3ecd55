#include "tests/simulation/checkpoint_disk.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "optimizer/base/trouble.h"

namespace geopipe::simulation {

std::string UnitFile(int32_t unit, uint64_t run, uint64_t epoch) {
  return fmt::format("unit-{:02}.{:x}-{}", unit, run, epoch);
}

bool IsOfUnit(const std::string& file, int32_t unit) { return file.starts_with(fmt::format("unit-{:02}.", unit)); }

const CheckpointManifest* CheckpointFolder::Find(const CheckpointIdentity& identity) const {
  return manifest.has_value() && manifest->identity.iteration == identity.iteration &&
                 manifest->identity.incarnation == identity.incarnation && manifest->identity.epoch == identity.epoch
             ? &*manifest
             : nullptr;
}

absl::Status CheckpointDisk::CheckRoot(const std::string& path, const CheckpointMark& mark) {
  if (away) {
    return OfNode(mark.expected ? absl::NotFoundError(path + ": lacks its mark")
                                : absl::PermissionDeniedError(path + ": the mount point cannot be written"));
  }
  if (is_marked_by_people && mark.expected) {
    marks_[path] = mark.id;
  }
  const auto found = marks_.find(path);
  const bool bears = found != marks_.end() && found->second == mark.id;
  if (mark.expected && !bears) {
    return OfNode(absl::FailedPreconditionError(path + ": is another job's"));
  }
  return full && !bears ? OfNode(absl::ResourceExhaustedError(path + ": the disk is full")) : absl::OkStatus();
}

absl::Status CheckpointDisk::MarkRoot(const std::string& path, CheckpointMark& mark) {
  absl::Status checked = CheckRoot(path, mark);
  if (checked.ok()) {
    marks_[path] = mark.id;
    mark.expected = true;
  }
  return checked;
}

bool CheckpointDisk::MustBear(const std::string& path, const std::string& id) const {
  const auto found = listed_.find(path);
  return found != listed_.end() && found->second == id;
}

const CheckpointFolder* CheckpointDisk::Find(const std::string& path, int64_t iteration) const {
  const auto root = roots_.find(path);
  if (root == roots_.end()) {
    return nullptr;
  }
  const auto folder = root->second.find(iteration);
  return folder == root->second.end() ? nullptr : &folder->second;
}

std::vector<CheckpointIdentity> CheckpointDisk::Complete(const std::string& path) const {
  std::vector<CheckpointIdentity> complete;
  if (const auto root = roots_.find(path); root != roots_.end() && !away) {
    for (const auto& [iteration, folder] : root->second) {
      if (folder.manifest.has_value()) {
        complete.push_back(folder.manifest->identity);
      }
    }
  }
  return complete;
}

absl::Status CheckpointDisk::Complete(const std::string& path, CheckpointManifest manifest, int64_t keep,
                                      const std::vector<int64_t>& kept) {
  if (full) {
    return absl::ResourceExhaustedError("the disk is full");
  }
  std::map<int64_t, CheckpointFolder>& root = roots_[path];
  const auto found = root.find(manifest.identity.iteration);
  if (found == root.end()) {
    return absl::NotFoundError("the folder is gone");
  }
  std::erase_if(found->second.files, [&](const auto& file) {
    return std::ranges::find(manifest.files, file.first) == manifest.files.end();
  });
  found->second.manifest = std::move(manifest);
  if (kept.empty()) {
    return absl::OkStatus();
  }
  const int64_t newest = *std::ranges::max_element(kept);
  int64_t complete = 0;
  for (auto at = root.upper_bound(newest); at != root.begin();) {
    --at;
    complete += at->second.manifest.has_value() ? 1 : 0;
    const bool is_old = at->second.manifest.has_value() ? complete > std::max<int64_t>(1, keep - 1) : complete > 0;
    if (is_old && std::ranges::find(kept, at->first) == kept.end()) {
      if (const std::optional<CheckpointManifest>& old = at->second.manifest; old.has_value()) {
        removed_.emplace(path, old->identity.incarnation, old->identity.epoch, old->identity.iteration);
      }
      at = root.erase(at);
    }
  }
  return absl::OkStatus();
}

}  // namespace geopipe::simulation
