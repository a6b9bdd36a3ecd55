// The nine operations, in rounds of an exchange.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <vector>

#include "runtime/collective/communicator.h"
#include "runtime/collective/exchange.h"

namespace geopipe {

// Checks operands as Communicator describes them. An operation runs on the calling thread; errors are the exchange's.
// One at a time.
class CollectiveOperations {
 public:
  // The exchange outlives this, and so does `scratch`: as much memory as the exchange's Capacity(true, true).
  CollectiveOperations(Exchange& exchange, std::byte* scratch)
      : exchange_(exchange), scratch_(scratch), sources_(static_cast<size_t>(exchange.size())) {}

  absl::Status Broadcast(int32_t root, const Elements& data);
  absl::Status Reduce(ReduceOp op, int32_t root, const ConstElements& in, const Elements& out);
  absl::Status AllReduce(ReduceOp op, const ConstElements& in, const Elements& out);
  absl::Status AllGather(const ConstElements& in, const Elements& out);
  absl::Status Gather(int32_t root, const ConstElements& in, const Elements& out);
  absl::Status Scatter(int32_t root, const ConstElements& in, const Elements& out);
  absl::Status ReduceScatter(ReduceOp op, const ConstElements& in, const Elements& out);
  absl::Status AllToAll(const ConstElements& in, const Elements& out);
  absl::Status Barrier();

 private:
  // Bytes of an operand that one round carries, divided evenly among the ranks: rank i has those from Begin(i) on.
  struct Slices {
    int64_t begin = 0;
    int64_t bytes = 0;
    int64_t part = 0;

    int64_t Begin(int32_t rank) const;
    int64_t Bytes(int32_t rank) const;
  };

  int32_t size() const { return exchange_.size(); }
  int32_t rank() const { return exchange_.rank(); }
  // The i-th of the others, from the next rank on, so that not all look at the same one at once.
  int32_t Other(int32_t i) const { return (rank() + 1 + i) % size(); }
  int32_t Others() const { return size() - 1; }

  // Gathers `in` of all ranks into `out` of those that look, in rounds like `round`, which leaves its bytes open.
  absl::Status Collect(const Round& round, const ConstElements& in, const Elements& out);
  absl::Status AllReduceAtOnce(ReduceOp op, const ConstElements& in, const Elements& out);
  absl::Status AllReduceInParts(ReduceOp op, const ConstElements& in, const Elements& out);
  // Looks at all others; their parts, or common bytes, become the sources of Fold.
  absl::Status LookAtAll(bool parts);
  // Reduces the sources, with `own` as this rank's, into `out`.
  void Fold(ReduceOp op, DType dtype, const std::byte* own, std::byte* out, int64_t bytes);

  Exchange& exchange_;
  std::byte* const scratch_;               // this rank's slice of an all-reduce's piece, until all are shown it
  std::vector<const std::byte*> sources_;  // by rank
};

}  // namespace geopipe
