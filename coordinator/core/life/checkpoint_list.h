// The checkpoints that a job can go on from.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "coordinator/cluster/names.h"
#include "coordinator/core/run/run_checkpoints.h"
#include "geopipe/v1/job_record.pb.h"
#include "optimizer/model/checkpoint_identity.h"
#include "optimizer/model/job_spec.h"

namespace geopipe {

// A value, durable with the job.
struct CheckpointList {
  // Complete ones, oldest first, as many as the job keeps.
  std::vector<ListedCheckpoint> listed;
  // The job was applied to go on from these, oldest first; its first run uses them as long as it has listed none.
  std::vector<CheckpointIdentity> resumable;
  // Names the job's folders of checkpoints, the same in all its runs (CheckpointMark), and the nodes whose folder bears
  // it.
  std::string mark = {};
  std::set<NodeKey> marked = {};

  // Writes and reads what the record has of it: all but `listed`, which are in the job's detail. DataLoss.
  void Write(v1::JobRecord& record) const;
  static absl::StatusOr<CheckpointList> Read(const v1::JobRecord& record);

  // The first iteration of the job as it was applied.
  int64_t FirstIteration() const { return resumable.empty() ? 0 : resumable.back().iteration; }
  // True when the newest is the state before this iteration, or before a later one.
  bool Reaches(int64_t iteration) const { return !listed.empty() && listed.back().identity.iteration >= iteration; }
  // Nodes must not remove these.
  std::vector<CheckpointIdentity> Kept() const;

  // Lists a complete one in place of an earlier one of its iteration and of those of a future that is no more. The
  // newest with copies at other sites stays, however old, until a newer one is copied: it is all that is left when a
  // site is lost.
  void List(const ListedCheckpoint& complete, const CheckpointSpec& spec);
  void DropAfter(int64_t iteration);
  // Keeps the newest `keep`, and the newest that is copied, where the job wants copies. True when some were removed.
  bool Trim(int64_t keep, const CheckpointSpec& spec);
  // Removes holders that no longer report a checkpoint: a node that is back may have lost its disk.
  void DropLostParts(const std::map<NodeKey, std::vector<CheckpointIdentity>>& found);

  // Notes that it cannot be read at these nodes. Where other nodes have files of it, it stays listed.
  void NoteUnreadable(const CheckpointIdentity& checkpoint, const std::set<NodeKey>& nodes);
  // Forgets it: another can be read.
  void Strike(const CheckpointIdentity& checkpoint, const std::set<NodeKey>& nodes);
};

}  // namespace geopipe
