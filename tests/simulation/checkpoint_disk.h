// Checkpoints on the disk of a simulated node, which outlives its processes: folders as runtime/checkpoint keeps them,
// with files that stand for the bits in them.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "optimizer/model/checkpoint_identity.h"
#include "runtime/checkpoint/checkpoint_root.h"

namespace geopipe::simulation {

// Units of a model; a rank holds a range of them, and writes one file for each.
inline constexpr int32_t kUnits = 12;

// The first unit of a rank; that of the next one is behind its last.
inline int32_t FirstUnit(int32_t rank, int32_t ranks) { return kUnits * rank / ranks; }

// Name of the file that an epoch of a run writes of the unit.
std::string UnitFile(int32_t unit, uint64_t run, uint64_t epoch);
// True when the file is of the unit, whoever wrote it.
bool IsOfUnit(const std::string& file, int32_t unit);

struct StateFile {
  uint64_t lineage = 0;  // of the state
  std::string writer;    // the site of the node that has written it
};

struct CheckpointManifest {
  CheckpointIdentity identity;
  std::vector<std::string> files;  // of all ranks
};

struct CheckpointFolder {
  std::map<std::string, StateFile> files;
  std::optional<CheckpointManifest> manifest;

  // The manifest of the run and epoch; nullptr: there is none.
  const CheckpointManifest* Find(const CheckpointIdentity& identity) const;
};

class CheckpointDisk {
 public:
  bool unreadable = false;  // no file of the node can be opened
  bool full = false;        // nothing can be written
  bool away = false;        // it is not mounted
  // The store may not know that the disk is a new one, or which marks its folders bear: people write the mark of a job
  // into its folder, as the sentence about that says.
  bool is_marked_by_people = false;

  // Stand in for CheckCheckpointRoot and MarkCheckpointRoot; a folder below the mount point cannot be written.
  absl::Status CheckRoot(const std::string& path, const CheckpointMark& mark);
  absl::Status MarkRoot(const std::string& path, CheckpointMark& mark);
  // True when the path has had the mark of its job when a checkpoint was listed that is here, and the node's agent has
  // obeyed a coordinator ever since.
  bool MustBear(const std::string& path, const std::string& id) const;
  void NoteListed(const std::string& path) { listed_[path] = marks_[path]; }
  void ForgetListed() { listed_.clear(); }

  // The folder, mounted or not.
  const CheckpointFolder* Find(const std::string& path, int64_t iteration) const;
  // The folder as a process sees it.
  const CheckpointFolder* See(const std::string& path, int64_t iteration) const {
    return away ? nullptr : Find(path, iteration);
  }
  // False while nobody can know what is there.
  bool can_tell() const { return !away && !unreadable; }
  // Complete checkpoints below the path, as a process sees them.
  std::vector<CheckpointIdentity> Complete(const std::string& path) const;
  // The folder, made where there is none. What is in it stays.
  CheckpointFolder& Begin(const std::string& path, int64_t iteration) { return roots_[path][iteration]; }
  // Writes the manifest, which comes last, and removes files that it does not name and checkpoints older than the
  // newest `keep`, except those in `kept`. NotFound: the folder is gone. ResourceExhausted: the disk is full.
  absl::Status Complete(const std::string& path, CheckpointManifest manifest, int64_t keep,
                        const std::vector<int64_t>& kept);
  // It was complete once, and gave way to newer ones.
  bool Removed(const std::string& path, const CheckpointIdentity& identity) const {
    return removed_.contains({path, identity.incarnation, identity.epoch, identity.iteration});
  }
  // Everything is gone.
  void Lose() {
    roots_.clear();
    marks_.clear();
    listed_.clear();
    lost_ = true;
  }
  // It has lost something, ever.
  bool lost() const { return lost_; }

 private:
  std::map<std::string, std::map<int64_t, CheckpointFolder>> roots_;  // by path and iteration
  std::map<std::string, std::string> marks_;                          // by path
  std::map<std::string, std::string> listed_;                         // the same, of MustBear
  std::set<std::tuple<std::string, uint64_t, uint64_t, int64_t>> removed_;
  bool lost_ = false;
};

}  // namespace geopipe::simulation
