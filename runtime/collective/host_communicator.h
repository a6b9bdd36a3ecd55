// Communicators of the processor, over memory that the ranks of one host share, or over messages.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/stop_event.h"
#include "runtime/collective/communicator.h"
#include "runtime/tensor/allocator.h"
#include "runtime/transport/stream/message_transport.h"

namespace geopipe {

struct CommunicatorOptions {
  int32_t rank = 0;  // in the group
  int32_t size = 1;
  // false: an operation runs in the thread that calls it, and is over when the call returns (the call then returns its
  // error too). true: a thread of the communicator runs them in order.
  bool own_thread = false;
  // Longest wait for another rank's next step in an operation; then the group fails.
  int64_t longest_wait_ns = 60'000'000'000;
  // The host's memory; the slots count as its category transport (optimizer/model/collective_memory.h). Outlives the
  // communicator, as the others do.
  Allocator* allocator = nullptr;
  WaitWatch* watch = nullptr;  // may be null
  Clock* clock = &Clock::Real();
};

// A group on one host.
struct SharedGroup {
  std::string name;                             // in the job and epoch, the same on all ranks
  std::string secret;                           // of the epoch: without it no rank joins
  int64_t join_deadline_ns = 0;                 // monotonic
  const StopEvent* stop = &StopEvent::Never();  // ends joining: Cancelled
};

// Rank 0 returns when all ranks have the shared memory, another rank when it has it itself. Errors: ShareRegion's
// (region_handover.h) and the allocator's; FailedPrecondition when the processor is too old.
absl::StatusOr<std::unique_ptr<Communicator>> MakeSharedMemoryCommunicator(const CommunicatorOptions& options,
                                                                           const SharedGroup& group);

// A group over a transport.
struct MessageGroup {
  int32_t id = 0;              // of the group among those of its ranks
  std::vector<int32_t> ranks;  // of the transport; the group's rank is the place in here
};

// Channels that the transport needs between the ranks of the group: those that begin or end at `rank` (of the group).
std::vector<ChannelSpec> CollectiveChannels(const MessageGroup& group, int32_t rank);

// Makes a communicator over a transport with those channels, which it alone uses and which outlives it. Returns at
// once. An abort reaches the other ranks by message, within half a second where they wait. FailedPrecondition when the
// processor is too old.
absl::StatusOr<std::unique_ptr<Communicator>> MakeMessageCommunicator(const CommunicatorOptions& options,
                                                                      const MessageGroup& group,
                                                                      MessageTransport& transport);

}  // namespace geopipe
