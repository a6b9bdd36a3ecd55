// Collective operations of a device's memory through the host's communicator: operands pass through pinned buffers,
// piece by piece. They run on any device, and for several ranks on one.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>

#include "optimizer/model/collective_memory.h"
#include "runtime/collective/communicator.h"
#include "runtime/tensor/allocator.h"

namespace geopipe {

struct StagedOptions {
  // The device's memory; its staging() has the pinned buffers, as category transport. Outlives the communicator, as the
  // others do.
  Allocator* allocator = nullptr;
  // Size of a pinned buffer, of which there are two; the same on all ranks.
  int64_t piece_bytes = kStagedPieceBytes;
  // Longest wait for the device to do the work before an operation; then the group fails: the other ranks wait as long
  // for this one.
  int64_t longest_wait_ns = 60'000'000'000;
  WaitWatch* watch = nullptr;  // may be null
};

// Makes a communicator whose operands lie in the device's memory, and whose bits are those of `host`. A thread of the
// communicator copies them on Queue::kGroup and runs `host`'s operations in order. An operation is enqueued behind the
// kernels that were enqueued before it. Join waits, asleep, until the result's copy is enqueued, and makes later
// kernels wait for it on the device: operands may be released right after Join. Aborted, on all ranks: the device of
// one has failed, or was too slow. Errors are the staging allocator's. REQUIRES: the operations of `host` are over when
// its calls return.
absl::StatusOr<std::unique_ptr<Communicator>> MakeStagedCommunicator(const StagedOptions& options,
                                                                     std::unique_ptr<Communicator> host);

}  // namespace geopipe
