// The folder below which a job's checkpoints are on one node. A file system that is not mounted leaves an empty folder
// behind, which would take checkpoints until the disk below is full, and hide them when it is mounted again. So the
// folder bears a mark, a file with one line that names the job's work: a folder without it is not written.
#pragma once

#include <absl/status/status.h>

#include <string>

namespace geopipe {

struct CheckpointMark {
  std::string id;         // one line of text
  bool expected = false;  // the folder has had it
};

inline constexpr char kCheckpointMarkFile[] = ".geopipe-checkpoints";

// Checks that checkpoints can be written below `path`. Where the mark is expected the folder must bear it; else the
// folder is made with its parents, and a file in it that goes again. Errors are the node's trouble and name the path,
// what is wrong and the remedy.
absl::Status CheckCheckpointRoot(const std::string& path, const CheckpointMark& mark);

// The same, and gives the folder the mark where it is not expected: from then on it is. A folder that bears another
// job's is taken over. Several ranks and nodes may mark the same one.
absl::Status MarkCheckpointRoot(const std::string& path, CheckpointMark& mark);

}  // namespace geopipe
