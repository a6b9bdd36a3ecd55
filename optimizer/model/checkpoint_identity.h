// Names a complete checkpoint below the path of a job.
#pragma once

#include <compare>
#include <cstdint>

namespace geopipe {

struct CheckpointIdentity {
  int64_t iteration = 0;        // it is the state before this
  uint64_t incarnation = 0;     // of the run that wrote it
  uint64_t epoch = 0;           // of that run
  int64_t sequence_length = 0;  // of that run: with another, samples would be skipped or repeated

  friend auto operator<=>(const CheckpointIdentity&, const CheckpointIdentity&) = default;
};

}  // namespace geopipe
