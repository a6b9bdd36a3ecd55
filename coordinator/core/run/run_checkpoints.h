// The checkpoints of one run: from the files of its ranks to the manifests on its nodes and the copies at other sites.
// The manifest comes last: a checkpoint counts once every rank, of all tensor and data ranks of each stage, has told
// which files it has written, and then every node that it has written the manifest. A rank may have written no file: a
// replica whose state another writes. Only complete checkpoints are copied: what the ranks of one node have written
// goes to a node of the next site in the plan's order, from the last to the first; a checkpoint counts as copied when
// all its copies are whole.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/cluster/names.h"
#include "coordinator/core/run/epoch.h"
#include "geopipe/v1/control_service.pb.h"
#include "geopipe/v1/worker_service.pb.h"
#include "optimizer/model/checkpoint_identity.h"

namespace geopipe {

struct ListedCheckpoint {
  // Nodes that hold all that the ranks of one node have written (at least one file): that node first, then those with
  // copies.
  using Holders = std::vector<NodeKey>;

  CheckpointIdentity identity;
  int64_t bytes = 0;        // of all files
  int64_t duration_ns = 0;  // from the first copy of a rank's state on
  std::vector<Holders> parts = {};
  // Sets of nodes that were found not to have all files between them, whatever was told of parts; the latest
  // kMaxUnreadable.
  std::vector<std::set<NodeKey>> unreadable_at = {};
  static constexpr size_t kMaxUnreadable = 8;

  bool is_copied() const {
    return !parts.empty() && std::ranges::all_of(parts, [](const Holders& holders) { return holders.size() > 1; });
  }
  // True when these nodes together have all files.
  bool IsAt(const std::set<NodeKey>& nodes) const;
  // True when these nodes were found not to have all files.
  bool IsUnreadableAt(const std::set<NodeKey>& nodes) const;
  // True when other nodes than these have files of it.
  bool IsBeyond(const std::set<NodeKey>& nodes) const;

  friend bool operator==(const ListedCheckpoint&, const ListedCheckpoint&) = default;
};

// Checkpoints that are listed of the job, oldest first. DataLoss: they cannot be read.
absl::StatusOr<std::vector<ListedCheckpoint>> ListedOf(const v1::JobDetail& detail);

class RunCheckpoints {
 public:
  // Limit on attempts at once; a newer one ends the oldest, so a rank or node that falls behind only misses
  // checkpoints.
  static constexpr size_t kMaxAttempts = 4;

  struct ManifestOrder {
    WorkerKey worker;  // one of each node
    v1::WriteManifestCommand command;
  };
  // Files that `worker` is to fetch from workers of other nodes.
  struct CopyOrder {
    struct Source {
      WorkerKey worker;
      std::vector<std::string> files;
    };
    WorkerKey worker;
    int64_t iteration = 0;
    std::vector<Source> sources;
    int64_t bytes = 0;  // of all files
  };
  // Consequences of a report.
  struct Outcome {
    std::vector<ManifestOrder> orders = {};
    std::vector<CopyOrder> copies = {};
    std::optional<ListedCheckpoint> complete = std::nullopt;
    std::optional<ListedCheckpoint> copied = std::nullopt;  // complete before; every part is at another site now, too
    std::optional<std::string> trouble = std::nullopt;      // an attempt came to nothing: one sentence
  };
  struct CopyRule {
    bool wanted = false;
    std::set<NodeKey> avoid = {};  // nodes that get none, and whose own parts alone are copied; empty: none
  };

  // Begins an epoch and abandons attempts of earlier ones, since nobody knows any more what state their ranks hold.
  // `copies`: whether copies are wanted.
  void BeginEpoch(const Epoch& epoch, uint64_t incarnation, int64_t sequence_length, bool copies);

  // The first error ends the attempt. Reports of other epochs, of workers that are no members, second ones, and those
  // of attempts that are over change nothing.
  Outcome OnFiles(int64_t now_ns, const WorkerKey& worker, uint64_t epoch, const v1::CheckpointReport& report);
  Outcome OnManifest(int64_t now_ns, const WorkerKey& worker, uint64_t epoch, const v1::ManifestReport& report);
  Outcome OnCopied(const WorkerKey& worker, uint64_t epoch, const v1::ReplicaReport& report);

  // Notes that the ranks are asked (again) for the checkpoint before this iteration; an attempt that is over starts
  // anew.
  void Ask(int64_t iteration) { Ask(iteration, {.wanted = copies_}); }
  void Ask(int64_t iteration, CopyRule rule);
  // Forgets the attempts under way, whose outcome nobody will learn.
  void Abandon() { attempts_.clear(); }
  // True while an attempt was asked for or is under way, including the copies of a complete one.
  bool Pending(int64_t iteration) const;

 private:
  enum class Phase : uint8_t { kFiles, kManifests, kCopies, kOver };
  struct Part {
    WorkerKey worker;                     // the first of the node
    std::vector<std::string> files = {};  // none: the node counts for its manifest alone
    int64_t bytes = 0;
    ListedCheckpoint::Holders holders = {};
  };
  struct Attempt {
    Phase phase = Phase::kFiles;
    CopyRule rule;
    std::vector<std::optional<v1::CheckpointReport>> reports;  // by rank
    std::map<NodeKey, Part> parts;
    std::set<WorkerKey> awaited;  // owe reports of manifests or copies
    int64_t begun_ns = 0;
    ListedCheckpoint complete = {};
  };

  Attempt& AttemptOf(int64_t iteration, Outcome& outcome);
  static std::vector<ListedCheckpoint::Holders> HoldersOf(const Attempt& attempt);
  static void End(Attempt& attempt);
  std::vector<ManifestOrder> OrderManifests(int64_t iteration, Attempt& attempt) const;
  std::vector<CopyOrder> OrderCopies(int64_t iteration, Attempt& attempt) const;

  std::vector<WorkerKey> members_;  // by rank
  bool copies_ = false;
  uint64_t epoch_ = 0;
  uint64_t incarnation_ = 0;
  int64_t sequence_length_ = 0;
  std::map<int64_t, Attempt> attempts_;  // by iteration
};

// Returns the checkpoints, of those that were found on the nodes, that the run may begin with, oldest first. With
// `resume`: the newest kMaxResumable that some node has, since nodes that lack the files fetch them; of two of one
// iteration the younger, where their nodes have others in common. Without: none, and then there must be none, for two
// runs below one path would remove each other's. FailedPrecondition, one sentence: a run begins anew where there are
// checkpoints; there is none, or nodes have those of different jobs; the newest is at the job's end, or of a sequence
// length that is not among `sequence_lengths`.
inline constexpr size_t kMaxResumable = 8;
absl::StatusOr<std::vector<CheckpointIdentity>> ResumableCheckpoints(
    const std::string& path, bool resume, const std::map<NodeKey, std::vector<CheckpointIdentity>>& found,
    int64_t end_iteration, const std::vector<int64_t>& sequence_lengths);

}  // namespace geopipe
